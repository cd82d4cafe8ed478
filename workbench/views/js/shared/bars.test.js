import assert from "node:assert/strict";
import { test } from "node:test";
import { above, layout, overlayPaths } from "./bars.js";

test("heights are proportional, and the largest bar fills the height", () => {
  const [a, b] = layout([{ value: 2, part: 1 }, { value: 4 }], 4, 300);
  assert.equal(a.height * 2, b.height);
  assert.equal(a.part * 2, a.height);
  assert.equal(b.part, 0);
});

test("bars stay inside the drawing, however many there are", () => {
  const drawn = layout(Array.from({ length: 40 }, () => ({ value: 1 })), 1, 280);
  assert.ok(drawn.at(-1).x + drawn.at(-1).width <= 280);
});

test("an empty maximum draws nothing", () => {
  assert.equal(layout([{ value: 0 }], 0, 280)[0].height, 0);
});

test("the overlay passes the middle of every bar at its own value", () => {
  const placed = layout([{ value: 1 }, { value: 2 }], 2, 280),
    { line, marks } = overlayPaths([2, 1], placed, (v) => 100 - v);
  const middle = (b) => (b.x + b.width / 2).toFixed(1);
  assert.equal(line, `M${middle(placed[0])} 98.0L${middle(placed[1])} 99.0`);
  assert.equal(marks.match(/z/g).length, 2);
  assert.deepEqual(overlayPaths([], placed, (v) => v), { line: "", marks: "" });
  assert.equal(overlayPaths([1, 1, 1], placed, (v) => v).marks.match(/z/g).length, 2);
});

test("a bar's number is above its interval", () => {
  assert.equal(above(80, 40), 35);
  assert.ok(above(80, 20) + 2 < 20, "also for the highest interval");
  assert.equal(above(80, 80), 75);
});

test("a bar's number moves above a theory mark that would cover it, otherwise it stays", () => {
  assert.equal(above(80, 80, 72), 63);
  assert.equal(above(80, 80, 84), 75, "the mark touches the top of the bar");
  assert.equal(above(80, 80, 40), 75, "far above");
  assert.equal(above(80, 80, 120), 75, "inside the bar");
});
