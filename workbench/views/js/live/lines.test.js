import assert from "node:assert/strict";
import { test } from "node:test";
import { ceiling, line, place, placeBands, thin } from "./lines.js";

test("a missing value interrupts the line", () => {
  const d = line([[0, 1], [1, null], [2, 0], [3, 1]], (x) => x, (y) => y);
  assert.equal(d, "M0.0 1.0M2.0 0.0L3.0 1.0");
});

test("labels of distant marks are in one row, uncut; labels of near marks are cut, and none overlaps or is left out", () => {
  const marks = [0, 1, 2, 3].map((index) => ({ index, text: "depth 2 → 5" })), far = place(marks, (i) => 120 * i, 900);
  assert.deepEqual(far.map((m) => [m.row, m.label]), marks.map((m) => [0, m.text]));
  const two = place(marks.slice(0, 2), (i) => 40 + 40 * i, 500);
  assert.deepEqual(
    two.map((m) => [m.row, m.label]),
    [
      [0, "depth 2 → 5"],
      [1, "depth 2 → 5"],
    ],
    "a second row is used before labels are cut",
  );
  for (const [step, width, n] of [[10, 500, 4], [0, 240, 6], [3, 240, 8], [40, 400, 9], [29, 300, 10]]) {
    const placed = place(
      Array.from({ length: n }, (_, index) => ({ index, text: "draft-model → draft-tree" })),
      (i) => Math.min(width, 30 + step * i),
      width,
    );
    assert.ok(placed.every((m) => m.label.length > 0), "every change has a label");
    for (const row of [0, 1]) {
      const boxes = placed.filter((m) => m.row === row).map((m) => [m.start, m.start + 6.1 * m.label.length]);
      boxes.forEach(([start, end], k) =>
        assert.ok(start >= (k ? boxes[k - 1][1] : 0) && end <= width, `${step} ${width}: ${JSON.stringify(boxes)}`),
      );
    }
  }
});

test("a label at the right border extends to the left", () => {
  const [only] = place([{ index: 0, text: "depth 2 → 5" }], () => 480, 500);
  assert.deepEqual([only.label, only.start < 480], ["depth 2 → 5", true]);
});

test("thinning keeps the minimum and maximum of each group, in order", () => {
  const points = Array.from({ length: 1000 }, (_, i) => [i, i === 500 ? 9 : i % 2]), thinned = thin(points, 100);
  assert.ok(thinned.length <= 110);
  assert.ok(thinned.some(([, v]) => v === 9), "the single peak is kept");
  assert.ok(thinned.every(([x], i) => i === 0 || x > thinned[i - 1][0]));
  assert.equal(thin(points, 2000), points);
});

test("an axis ends at a round number above its values", () => {
  assert.deepEqual([ceiling(203), ceiling(9.1), ceiling(1), ceiling(0)], [300, 10, 1, 1]);
});

test("method bands adjoin, and a name that does not fit is cut or left out", () => {
  const bands = [
    { name: "Draft model", from: 0, to: 9 },
    { name: "Draft tree, sampled", from: 10, to: 14 },
    { name: "Autoregressive", from: 15, to: 16 },
  ];
  const placed = placeBands(bands, (i) => 10 * i);
  assert.deepEqual(placed.map((b) => [b.start, b.end]), [[0, 100], [100, 150], [150, 160]]);
  assert.deepEqual(placed.map((b) => b.label), ["Draft model", "Draft …", ""]);
});
