import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { model } from "./treemodel.js";
import { cut, decimals, label, sentence, test as edge } from "./treetext.js";

const node = (fields) => ({
  kind: "rejected",
  tested: true,
  u: null,
  accept: null,
  rule: null,
  inputs: {},
  p: null,
  q: null,
  text: " a",
  ...fields,
});
const width = (text) => 7 * [...text].length;

test("labels show spaces, and are cut between characters", () => {
  assert.equal(label(" fox"), "␣fox");
  assert.equal(label("abcdefghij", 5), "abcd…");
  assert.equal(cut("abcdefghij", 35, width), "abcd…");
  assert.equal(cut("abc", 35, width), "abc");
  assert.equal(cut("abc", 6, width), "");
  for (const room of [7, 14, 30, 50]) assert.ok(cut("👩‍👩‍👧é🦊x", room, width).isWellFormed());
  assert.ok(!cut("👩‍👩‍👧abc", 28, width).includes("👩‍…"), "a character of several code points is kept whole");
});

test("an edge shows u and the threshold, with enough digits for a true comparison", () => {
  assert.equal(edge(node({ kind: "accepted", u: 0.43, accept: 0.83 }))[0], ".43 < .83");
  assert.equal(edge(node({ u: 0.95, accept: 0.03 }))[0], ".95 ≥ .03");
  assert.equal(edge(node({ u: 0.4312, accept: 0.4349, kind: "accepted" }))[0], ".431 < .435");
  assert.equal(edge(node({ u: 0.5, accept: 5e-12 }))[0], ".50 ≥ .00");
  assert.equal(edge(node({ u: 0.5, accept: 1, kind: "accepted" }))[0], ".50 < 1");
  assert.deepEqual([decimals(0.999, 2), decimals(1, 2), decimals(0, 2), decimals(0.004, 2)], ["1.00", "1", "0", ".00"]);
});

test("a rule without a random number shows its own test: the most likely token, a threshold, or its name", () => {
  assert.equal(edge(node({ rule: "greedy", accept: 0 }))[0], "≠ most likely");
  assert.equal(edge(node({ rule: "greedy", accept: 1, kind: "accepted" }))[0], "= most likely");
  assert.deepEqual(edge(node({ rule: "typical", accept: 0, p: 0.03, inputs: { threshold: 0.09 } })), [
    ".03 ≤ .09 typical",
    ".03 ≤ .09",
    ".03≤.09",
  ]);
  assert.equal(
    edge(node({ rule: "typical", accept: 0, p: 0.09, inputs: { threshold: 0.09 } }))[0],
    ".0900 ≤ .0900 typical",
    "equal is not greater",
  );
  assert.equal(
    edge(node({ rule: "typical", accept: 1, p: 0.31, inputs: { threshold: 0.09 } }))[0],
    ".31 > .09 typical",
    "passed, but a longer path was taken",
  );
  assert.equal(edge(node({ rule: "forced" }))[0], "forced");
  assert.deepEqual(edge(node({ tested: false, kind: "discarded" })), []);
});

test("a trace without rule names: greedy at temperature 0, otherwise only the recorded values", () => {
  const [round] = JSON.parse(
    readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url)),
  ).rounds;
  const edgeTest = (r) => edge(model({ ...r, nodes: { ...r.nodes, rule: undefined } }).nodes.get(0));
  const silent = {
    ...round,
    nodes: { ...round.nodes, u: round.nodes.u.map(() => null), accept: round.nodes.accept.map(() => 1) },
  };
  assert.match(edgeTest(round)[0], /^\.\d+ < 1$/);
  assert.equal(edgeTest({ ...silent, params: { temperature: 0 } })[0], "= most likely");
  assert.match(edgeTest({ ...silent, params: { temperature: 0.7 } })[0], /^p \.\d+$/);
  const named = {
    ...round,
    nodes: {
      ...round.nodes,
      rule: round.nodes.u.map(() => "point"),
      inputs: { threshold: round.nodes.u.map(() => null) },
    },
  };
  assert.equal(model(named).nodes.get(0).rule, "point");
});

test("the description of a node: text, result, reason, folded nodes", () => {
  assert.equal(
    sentence(node({ u: 0.95, accept: 0.03, p: 0.1, q: 0.4, rule: "ratio" }), 3),
    "“␣a”, rejected: u .95 ≥ .03, rule: ratio, p 0.10, q 0.40, 3 folded after it",
  );
  assert.equal(sentence(node({ kind: "discarded", tested: false }), 0), "“␣a”, discarded: never tested");
  assert.equal(sentence(node({ u: 0.9, accept: 0.1 }), 0, true), "“␣a”, drafted, not verified yet");
});
