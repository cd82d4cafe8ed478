import assert from "node:assert/strict";
import { test } from "node:test";
import { estimate, figure, ofRuns, sentence, speedup, tQuantile, verdict } from "./speedup.js";

const near = (a, b, tolerance = 1e-9) => assert.ok(Math.abs(a - b) < tolerance, `${a} is not ${b}`);

test("Student's quantiles are those of the tables", () => {
  for (const [freedom, t] of [
    [1, 12.7062],
    [2, 4.3027],
    [3, 3.1824],
    [9, 2.2622],
    [30, 2.0423],
    [120, 1.9799],
  ])
    near(tQuantile(freedom), t, 5e-5);
  near(tQuantile(5, 0.99), 4.0321, 5e-5);
});

test("A over B is the reciprocal of B over A, including the interval", () => {
  const ratios = [
      [1.2, 1.4],
      [0.8, 0.9],
      [2, 1.9],
    ],
    there = estimate(ratios),
    back = estimate(ratios.map((own) => own.map((r) => 1 / r)));
  near(there.value * back.value, 1);
  near(there.low * back.high, 1);
});

test("no verdict from one run, two runs, or an interval that contains 1×", () => {
  assert.equal(sentence(estimate([[1.5]])), "1.50×: one run");
  assert.equal(sentence(estimate([[1.5, 1.6]])), "1.55×: 2 runs");
  assert.match(
    sentence(estimate([[0.7, 1.5, 1.1, 1.0]])),
    /^1\.04×: no significant difference yet \(0\.\d\d–1\.\d\d×, n = 4, this prompt only\)$/,
  );
  assert.equal(verdict(estimate([[1.5, 1.52, 1.51]])), "faster");
  assert.equal(verdict(estimate([[0.5], [0.52], [0.51]])), "slower");
  assert.equal(estimate([]), null);
});

test("runs are paired by prompt and repeat; unpaired runs are left out", () => {
  const run = (prompt, repeat, rate) => ({ prompt, repeat, rate });
  const found = speedup([run(0, 0, 30), run(0, 1, 60), run(1, 0, 9)], [run(0, 1, 20), run(0, 0, 10)]);
  near(found.value, 3);
  assert.deepEqual([found.n, found.prompts, found.low], [2, 1, null]);
});

test("the key figure is labelled “one run”, with the number of stalled rounds", () => {
  const known = { mine: 300, plain: 600, none: "" };
  assert.deepEqual(figure(known), {
    value: "0.50×",
    unit: "",
    label: "one run",
    worked: "300.0 / 600.0 tokens per second; one pair of runs is not enough for a verdict",
  });
  assert.equal(figure({ ...known, stalled: "3 rounds stalled" }).label, "one run, 3 rounds stalled");
  assert.equal(figure({ ...known, plain: null, none: "no baseline yet" }).label, "speed-up: no baseline");
  assert.equal(figure({ ...known, plain: null, none: "baseline invalid: x" }).label, "speed-up: baseline invalid");
  assert.match(figure({ ...known, plain: null, none: "two runs share" }).label, /run one drafter alone/);
});

test("pairs of runs replace the single run; there is a verdict once the interval excludes 1×", () => {
  const known = { mine: 300, plain: 600, none: "" },
    of = (ratios) => figure({ ...known, measured: estimate([ratios]) });
  assert.equal(of([1.2]).label, "one run");
  assert.equal(of([1.2, 1.3]).label, "2 runs");
  assert.deepEqual(
    [of([0.8, 1.2, 1.1]).label, of([1.5, 1.52, 1.51]).label],
    ["no significant difference yet, n = 3 pairs of runs", "faster, n = 3 pairs of runs"],
  );
  assert.match(of([1.5, 1.52, 1.51]).unit, /^1\.4\d–1\.5\d×$/);
  assert.match(of([1.5, 1.52, 1.51]).worked, /^1\.51×: faster on this prompt \(.*n = 3\)$/, "one figure, not also that of the run");
});

test("a lane's rate excludes the prefill; without a decoding time, the whole time counts", () => {
  const run = (seconds, decode_seconds) => [{ prompt: 0, repeat: 0, token_ids: [1, 2, 3, 4], seconds, decode_seconds }];
  near(ofRuns(run(9, 1), run(9, 2)).value, 2);
  near(ofRuns(run(3, null), run(9, null)).value, 3);
});
