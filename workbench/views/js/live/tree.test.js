import assert from "node:assert/strict";
import { test } from "node:test";
import { radii } from "./tree.js";

test("the ring grows with q and the disc with p, both by area", () => {
  const at = (q, p) => radii({ kind: "accepted", q, p });
  assert.ok(at(0.9, 0.5).ring > at(0.1, 0.5).ring);
  assert.ok(Math.abs(at(0.5, 0.8).disc ** 2 / at(0.5, 0.2).disc ** 2 - 4) < 1e-9);
  assert.equal(at(1, 1).ring, at(1, 1).disc, "probability 1 fills the ring");
  assert.equal(at(null, 0.3).ring, at(1, 0.3).ring, "a deterministic draft has q = 1");
});

test("a node that is being verified does not show p", () => {
  assert.equal(radii({ kind: "pending", q: 0.5, p: 0.9 }).disc, 0);
  assert.equal(radii({ kind: "bonus", q: null, p: 0.9 }).disc, 0, "shapes of the target's own tokens stay");
});
