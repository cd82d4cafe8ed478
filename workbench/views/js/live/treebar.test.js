import assert from "node:assert/strict";
import { test } from "node:test";
import { grid, words } from "./treebar.js";

test("the overview has one bar per drafted node, one column per level, and a limited height", () => {
  const nodes = new Map([
    [-1, { depth: 0, kind: "root" }],
    ["target", { depth: 2, kind: "bonus" }],
    ...Array.from({ length: 64 }, (_, i) => [i, { depth: 1, kind: "discarded" }]),
    [64, { depth: 2, kind: "accepted" }],
  ]);
  const { cells, columns, pitch } = grid({ nodes });
  assert.equal(cells.length, 65);
  assert.equal(columns, 2);
  assert.ok(64 * pitch <= 40);
  assert.equal(new Set(cells.map((c) => `${c.column}/${c.row}`)).size, 65);
});

test("the legend explains the rings if there are two drafters", () => {
  assert.match(words(["draft-model", "store"]), /dashed outer ring: drafted by store · solid outer ring: by both$/);
  assert.doesNotMatch(words([]), /outer ring/);
});
