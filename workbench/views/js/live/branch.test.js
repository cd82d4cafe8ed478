import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { continuation, branchNote, originalToken, words } from "./branch.js";

const { header, rounds } = JSON.parse(
  readFileSync(new URL("../../../../tests/fixtures/wire/tree.json", import.meta.url)),
);

test("the prompt of a branch is the target's context at that place, plus the token", () => {
  const round = rounds.find((r) => r.index > 0 && r.path.length > 0), place = round.path[0];
  const prompt = continuation(header, rounds, { round: round.index, place, token: 7, text: " x" });
  const before = rounds.slice(0, round.index).flatMap((r) => r.emitted.map((e) => e.token));
  assert.deepEqual(prompt.prompt_tokens, [...header.prompt_tokens, ...before, round.nodes.tokens[place], 7]);
  assert.ok(prompt.prompt.endsWith(`${round.nodes.text[place]} x`));
});

test("a branch at the root of the first round is the prompt and one token", () => {
  assert.deepEqual(continuation(header, rounds, { round: 0, place: -1, token: 3, text: "a" }).prompt_tokens, [
    ...header.prompt_tokens,
    3,
  ]);
});

test("the prompt of a branch includes tentative tokens, but no revoked ones", () => {
  const nodes = { parents: [], tokens: [], text: [] };
  const round = (emitted, placed, revoked = []) => ({ nodes, emitted, placed, revoked });
  const [a, b, c] = [5, 6, 7].map((position) => ({ token: 10 + position, text: `${position}`, position, p: 1 }));
  const from = { round: 2, place: -1, token: 3, text: "x" };
  const start = { prompt_tokens: [1], prompt_text: ["p"] };
  assert.deepEqual(continuation(start, [round([a], [b]), round([], [c]), round([], [])], from), {
    prompt_tokens: [1, 15, 16, 17, 3],
    prompt: "p567x",
  });
  const back = [round([a], [b]), round([], [], [6]), round([], [])];
  assert.deepEqual(continuation(start, back, from).prompt_tokens, [1, 15, 3]);
});

test("the original token is shown; off the accepted path there is none", () => {
  const round = rounds.find((r) => r.path.length > 0);
  assert.equal(originalToken(round, -1), round.emitted[0].text);
  const off = round.nodes.parents.findIndex((_, i) => !round.path.includes(i));
  assert.equal(originalToken(round, off), null);
  assert.equal(words({ round: 6, text: " a", instead: " b" }, (t) => t), "branched at round 7: “ a” instead of “ b”");
});

test("a branch links to its original run, and back", () => {
  const parent = { id: "p" }, origin = { run: parent, round: 6, text: " a", instead: null },
    own = { id: "b", origin }, same = (t) => t;
  assert.equal(branchNote(parent, false, same), null);
  assert.deepEqual(branchNote(own, false, same), { text: "branched at round 7: “ a”", button: "show the original run" });
  assert.match(branchNote(own, true, same).text, /is kept; you can show it after this run has ended/);
  assert.equal(branchNote(own, true, same).button, "", "the run in progress stays on the page");
  assert.equal(branchNote({ ...parent, branch: own }, false, same).button, "show the branch");
});
