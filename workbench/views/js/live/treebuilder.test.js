import assert from "node:assert/strict";
import { test } from "node:test";
import * as formula from "./formula.js";
import { pathProduct, brief, builderRecord, statement } from "./treebuilder.js";

const rules = [
  { name: "eagle-2", title: "Ranked", says: "It was ranked.", before: "when offered", after: "among all" },
  { name: "plain", title: "Plain", says: "It is there.", before: "", after: "" },
];
const round = (grown) => ({
  grown,
  nodes: { parents: [-1, 0, 0], p: [0.5, 0.4, 0.1], q: [0.8, 0.5, null] },
});

test("a node names its tree builder, with its score before and after in the words of the trace", () => {
  const sample = round({ rules, of: [], before: [1, 2, 9], after: [1, 0.254, 2] });
  assert.deepEqual(statement(sample, 1, formula), [
    ["tree builder", "eagle-2: Ranked"],
    ["score", "2 (when offered) → 0.25 (among all)"],
    ["path probability", "drafter 0.4, target 0.2"],
    ["why drafted", "It was ranked."],
  ]);
  assert.equal(brief(sample, 2, formula), "added by eagle-2, score 9 → 2");
});

test("each node has its own tree builder where there are several; a score without a description is left out", () => {
  const sample = round({ rules, of: [0, 1, 0], before: [1, 2, null], after: [] });
  assert.deepEqual(builderRecord(sample, 1), { rule: rules[1], before: null, after: null });
  assert.deepEqual(builderRecord(sample, 2), { rule: rules[0], before: null, after: null });
  assert.equal(brief(sample, 1, formula), "added by plain");
});

test("without a tree-builder record the path's probability under drafter and target is still shown", () => {
  for (const none of [undefined, null, {}, { rules: [] }, { rules: "?" }, { rules, of: [7, 7, 7] }]) {
    assert.equal(brief(round(none), 1, formula), "");
    assert.deepEqual(statement(round(none), 1, formula), [["path probability", "drafter 0.4, target 0.2"]]);
  }
  assert.deepEqual(statement(round(null), 0, formula), [], "on the first level p and q already say it");
  assert.deepEqual(statement(round(null), 2, formula), [], "a probability on the path is missing");
  assert.equal(pathProduct(round(null), "q", 2), null);
});
