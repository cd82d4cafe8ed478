import assert from "node:assert/strict";
import test from "node:test";
import { costBars, paysWords, reached, wrapped } from "./plots.js";
import { at, length, overflows, ratio, replay } from "./race.js";
import { busy, cells, announcement, recompute, signed } from "./table.js";
import { place, verdict } from "./text.js";
import * as speedup from "../shared/speedup.js";

const race = (ends, sizes) => ({
  seconds: ends.at(-1),
  rounds: ends.map((end, i) => [end, Array.from({ length: sizes[i] }, (_, k) => [`${i}.${k} `, "accepted"])]),
});
const plain = { name: "Plain", plain: true, race: [race([1, 2, 3, 4], [1, 1, 1, 1])] },
  fast = { name: "Fast", race: [race([0.5, 1], [3, 1])] };

test("a lane shows the tokens of the rounds that have ended", () => {
  assert.equal(at(plain.race[0], 0.99).tokens, 0);
  assert.equal(at(plain.race[0], 2).tokens, 2);
  assert.deepEqual(at(fast.race[0], 0.7, 2), {
    tokens: 3,
    of: 4,
    last: [
      ["0.1 ", "accepted"],
      ["0.2 ", "accepted"],
    ],
    ended: false,
    cut: true,
  });
  assert.ok(at(fast.race[0], 1).ended);
});

const estimate = (value, more = {}) => ({ value, low: value / 1.2, high: value * 1.2, n: 5, prompts: 1, ...more });

test("a race lasts as long as its slowest lane", () => assert.equal(length([plain, fast], 0), 4));

test("a race shows the speed-up of the replayed run, not the estimate over all prompts", () => {
  const lane = {
    name: "Fast",
    plain: false,
    figures: { speedup: estimate(2.316) },
    race: [{ ...fast.race[0], repeat: 1, speedup: 2.41 }],
  };
  assert.deepEqual(ratio(lane, 0), { value: 2.41, text: "2.41×", of: "this run" });
  const slow = { ...lane, figures: { speedup: estimate(1.89) }, race: [{ ...fast.race[0], speedup: 0.94 }] };
  assert.equal(ratio(slow, 0).text, "0.94×", "the slowest lane does not have the largest number");
  assert.equal(
    cells({ speedup: lane.figures.speedup, tau: 1, acceptance_rate: null, tokens_per_second: null }, null, speedup)[0]
      .text,
    "2.32",
  );
  assert.deepEqual(ratio({ ...plain, figures: { speedup: estimate(1) } }, 0), { value: 1, text: "1.00×", of: "reference" });
  assert.equal(ratio({ plain: false, figures: { speedup: null }, race: [null] }, 0).text, "–");
  assert.equal(
    replay([lane], 0, 5, "story"),
    "replay of repeat 2 of 5 on story, the repeat whose speed-ups are closest to those over all repeats",
  );
  assert.equal(replay([lane], 0, 1, "story"), "replayed: the only run on story");
});

test("no verdict while the interval contains 1×, or from two runs", () => {
  const words = (found) =>
      cells({ speedup: found, tau: 1, acceptance_rate: null, tokens_per_second: null }, null, speedup)[1],
    word = (found) => [words(found).text, words(found).delta].join(" ").trim();
  assert.equal(word(estimate(1.5)), "1.25–1.80× faster, n = 5, this prompt only");
  assert.equal(word(estimate(1.1)), "0.92–1.32× no significant difference yet, n = 5, this prompt only");
  assert.equal(word(estimate(1.5, { low: null, high: null, n: 2 })), "2 runs");
  assert.match(
    announcement(
      {
        last: true,
        comparison: { complete: true, lanes: [{ name: "Fast", plain: false, figures: { speedup: estimate(1.1) } }] },
      },
      speedup,
    ),
    /Fast 1\.10×: no significant difference yet/,
  );
});

test("figures of a schema 1 comparison are recomputed from its runs", () => {
  const run = (repeat, seconds) => ({ prompt: 0, repeat, token_ids: [1, 2, 3, 4], seconds, decode_seconds: seconds }),
    old = { median: 9, q1: 9, q3: 9, n: 2 };
  const lane = (name, times, more) => ({
    name,
    ...more,
    figures: { speedup: old, tokens_per_second: old },
    runs: times.map((s, i) => run(i, s)),
  });
  const [mine, theirs] = recompute(
    { schema: 1, lanes: [lane("Fast", [1, 4]), lane("Plain", [2, 2], { plain: true })] },
    speedup,
  ).lanes;
  assert.ok(Math.abs(mine.figures.speedup.value - 1) < 1e-12);
  assert.ok(Math.abs(theirs.figures.tokens_per_second.value - 2) < 1e-12);
});

test("figures of a comparison with pooled prompts are recomputed per prompt", () => {
  const run = (prompt, tokens, rounds, accepted, tested) => ({
    prompt, repeat: 0, token_ids: Array(tokens).fill(1), rounds, seconds: 1, decode_seconds: 1,
    figures: { accepted, tested },
  });
  const figures = { tau: 99, acceptance_rate: 0.99 },
    lane = { name: "Fast", figures, runs: [run(0, 40, 10, 9, 10), run(1, 10, 10, 1, 10), run(2, 20, 10, 0, 0)] },
    plain = { name: "Plain", plain: true, figures, runs: [0, 1, 2].map((i) => run(i, 10, 10, 0, 0)) };
  const [mine, theirs] = recompute({ schema: 2, lanes: [lane, plain] }, speedup).lanes;
  assert.ok(Math.abs(mine.figures.tau - 2) < 1e-12, "geometric mean of 4, 1 and 2");
  assert.ok(
    Math.abs(mine.figures.tau - mine.figures.speedup.value) < 1e-12,
    "a round takes as long as a plain token: τ is the speed-up",
  );
  assert.equal(mine.figures.acceptance_rate, 0.5, "a prompt without tested drafts is left out");
  assert.deepEqual([theirs.figures.tau, theirs.figures.acceptance_rate], [1, null]);
});

