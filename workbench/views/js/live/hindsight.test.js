import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { of, words } from "./hindsight.js";

const read = (name) => JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;
const same = (text) => text;

/** A round with one drafted token, `status`, and the drafter's ranking at the root and after it. */
const made = (status, bonus, top_q, more = {}) => ({
  nodes: { parents: [-1], tokens: [5], status: [status] },
  path: status === "accepted" ? [0] : [],
  bonus,
  emitted: [{ token: bonus, text: " b" }],
  params: { temperature: 0 },
  top_q,
  ...more,
});
const top = { tokens: [5, 7, 8], text: [" a", " b", " c"], prob: [0.6, 0.3, 0.1] };

test("a rejected draft is replaced by the rank that the target wrote", () => {
  const found = of(made("rejected", 7, [top, null]));
  assert.deepEqual([found.state, found.rank, found.q, found.place, found.sibling], ["saved", 2, 0.3, -1, true]);
  assert.equal(words(found, same), "The drafter's token of rank 2 would have been accepted: draft “ b” as a sibling, q 0.30.");
});

test("after a fully accepted path the draft is one level deeper", () => {
  const found = of(made("accepted", 5, [top, top]));
  assert.deepEqual([found.state, found.rank, found.place, found.sibling], ["saved", 1, 0, false]);
  assert.match(words(found, same), /one level deeper/);
});

test("a sampled run promises nothing", () => {
  assert.match(words(of(made("rejected", 7, [top], { params: { temperature: 0.7 } })), same), /could have been accepted \(a matter of chance/);
});

test("the reason is stated where there is nothing to show", () => {
  assert.match(words(of(made("rejected", 9, [top])), same), /not among the drafter's 3 recorded tokens/);
  assert.match(words(of(made("accepted", 7, [top, null])), same), /^Not known/);
  assert.match(words(of(made("rejected", 7, [])), same), /^Not known/);
  assert.match(words(of(made("rejected", 5, [top])), same), /its test failed/);
  assert.match(words(of(made("rejected", null, [top])), same), /added no token/);
  assert.match(words(of({ ...made("rejected", 7, [top]), nodes: { parents: [], tokens: [], status: [] } }), same), /no drafts/);
  assert.match(words(of(null), same), /no round is selected/);
});

test("recorded rounds have a rank whose token is the target's own", () => {
  const found = [...read("chain"), ...read("tree")].map((round) => [round, of(round)]).filter(([, f]) => f.state === "saved");
  assert.ok(found.length >= 3);
  for (const [round, { rank, place }] of found) assert.equal(round.top_q[place + 1].tokens[rank - 1], round.bonus);
});
