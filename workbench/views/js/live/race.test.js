import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as figures from "../shared/figures.js";
import { figure } from "../shared/speedup.js";
import * as race from "./race.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url)));
const chain = read("chain").rounds, plain = read("plain").rounds;

test("a lane counts passes, tokens and time as the key figures do", () => {
  const own = race.lane("chain", chain), all = figures.summary(chain);
  assert.equal(own.passes, all.target_forwards);
  assert.equal(own.counts.at(-1), all.tokens);
  assert.equal(own.seconds, all.seconds);
  assert.equal(own.ends.at(-1), all.seconds, "the clock starts at the end of prefill");
  assert.equal(own.texts.length, chain.length);
});

test("a round is finished from its end on", () => {
  const own = race.lane("chain", chain);
  assert.equal(race.finished(own, 0), 0);
  assert.equal(race.finished(own, own.ends[1]), 2);
  assert.equal(race.finished(own, own.ends[1] - 1e-9), 1);
  assert.equal(race.finished(own, Infinity), chain.length);
});

test("equal texts are called equal only token for token", () => {
  const said = (ids, promised) => race.compareTexts(rounds(ids), rounds([1, 2, 3]), promised);
  const rounds = (ids) => ids.map((token) => ({ emitted: [{ token }] }));
  const exact = { greedy: true, exact: true };
  assert.match(said([1, 2, 3], exact), /same text, token for token/);
  assert.match(said([1, 2], exact), /differ/, "a shorter text is another text");
  assert.match(said([1, 2, 4], exact), /differ/);
  assert.match(said([1, 2, 4], { ...exact, greedy: false }), /same distribution/);
  assert.match(said([1, 2, 4], { greedy: false, exact: false }), /approximate/);
});

test("the headline says faster only with an interval above 1", () => {
  const of = (ratios) => {
    const logs = ratios.map(Math.log), mean = logs.reduce((a, b) => a + b) / logs.length;
    return race.headline(
      figure({ mine: 2, plain: 1, none: "", measured: { value: Math.exp(mean), low: Math.min(...ratios), high: Math.max(...ratios), n: 3, prompts: 1 } }),
    );
  };
  assert.match(of([1.9, 2, 2.1]), /× faster$/);
  assert.match(of([0.5, 0.6, 0.7]), /×: slower$/);
  assert.doesNotMatch(of([0.8, 1.4, 1.5]), /faster|slower/);
  assert.equal(race.headline(figure({ mine: 3, plain: 1, none: "" })), "3.00×", "one pair gives no verdict");
  assert.equal(race.headline(figure({ mine: 1, plain: 2, none: "" })), "0.50×: slower in this run");
});

test("a slower run has a reason that agrees with its speed-up: tokens per round against the cost of a round", () => {
  const plain = { tokens: 4, ends: [0.1, 0.2, 0.3, 0.4] }, slow = { tokens: 4, ends: [0.3, 0.6] };
  assert.equal(
    race.reasonForSlowness(slow, plain, 2 / 3),
    "A round gave 2.00 tokens but took as long as 3.00 plain passes.",
  );
  assert.equal(race.reasonForSlowness(slow, plain, 1.1), "");
  assert.equal(race.reasonForSlowness(slow, plain, NaN), "");
  assert.equal(race.reasonForSlowness({ tokens: 0, ends: [] }, plain, 0.5), "");
});

test("only a significantly slower run, or a single pair, is called slow; delayed rounds are named", () => {
  const measured = (low, high) => figure({ mine: 2, plain: 3, none: "", measured: { value: 0.97, low, high, n: 10, prompts: 1 } });
  const open = race.of(view({ speed: measured(0.81, 1.16) }), "");
  assert.deepEqual([open.headline, open.slow, open.faster], ["0.97×", "", false]);
  assert.match(open.result, /^no significant difference yet, 0\.81–1\.16×, n = 10 pairs of runs/);
  assert.match(race.of(view({ speed: measured(0.95, 0.99) }), "").slow, /took as long as/);
  assert.match(race.of(view({ speed: figure({ mine: 2, plain: 3, none: "" }) }), "").slow, /took as long as/);
  assert.doesNotMatch(open.result, /delayed/);
  const delayed = { ...figures.summary(chain), delayed_rounds: 2 };
  assert.match(race.of(view({ figures: delayed }), "").result, /some rounds of this run were delayed/);
});

test("the shares of a run's time add up to 1", () => {
  const own = race.shares(figures.summary(chain));
  assert.ok(Math.abs(own.reduce((sum, { share }) => sum + share, 0) - 1) < 1e-9);
  assert.deepEqual(own.map(({ name }) => name).slice(0, 2), ["draft", "verify"]);
});

function view(changes = {}) {
  const rounds = changes.rounds ?? chain;
  return {
    run: { from: "live", header: { method: "draft-model", params: {}, promise: "exact" }, footer: {} },
    rounds,
    plainRounds: plain,
    active: false,
    arriving: null,
    figures: figures.summary(rounds),
    speed: figure({ mine: 2, plain: 1, none: "" }),
    methodTitle: (name) => name,
    ...changes,
  };
}

test("a race has no result before both runs are complete", () => {
  assert.equal(race.of(view({ active: true }), "").result, "");
  assert.equal(race.of(view({ plainRounds: null }), "no baseline yet").result, "");
  assert.match(race.of(view(), "").result, /target passes instead of/);
});

test("a recording without a plain run has no race, nor has an empty page", () => {
  assert.equal(race.of(view({ plainRounds: null, run: { from: "recorded", header: {}, footer: {} } }), ""), null);
  assert.equal(race.of(view({ rounds: [] }), ""), null);
});

test("a run that changes its method names both", () => {
  const rounds = chain.map((round, i) => ({ ...round, method: i < 2 ? "a" : "b" }));
  assert.equal(race.of(view({ rounds }), "").mine.name, "a → b");
});

test("after pairs of runs the clock shows the pair closest to the estimate, not the delayed run on display", () => {
  const ends = (rounds, step) => rounds.map((_, i) => (i + 1) * step);
  const typical = { method: { rate: 30, ends: ends(chain, 0.01) }, plain: { rate: 15, ends: ends(plain, 0.02) } };
  const speed = figure({ mine: 1, plain: 2, none: "", measured: { value: 2, low: 1.9, high: 2.1, n: 3, prompts: 1 } });
  const view = (over) => ({
    run: { from: "live", header: { method: "draft-model", params: {} }, footer: {} },
    rounds: chain, plainRounds: plain, active: false, arriving: null,
    figures: { ...figures.summary(chain), delayed_rounds: 2 }, speed, methodTitle: (name) => name, typical, ...over,
  });
  const shown = race.of(view({}), "");
  assert.equal(shown.mine.seconds, 0.01 * chain.length);
  assert.equal(shown.plain.seconds, 0.02 * plain.length);
  assert.match(shown.result, /the clock shows the pair of runs that is closest to the estimated speed-up/);
  assert.doesNotMatch(shown.result, /delayed/);
  const own = figures.summary(chain).seconds;
  for (const other of [{ typical: null }, { typical: { ...typical, plain: { rate: 1, ends: [1] } } }, { active: true }])
    assert.equal(race.of(view(other), "").mine.seconds, own, "as many rounds, and only after the run");
  assert.equal(race.clock(0.3643), "0.364 s");
  assert.equal(race.clock(12.3456), "12.35 s");
});
