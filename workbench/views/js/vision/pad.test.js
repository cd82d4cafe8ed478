import assert from "node:assert/strict";
import { test } from "node:test";
import { SHAPES, corners, describe, where } from "./pad.js";

test("the corners of every shape are inside its box, and span it", () => {
  for (const shape of [...SHAPES]) {
    const points = corners(shape), xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
    assert.ok(points.length >= 3, shape);
    assert.ok(Math.max(...xs, ...ys) <= 1.001 && Math.min(...xs, ...ys) >= -1.001, shape);
    assert.ok(Math.max(...ys) - Math.min(...ys) > 1.6, shape);
  }
});

test("a sketch is described in the vocabulary of the captions", () => {
  assert.equal(where(0.5, 0.5), "middle");
  assert.equal(where(1, 0), "top right");
  assert.equal(describe([]), "An empty sketch.");
  const stamp = { shape: "circle", colour: "red", size: "large", x: 0.1, y: 0.9 };
  assert.equal(
    describe([stamp, { points: [[0, 0]] }]),
    "A sketch: large red circle at the bottom left, 1 pen stroke.",
  );
});
