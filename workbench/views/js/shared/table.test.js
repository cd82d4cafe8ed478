import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as figures from "./figures.js";
import { TABLES } from "./table.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/switch.json", import.meta.url)));

test("every row of a table has as many cells as its head, also without rounds", () => {
  for (const make of Object.values(TABLES)) {
    for (const list of [rounds, []]) {
      const { head, rows } = make(list, figures);
      rows.forEach((row) => assert.equal(row.length, head.length));
    }
  }
});

test("the change is at its round", () => {
  const { rows } = TABLES.curve(rounds, figures);
  assert.deepEqual(rows.filter((row) => row[3]).map((row) => [row[0], row[3]]), [[7, "depth 2 → 5"]]);
});
