import assert from "node:assert/strict";
import { test } from "node:test";
import { axis, exact, hollow, marked, spread, STYLES } from "./chart.js";

test("names at line ends do not overlap, and stay inside the drawing", () => {
  assert.deepEqual(spread([50, 90], 12, 180), [50, 90]);
  const close = spread([100, 101, 99], 12, 180);
  const sorted = [...close].sort((a, b) => a - b);
  assert.ok(sorted[1] - sorted[0] >= 13 && sorted[2] - sorted[1] >= 13, `${close}`);
  assert.ok(close[2] < close[0] && close[0] < close[1], "in the order of the lines");
  assert.ok(Math.max(...spread([179, 180, 178], 12, 180)) <= 180);
});

test("an axis ends at a round value above the maximum, or at the given top", () => {
  assert.equal(axis([0.2, 7.3], null).max, 8);
  assert.deepEqual(axis([0.4], 1).ticks, [0, 0.25, 0.5, 0.75, 1]);
  assert.equal(axis([], null, 1).max, 1.5);
  assert.equal(axis([1.2, 2.2], null, 1).ticks[0], 1);
});

test("evenly spaced values print evenly spaced", () => {
  const { ticks } = axis([1.2, 2.2], 1.5, 1);
  assert.deepEqual(ticks.map((v) => v.toFixed(exact(ticks, 1))), ["1.000", "1.125", "1.250", "1.375", "1.500"]);
  assert.equal(exact([0, 2.5, 5], 1), 1);
});

test("all coordinates of a mark are moved", () => {
  assert.equal(marked("-3 -3h6v6h-6z", 10, 20), "M7.0 17.0h6v6h-6z");
});

test("curves of one colour differ in their marks", () => {
  assert.deepEqual([0, 3, STYLES, 7].map((style) => hollow({ style })), [false, false, true, true]);
  assert.ok(hollow({ style: 0, dashed: true }), "next to its solid counterpart");
});
