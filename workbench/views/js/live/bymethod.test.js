import assert from "node:assert/strict";
import { test } from "node:test";
import { rows } from "./bymethod.js";
import { treeTitle } from "./stage.js";

const figures = {
  tokens: 9,
  rounds: 3,
  tau: 3,
  tested: 8,
  accepted: 6,
  acceptance_rate: 0.75,
  tokens_per_second: 45,
  seconds: 0.2,
};

test("the table has one row per segment, and one for the whole run", () => {
  const plain = { ...figures, tokens: 2, rounds: 1, tau: 2, tested: 0, accepted: 0, acceptance_rate: null };
  const list = rows(
    [{ name: "Draft model", from: 0, to: 2, figures }, { name: "Autoregressive", from: 3, to: 3, figures: plain }],
    { ...figures, rounds: 4 },
  );
  assert.deepEqual(list[0], ["Draft model", "1–3", "9", "3.00", "75 % (6/8)", "45", "66.7"]);
  assert.deepEqual(list[1].slice(0, 5), ["Autoregressive", "4", "2", "2.00", "–"]);
  assert.deepEqual(list[2].slice(0, 2), ["whole run", "1–4"]);
});

test("the title of the tree names the method that drafted its round", () => {
  const title = (name) => (name === "draft-tree" ? "Draft tree, top-k" : name);
  assert.equal(treeTitle({ index: 11, method: "draft-tree" }, title), "Draft tree, round 12: Draft tree, top-k");
  assert.equal(treeTitle(null), "Draft tree");
});
