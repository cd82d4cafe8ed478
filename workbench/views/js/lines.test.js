import assert from "node:assert/strict";
import { test } from "node:test";
import { ceiling, line, place, thin } from "./lines.js";

test("a value that does not exist leaves a hole in the line", () => {
  const d = line([[0, 1], [1, null], [2, 0], [3, 1]], (x) => x, (y) => y);
  assert.equal(d, "M0.0 1.0M2.0 0.0L3.0 1.0");
});

test("labels of near marks go to different rows, and are dropped when there is no room", () => {
  const marks = [0, 1, 2, 3].map((index) => ({ index, text: "depth 2 → 5" }));
  assert.deepEqual(place(marks, (i) => 10 * i, 500).map((m) => m.row), [0, 1, null, null]);
  assert.deepEqual(place(marks, (i) => 120 * i, 900).map((m) => m.row), [0, 0, 0, 0]);
});

test("a label that would leave the drawing turns to the left", () => {
  assert.equal(place([{ index: 0, text: "depth 2 → 5" }], () => 480, 500)[0].left, true);
});

test("thinning keeps the lowest and the highest of every stretch, in order", () => {
  const points = Array.from({ length: 1000 }, (_, i) => [i, i === 500 ? 9 : i % 2]), kept = thin(points, 100);
  assert.ok(kept.length <= 110);
  assert.ok(kept.some(([, v]) => v === 9), "the one peak is there");
  assert.ok(kept.every(([x], i) => i === 0 || x > kept[i - 1][0]));
  assert.equal(thin(points, 2000), points);
});

test("an axis ends at a round number above its values", () => {
  assert.deepEqual([ceiling(203), ceiling(9.1), ceiling(1), ceiling(0)], [300, 10, 1, 1]);
});
