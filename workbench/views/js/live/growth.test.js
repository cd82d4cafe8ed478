import assert from "node:assert/strict";
import { test } from "node:test";
import * as formula from "./formula.js";
import { along, brief, grownBy, statement } from "./growth.js";

const rules = [
  { name: "eagle-2", title: "Ranked", says: "It was ranked.", before: "when offered", after: "among all" },
  { name: "plain", title: "Plain", says: "It is there.", before: "", after: "" },
];
const round = (grown) => ({
  grown,
  nodes: { parents: [-1, 0, 0], p: [0.5, 0.4, 0.1], q: [0.8, 0.5, null] },
});

test("a node names the rule that put it there, with its value before and after in the rule's own words", () => {
  const told = round({ rules, of: [], before: [1, 2, 9], after: [1, 0.254, 2] });
  assert.deepEqual(statement(told, 1, formula), [
    ["grown by", "eagle-2: Ranked"],
    ["worth", "2 (when offered) → 0.25 (among all)"],
    ["its path", "0.4 by the drafter → 0.2 by the target"],
    ["why there", "It was ranked."],
  ]);
  assert.equal(brief(told, 2, formula), "grown by eagle-2, 9 → 2");
});

test("each node has its own rule where there are several, and no value that its rule has no words for", () => {
  const told = round({ rules, of: [0, 1, 0], before: [1, 2, null], after: [] });
  assert.deepEqual(grownBy(told, 1), { rule: rules[1], before: null, after: null });
  assert.deepEqual(grownBy(told, 2), { rule: rules[0], before: null, after: null });
  assert.equal(brief(told, 1, formula), "grown by plain");
});

test("a trace that says nothing of its growth still says what its path was worth to drafter and target", () => {
  for (const none of [undefined, null, {}, { rules: [] }, { rules: "?" }, { rules, of: [7, 7, 7] }]) {
    assert.equal(brief(round(none), 1, formula), "");
    assert.deepEqual(statement(round(none), 1, formula), [["its path", "0.4 by the drafter → 0.2 by the target"]]);
  }
  assert.deepEqual(statement(round(null), 0, formula), [], "of the first level p and q say it");
  assert.deepEqual(statement(round(null), 2, formula), [], "a chance on it is not known");
  assert.equal(along(round(null), "q", 2), null);
});
