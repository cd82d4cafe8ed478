import assert from "node:assert/strict";
import { test } from "node:test";
import { neighbour, placeLabels, scale } from "./scatter.js";

const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9, `${a} ≠ ${b}`);

test("a linear axis begins and ends at a tick and includes all values", () => {
  const axis = scale([1.2, 3.4], { from: 1 });
  assert.ok(axis.from <= 1 && axis.to >= 3.4);
  near(axis.ticks[0], axis.from);
  near(axis.ticks.at(-1), axis.to);
  near(axis.share(axis.from), 0);
  near(axis.share(axis.to), 1);
});

test("on a logarithmic axis equal ratios have equal distances; values that are not above 0 are left out", () => {
  const axis = scale([0.5, 2, 0, -3, NaN], { log: true, line: 1 });
  near(axis.share(2) - axis.share(1), axis.share(1) - axis.share(0.5));
  assert.ok(axis.from > 0 && axis.from < 0.5 && axis.to > 2);
  assert.ok(axis.ticks.includes(1) && axis.ticks.every((tick) => tick >= axis.from && tick <= axis.to));
  assert.deepEqual(axis.ticks, [...axis.ticks].sort((a, b) => a - b));
});

test("axes without values or with one value have a range", () => {
  for (const axis of [scale([], {}), scale([], { log: true }), scale([3], {}), scale([3], { log: true })])
    assert.ok(axis.to > axis.from && Number.isFinite(axis.share((axis.from + axis.to) / 2)));
});

test("labels cover neither dots nor each other, and stay inside", () => {
  const box = { left: 0, right: 300, top: 0, bottom: 200 };
  const [first, second] = placeLabels([{ x: 50, y: 50, label: "alpha" }, { x: 70, y: 50, label: "beta" }], box);
  assert.equal(first.anchor, "end", "the other dot is on its right");
  assert.equal(second.anchor, "start");
  const [edge] = placeLabels([{ x: 295, y: 50, label: "a long name" }], box);
  assert.equal(edge.anchor, "end");
  const crowd = Array.from({ length: 9 }, (_, i) => ({ x: 150 + (i % 3), y: 100 + Math.floor(i / 3), label: "a name" }));
  assert.ok(placeLabels(crowd, box).filter(Boolean).length < 9, "labels without room are left out");
});

test("arrow keys go to the nearest dot in their direction", () => {
  const dots = [{ x: 0, y: 0 }, { x: 10, y: 1 }, { x: 5, y: 40 }, { x: -10, y: 0 }];
  assert.equal(neighbour(dots, 0, [1, 0]), 1);
  assert.equal(neighbour(dots, 0, [-1, 0]), 3);
  assert.equal(neighbour(dots, 0, [0, 1]), 2);
  assert.equal(neighbour(dots, 1, [1, 0]), 1, "there is none");
});
