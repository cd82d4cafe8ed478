import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { atTemperature, recorded, residual, testAgain, withProbability } from "./retest.js";

test("the residual after a rejection: q is weighted by its share", () => {
  const rows = [
    { r: 0.5, q: 0.1 },
    { r: 0.3, q: 0.4 },
    { r: 0.2, q: 0.5 },
  ];
  const rest = { r: 0, q: 0 };
  assert.deepEqual(residual(rows, rest, "excess", 1), { rows: [1, 0, 0], rest: 0 });
  const half = residual(rows, rest, "excess", 1, 0.5); // 0.45, 0.1, 0
  assert.ok(Math.abs(half.rows[0] - 9 / 11) < 1e-12 && Math.abs(half.rows[1] - 2 / 11) < 1e-12);
  assert.equal(half.rows[2], 0);
});

test("a distribution at its recorded temperature is unchanged, also at 0", () => {
  assert.deepEqual(atTemperature([0.29, 0.5, null], 0.01, 0, 0).known, [0.29, 0.5, null], "not .00, since .29 is larger");
  assert.ok(Math.abs(atTemperature([0.29, 0.5, null], 0.01, 0, 0).rest - 0.21) < 1e-12);
  assert.deepEqual(atTemperature([0.29, 0.5, null], 0.01, 0.7, 0), { known: [0, 1, null], rest: 0 }, "at 0 it is greedy");
});

test("a changed probability leaves the proportions of the others and the total mass", () => {
  const changed = withProbability([0.5, null, 0.3], 0, 0.8);
  assert.equal(changed[0], 0.8);
  assert.equal(changed[1], null);
  assert.ok(Math.abs(changed[2] - 0.12) < 1e-12);
  assert.deepEqual(withProbability([1, 0], 0, 0.4), [0.4, 0]);
});

test("a node whose q is moved to its p is accepted with certainty", () => {
  const { header, rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url)));
  const round = rounds.find((r) => r.nodes.status.includes("rejected")), node = round.nodes.status.indexOf("rejected");
  const start = recorded(round, node, header.rules[round.nodes.rule[node]]), token = round.nodes.tokens[node];
  const before = testAgain(round, node, header.rules, start), p = before.rows.find((row) => row.own).p;
  const after = testAgain(round, node, header.rules, { ...start, changes: [{ which: "q", token, value: p }] });
  assert.ok(before.accept < 1);
  assert.ok(Math.abs(after.accept - 1) < 1e-9);
  assert.equal(after.asRecorded, false);
});
