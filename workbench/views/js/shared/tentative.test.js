import assert from "node:assert/strict";
import test from "node:test";

import { isPlacing, tentativeTokens, noDraftWords, words } from "./tentative.js";

const round = (placed, revoked, emitted) => ({
  nodes: { status: [] },
  revoked,
  placed: placed.map(([position, text]) => ({ position, text, p: 0.5 })),
  emitted: emitted.map((position) => ({ position })),
});
const seen = (rounds) => tentativeTokens(rounds).map(({ position, token }) => `${position}${token?.text ?? "_"}`).join(" ");

test("tentative tokens follow from the rounds: set in any order, revoked, set again, final", () => {
  const rounds = [
    round(
      [
        [9, "d"],
        [7, "b"],
      ],
      [],
      [5],
    ),
    round([[8, "c"]], [9], [6]),
    round(
      [
        [9, "D"],
        [8, "C"],
      ],
      [8],
      [7],
    ),
  ];
  assert.deepEqual([1, 2, 3].map((n) => seen(rounds.slice(0, n))), ["6_ 7b 8_ 9d", "7b 8c", "8C 9D"]);
  assert.equal(tentativeTokens(rounds)[0].token.round, 2, "the round that set it last");
});

test("runs in order and rounds of older schemas have no tentative tokens", () => {
  assert.deepEqual(tentativeTokens([{ nodes: { status: [] }, emitted: [{ position: 4 }] }]), []);
  assert.deepEqual(tentativeTokens([]), []);
});

test("a round of tentative tokens is described; a draft that first revokes positions is still a draft", () => {
  const own = round([[7, "b"]], [8, 9], [6]);
  assert.equal(words(own), "1 position filled, 2 positions revoked, 1 final");
  assert.deepEqual([own, { ...own, nodes: { status: ["accepted"] } }, round([], [], [6])].map(isPlacing), [
    true,
    false,
    false,
  ]);
});

test("a round of tentative tokens is not called plain decoding", () => {
  assert.match(noDraftWords(round([[7, "b"]], [], [6])), /^No drafts: the target fills positions/);
  assert.match(noDraftWords(round([], [], [6])), /plain decoding/);
});
