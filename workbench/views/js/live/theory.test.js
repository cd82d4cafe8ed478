import assert from "node:assert/strict";
import { test } from "node:test";
import { acceptedProbs, bestDepth, expectedTau, overlay, tauByPosition, words } from "./theory.js";

const near = (a, b, tolerance = 5e-5) => assert.ok(Math.abs(a - b) < tolerance, `${a} is not ${b}`);
const round = (accepted, drafted) => ({
  nodes: {
    depth: Array.from({ length: drafted }, (_, i) => i + 1),
    parents: Array.from({ length: drafted }, (_, i) => i - 1),
  },
  path: Array.from({ length: accepted }, (_, i) => i),
  emitted: Array(accepted + 1).fill({}),
  seconds: 0.012 + 0.001 * drafted,
  draft_s: 0.0005 * drafted,
  verify_s: 0.01 + 0.0005 * drafted,
  overhead_s: 0.002,
});

test("the geometric formula and its distribution", () => {
  for (const [rate, values] of [
    [0.5, [1.5, 1.875, 1.9688, 1.9961]],
    [0.7, [1.7, 2.533, 2.9412, 3.1988]],
    [0.9, [1.9, 3.439, 4.6856, 6.1258]],
  ])
    [1, 3, 5, 8].forEach((depth, i) => near(expectedTau(rate, depth), values[i], 6e-5));
  near(tauByPosition([0.7, 0.7, 0.7]), 2.533);
  assert.equal(expectedTau(1, 4), 5);
  assert.deepEqual(acceptedProbs([0.5, 0.5]), [0.5, 0.25, 0.25]);
});

test("the best draft lengths match the method cards", () => {
  for (const [rate, level, depth, speedup] of [
    [0.8, 0.05, 8, 3.0921],
    [0.7, 0.1, 4, 1.9808],
    [0.9, 0.02, 19, 6.3654],
  ]) {
    const best = bestDepth([rate], { level, verify: 1, node: 0, other: 0 }, rate);
    assert.equal(best.depth, depth);
    near(best.speedup, speedup);
  }
  assert.equal(bestDepth([0.3], { level: 0.5, verify: 1, node: 0, other: 0 }, 0.3).depth, 0);
});

test("the overlay of a run: predictions, expected counts with the right sum, a sentence", () => {
  const rounds = [round(4, 4), round(1, 4), round(0, 4), round(3, 4), round(2, 4)],
    byDepth = [
      [5, 4],
      [4, 3],
      [3, 2],
      [2, 1],
    ].map(([tested, accepted], i) => ({ depth: i + 1, tested, accepted }));
  const found = overlay(rounds, null, byDepth);
  assert.equal(found.tau, 3);
  near(found.tauByPosition, tauByPosition([4 / 5, 3 / 4, 2 / 3, 1 / 2]));
  near(found.tauIid, expectedTau(10 / 14, 4));
  near(found.counts.reduce((a, b) => a + b, 0), 5);
  assert.equal(found.best, null);
  assert.match(words(found), /^measured τ 3\.00; predicted 3\.00 from the rates by position, 2\.\d\d if every draft were equally likely to be accepted$/);
  const plain = Array.from({ length: 8 }, () => round(0, 0));
  assert.ok(overlay(rounds, plain, byDepth).best.depth >= 1);
  assert.match(words(overlay(rounds, plain, byDepth)), /at the measured costs, \d+ draft levels would be fastest$/);
});

test("no tested drafts: no overlay", () => {
  assert.equal(overlay([round(0, 0)], null, []), null);
  assert.equal(words(null), "");
});
