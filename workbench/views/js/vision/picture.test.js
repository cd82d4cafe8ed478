import assert from "node:assert/strict";
import { test } from "node:test";
import { between, layers, neighbour, outline } from "./picture.js";

test("the keys stay inside the image", () => {
  assert.equal(neighbour(0, "ArrowLeft", 2, 3), 0);
  assert.equal(neighbour(0, "ArrowDown", 2, 3), 3);
  assert.equal(neighbour(4, "End", 2, 3), 5);
  assert.equal(neighbour(5, "PageUp", 2, 3), 0);
  assert.equal(neighbour(2, "ArrowRight", 2, 3), 2);
});

test("a fast stroke has no gaps", () => {
  assert.deepEqual(between(0, 3, 4), [0, 1, 2, 3]);
  assert.deepEqual(between(0, 15, 4), [0, 5, 10, 15]);
  assert.deepEqual(between(12, 1, 4).length, 4);
  assert.deepEqual(between(5, 5, 4), [5]);
});

test("a block is outlined as one, without inner lines", () => {
  assert.equal(outline([0], 2, 1), "M0 0h1M0 1h1M0 0v1M1 0v1");
  assert.equal(outline([0, 1], 2, 1).match(/v/g).length, 2, "no line between two adjacent patches");
  assert.equal(outline([1, 2], 2, 1).match(/v/g).length, 4, "the end of a row is not adjacent to the start of the next");
});

test("dropped patches are veiled, an unused image completely, and heat is drawn over both", () => {
  const of = (more) => layers({ rows: 1, cols: 3, kept: null, blocks: null, none: false, heat: null, ...more });
  assert.deepEqual(of({}).veil, [0, 0, 0]);
  assert.deepEqual(of({ kept: [1] }).veil.map(Boolean), [true, false, true]);
  assert.deepEqual(of({ kept: [1] }).groups, [[1]]);
  assert.ok(of({ none: true }).veil.every((v) => v > 0.9));
  assert.deepEqual(of({ heat: [0, 0.5, 2] }).heat.map((v) => v.toFixed(2)), ["0.00", "0.41", "0.82"]);
  assert.deepEqual(of({ blocks: [[0, 1], [2]] }).groups, [[0, 1], [2]]);
});