test("a measured point is where its curve has the measured speed-up", () => {
  const curve = [[0, 0.5], [0.5, 1], [1, 3]];
  assert.equal(reached(curve, 2), 0.75);
  assert.equal(reached(curve, 0.5), 0);
  assert.equal(reached(curve, 4), null);
  const pays = { always: false, break_even: 0.5, curve, acceptance: 0.2, predicted: 0.7 };
  const words = paysWords({ name: "L", pays, figures: { speedup: { value: 2 } } });
  assert.equal(words, "L pays off above an acceptance rate of 0.50; measured 2.00×, which corresponds to an acceptance rate of 0.75");
});

test("figures show their difference from the pinned lane", () => {
  const mine = { speedup: estimate(2), tau: 3, acceptance_rate: 0.8, tokens_per_second: estimate(100) };
  assert.deepEqual(cells(mine, null, speedup).map((c) => c.delta), ["", "faster, n = 5, this prompt only", "", "", ""]);
  assert.deepEqual(
    cells(
      mine,
      { speedup: estimate(1.5), tau: 3.25, acceptance_rate: null, tokens_per_second: estimate(100) },
      speedup,
    ).map((c) => c.delta),
    ["+0.50", "faster, n = 5, this prompt only", "−0.25", "", "±0"],
  );
  assert.equal(signed(-0.004, 2), "±0.00");
});

test("a divergence shows the target's margin; its verdict depends on the promise", () => {
  const first = {
    prompt: 0,
    at: 11,
    plain: { text: " the", p: 0.4 },
    other: { text: "\n", p: 0.39 },
    margin: 0.0253,
    rank: 2,
  };
  assert.match(
    place(first, ["story"]),
    /first difference at token 12 of story: plain decoding has “ the” \(p 0.400\), this lane “⏎” \(p 0.390\): the target's logits of the two tokens differ by 0.0253 nats/,
  );
  const lane = (promise, margin) => ({
    method: "x",
    exact: { kind: "diverges", promise, runs: 4, identical: 3, first: { ...first, margin } },
  });
  assert.match(verdict(lane("exact", 0.0253), ["story"]).why, /near tie/);
  assert.match(verdict(lane("exact", 1.2), ["story"]).why, /the texts should agree/);
  assert.match(verdict(lane("approximate", 1.2), ["story"]).why, /may differ/);
  assert.equal(verdict({ exact: { kind: "identical", promise: "exact", runs: 4, identical: 4 } }, []).mark, "✓");
  assert.match(
    verdict({ method: "x", exact: { kind: "distribution", promise: "exact", runs: 4, identical: 0 } }, []).why,
    /workbench check x/,
  );
  const drawn = verdict({ method: "x", exact: { kind: "distribution", promise: "approximate", runs: 4, identical: 0, first } }, []);
  assert.equal(drawn.text, "approximate: not the target's distribution");
  assert.doesNotMatch(drawn.why, /first at|margin/, "sampled texts of exact lanes also diverge early");
});

test("break-even has a text for every case", () => {
  const lane = (pays) => ({ name: "L", pays, figures: { speedup: null } });
  assert.equal(paysWords(lane(null)), "L: no drafts");
  assert.equal(paysWords(lane({ always: false, break_even: 0.441 })), "L pays off above an acceptance rate of 0.44");
  assert.equal(paysWords(lane({ always: true, break_even: null })), "L pays off at any acceptance rate");
  assert.match(paysWords(lane({ always: false, break_even: null })), /does not pay/);
});

test("lanes without runs have no bar", () => {
  const figures = { n: 1, ms_per_token: { draft: 1, verify: 2, overhead: 0.5, decode: 3.5 } };
  assert.deepEqual(costBars([{ name: "a", figures }, { name: "b", figures: { n: 0, ms_per_token: {} } }]).names, ["a"]);
});

test("a busy machine is reported", () => {
  assert.match(busy({ load: 6.7, cores: 2 }), /busy \(load 6.7 on 2 cores\)/);
  assert.equal(busy({ load: 0.4, cores: 2 }), "");
  assert.equal(busy({ load: null, cores: null }), "");
});

test("text that does not fit its line is reported as cut", () => {
  assert.equal(overflows(["One", " cold", " day"], 120), false);
  assert.equal(overflows(["One", " cold", " day"], 90), true);
});

test("shortened names of lanes that differ in one parameter remain distinct", () => {
  const name = (verifier) => `Draft model (policy confidence, grower rsd-c, branching 3-2-1-1, verifier ${verifier})`;
  assert.deepEqual(wrapped("Draft model"), ["Draft model"]);
  const lines = ["Draft model (grower", "rsd-c, verifier k-seq)"];
  assert.deepEqual(wrapped("Draft model (grower rsd-c, verifier k-seq)"), lines);
  const [one, other] = ["k-seq", "lenient"].map((verifier) => wrapped(name(verifier)));
  assert.equal(one.length, 3);
  assert.notDeepEqual(one, other);
  assert.ok(wrapped("x".repeat(80)).every((line) => line.length <= 24));
});
