import assert from "node:assert/strict";
import { test } from "node:test";
import { estimate, sentence, speedup, tQuantile, verdict } from "./speedup.js";

const near = (a, b, tolerance = 1e-9) => assert.ok(Math.abs(a - b) < tolerance, `${a} is not ${b}`);

test("Student's quantiles are those of the tables", () => {
  for (const [freedom, t] of [[1, 12.7062], [2, 4.3027], [3, 3.1824], [9, 2.2622], [30, 2.0423], [120, 1.9799]]) near(tQuantile(freedom), t, 5e-5);
  near(tQuantile(5, 0.99), 4.0321, 5e-5);
});

test("A over B is one over B over A, interval and all", () => {
  const ratios = [[1.2, 1.4], [0.8, 0.9], [2, 1.9]], there = estimate(ratios), back = estimate(ratios.map((own) => own.map((r) => 1 / r)));
  near(there.value * back.value, 1);
  near(there.low * back.high, 1);
});

test("nothing is concluded from one run, two runs, or an interval that holds 1×", () => {
  assert.equal(sentence(estimate([[1.5]])), "1.50×: one run");
  assert.equal(sentence(estimate([[1.5, 1.6]])), "1.55×: 2 runs");
  assert.match(sentence(estimate([[0.7, 1.5, 1.1, 1.0]])), /^1\.04×: cannot be told yet \(0\.\d\d–1\.\d\d×, n = 4, this prompt only\)$/);
  assert.equal(verdict(estimate([[1.5, 1.52, 1.51]])), "faster");
  assert.equal(verdict(estimate([[0.5], [0.52], [0.51]])), "slower");
  assert.equal(estimate([]), null);
});

test("runs are paired by prompt and repeat; what one side lacks is left out", () => {
  const run = (prompt, repeat, rate) => ({ prompt, repeat, rate });
  const found = speedup([run(0, 0, 30), run(0, 1, 60), run(1, 0, 9)], [run(0, 1, 20), run(0, 0, 10)]);
  near(found.value, 3);
  assert.deepEqual([found.n, found.prompts, found.low], [2, 1, null]);
});
