import assert from "node:assert/strict";
import { test } from "node:test";

import { roundFacts } from "./card.js";
import { isCell, shares, tables, words } from "./cells.js";

const signals = {
  matchness: 0.5,
  "run [attention, 1]": 1,
  "run [attention, 2]": 0,
  "run [feed-forward, 2]": 1,
  "rate [exit 2, 0]": 0.125,
  "rate [exit 2, 1]": null,
};

test("signals that name a row and a column are cells of a table; the others are not", () => {
  assert.deepEqual(tables({ signals }), [
    { name: "run", rows: ["attention", "feed-forward"], columns: ["1", "2"], values: [[1, 0], [null, 1]] },
    { name: "rate", rows: ["exit 2"], columns: ["0", "1"], values: [[0.125, null]] },
  ]);
  assert.deepEqual(tables({ signals: { matchness: 0.5 } }), []);
  assert.deepEqual(tables(null), []);
  assert.equal(isCell("probability of a rejection (1 − ∏ p̂)"), false);
});

test("the minimum has shade 0, the maximum 1; equal values above 0 have shade 1", () => {
  assert.deepEqual(shares([[2, 4], [3, null]]), [[0, 1], [0.5, 0]]);
  assert.deepEqual(shares([[1, 1]]), [[1, 1]]);
  assert.deepEqual(shares([[0, 0]]), [[0, 0]]);
});

test("the description lists every cell; the card omits cells", () => {
  assert.equal(words(tables({ signals })[0]), "run: attention 1 0; feed-forward – 1");
  const round = { signals, notes: [], emitted: [], index: 0, method: "swift", seconds: 0, draft_s: 0, verify_s: 0 };
  const names = roundFacts({ ...round, overhead_s: 0, draft_forwards: 0, target_forwards: 1 }).map(([name]) => name);
  assert.deepEqual(names, ["method", "time", "forward passes", "matchness"]);
});
