import assert from "node:assert/strict";
import { test } from "node:test";
import { atTemperature, residual } from "./retest.js";

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
