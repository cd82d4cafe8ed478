import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { complete, follows, newSelection, shown, stepRound, stepToken, informativeNode } from "./selection.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url)));

test("hover wins over the pin, the pin over the newest round", () => {
  const selection = newSelection();
  assert.equal(shown(selection, rounds).round, rounds.length - 1);
  assert.ok(follows(selection));
  selection.pin = { round: 2 };
  assert.equal(shown(selection, rounds).round, 2);
  selection.hover = { round: 4 };
  assert.equal(shown(selection, rounds).round, 4);
});

test("nothing is selected while there is no round", () => assert.equal(shown(newSelection(), []), null));

test("a token selects its node, and a node its token", () => {
  const round = rounds.findIndex((r) => r.path.length > 1);
  const byToken = complete({ round, token: 1 }, rounds);
  assert.equal(byToken.node, rounds[round].path[1]);
  assert.equal(complete({ round, node: byToken.node }, rounds).token, 1);
});

test("the most informative node is the rejected one", () => {
  const round = rounds.find((r) => r.nodes.status.includes("rejected"));
  assert.equal(round.nodes.status[informativeNode(round)], "rejected");
});

test("steps visit every token once and stop at both ends", () => {
  let at = complete({ round: 0, token: 0 }, rounds), n = 1;
  for (let next = stepToken(at, rounds, 1); next !== at; next = stepToken(at, rounds, 1)) {
    at = next;
    n += 1;
  }
  assert.equal(n, rounds.reduce((a, r) => a + r.emitted.length, 0));
  assert.equal(stepRound({ round: 0 }, rounds, -1).round, 0);
});
