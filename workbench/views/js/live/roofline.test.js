import assert from "node:assert/strict";
import { test } from "node:test";
import { powers, series, table, withUnit, words } from "./roofline.js";

const RATES = { device: "cpu", dtype: "float32", bytes_per_second: 1e10, flops_per_second: 8e10, ridge: 8 };
const pass = (tokens, rounds, intensity, reached) => {
  const roof = Math.min(8e10, 1e10 * intensity), limit = intensity < 8 ? "memory" : "arithmetic";
  const work = { flops: 5e7 * intensity, n_bytes: 5e7, seconds: 0.01 };
  return { tokens, rounds, context: 40, ...work, intensity, limit, reached, roof };
};
const PLAIN = pass(1, 1, 0.5, 4e9);
const PASSES = [PLAIN, pass(5, 9, 2.5, 1e10), pass(20, 3, 10, null)];
const FOUND = { rates: RATES, is_timed_here: true, plain: PLAIN, passes: PASSES };

test("numbers have three digits and a prefix", () => {
  assert.equal(withUnit(7.3983e10, "FLOP/s"), "74 GFLOP/s");
  assert.equal(withUnit(1234, "B"), "1.23 kB");
  assert.equal(withUnit(0.5, "B"), "0.5 B");
});

test("the roof rises to the ridge and is flat after it; a pass without a time lies on it", () => {
  const [roof, run, plain] = series(FOUND, 0.1, 100);
  assert.deepEqual(roof.points.map(([x, y]) => [x, Number(y.toFixed(4))]), [[0.1, 9], [8, 10.9031], [100, 10.9031]]);
  assert.deepEqual(run.points.map(([x, y]) => [x, Number(y.toFixed(4))]), [[2.5, 10], [10, 10.9031]]);
  assert.deepEqual(plain.points.map(([x, y]) => [x, Number(y.toFixed(4))]), [[0.5, 9.6021]]);
});

test("an axis covers its values with whole powers of ten", () => {
  assert.deepEqual(powers([0.5, 16], "", false), { from: 0.1, to: 100, ticks: [{ at: 0.1, text: "0.1" }, { at: 1, text: "1" }, { at: 10, text: "10" }, { at: 100, text: "100" }] });
  assert.deepEqual(powers([9.2, 9.9], "FLOP/s", true), { from: 9, to: 10, ticks: [{ at: 9, text: "1 GFLOP/s" }, { at: 10, text: "10 GFLOP/s" }] });
});

test("a sentence says what limits the passes, counted by rounds", () => {
  assert.match(words(FOUND), /^10 of 13 target passes of this run are limited by memory, 3 by arithmetic; a plain pass \(1 token, 0\.5 FLOP\/byte\) is limited by memory\. A large copy moves 10 GB\/s and a float32 matrix product reaches 80 GFLOP\/s on this cpu, so the limit changes from memory to arithmetic at 8 FLOP\/byte\./);
  assert.match(words({ ...FOUND, passes: [pass(5, 9, 2.5, 1e10)] }), /^All 9 target passes of this run are limited by memory;/);
  assert.match(words({ ...FOUND, passes: [pass(20, 1, 10, 1e10)] }), /^The only target pass of this run is limited by arithmetic;/);
  assert.doesNotMatch(words(FOUND), /caches|on the roof/);
  assert.match(words({ ...FOUND, is_timed_here: false }), /drawn on the roof, not at their measured speed\.$/);
  assert.match(words({ ...FOUND, passes: [pass(5, 9, 2.5, 3e10)] }), /processor's caches are not read from memory\.$/);
});

test("the table has a computed plain pass if the run has none", () => {
  assert.deepEqual(table(FOUND).rows.map((row) => row.slice(0, 2)), [[1, 1], [5, 9], [20, 3]]);
  const computed = { ...FOUND, plain: pass(1, 0, 0.5, null), passes: [pass(5, 9, 2.5, 1e10)] };
  assert.deepEqual(table(computed).rows, [
    [1, "computed", 40, "25 MFLOP", "50 MB", "0.50", "memory", "–", "–", "5 GFLOP/s"],
    [5, 9, 40, "125 MFLOP", "50 MB", "2.50", "memory", "10.00", "10 GFLOP/s", "25 GFLOP/s"],
  ]);
});
