import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { rows, squares } from "./mask.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/tree.json", import.meta.url)));

test("a node attends only to itself and its ancestors", () => {
  for (const { nodes } of rounds) {
    const seen = rows(nodes.parents);
    nodes.parents.forEach((parent, i) => {
      const line = [];
      for (let j = i; j >= 0; j = nodes.parents[j]) line.unshift(j);
      assert.deepEqual(seen[i], line);
      assert.equal(seen[i].length, nodes.depth[i]);
    });
  }
});

test("there is one square for each column", () => {
  assert.equal(squares([0, 3], 1, 10), "M0 10h9v9h-9ZM30 10h9v9h-9Z");
});
