import assert from "node:assert/strict";
import { test } from "node:test";
import { items } from "./keyfigures.js";
import { summary } from "../shared/figures.js";
import { figure } from "../shared/speedup.js";

const definitions = { tau: ["τ", "tokens / passes"] },
  none = figure({ mine: null, plain: null, none: "no baseline yet" });

test("figures without a round or a baseline show a dash", () => {
  for (const item of items(summary([]), null, definitions, none)) assert.doesNotMatch(item.value, /\d|NaN/);
});

test("the formula comes from the definitions", () => {
  assert.equal(items(summary([]), null, definitions, none).find((i) => i.id === "tau").formula, "tokens / passes");
});

test("waiting time for other runs is shown next to the overhead, if there is any", () => {
  const round = {
    nodes: { status: [] },
    path: [],
    emitted: [{}],
    seconds: 0.04,
    draft_s: 0.01,
    verify_s: 0.02,
    overhead_s: 0.004,
    waited_s: 0.006,
    target_forwards: 1,
  };
  const cost = (r) => items(summary([r]), null, definitions, none).find((i) => i.id === "cost");
  assert.equal(cost(round).label, "10.0 draft + 20.0 verify + 4.0 overhead + 6.0 waiting for other runs");
  assert.match(cost(round).worked, /0\.004 s overhead \+ 0\.006 s in forward passes for other runs\) \/ 1 rounds$/);
  assert.equal(cost({ ...round, waited_s: 0, seconds: 0.034 }).label, "10.0 draft + 20.0 verify + 4.0 overhead");
});

test("an approximate rule shows its gain over the exact one and its distance from the target distribution", () => {
  const round = (signals) => ({
    nodes: { status: ["accepted"] }, path: [0], emitted: [{}, {}], seconds: 0.1, draft_s: 0, verify_s: 0.1, target_forwards: 1, signals,
  });
  const label = (...rounds) => items(summary(rounds), null, definitions, none).find((i) => i.id === "acceptance").label;
  const gain = "acceptance gain (ΔA)", error = "distribution error (TV)";
  assert.equal(label(round({})), "acceptance rate");
  const over = "acceptance rate; +0.30 tokens per round over the exact rule, total variation distance";
  const [dear, free] = [round({ [gain]: 0.5, [error]: 0.2 }), round({ [gain]: 0.1, [error]: 0 })];
  assert.equal(label(dear, free), `${over} 0.050 per token`);
  assert.equal(
    label(round({ [gain]: 0.5, [error]: 0.2 }), round({ [gain]: 0.1 })),
    `${over} at least 0.050 per token; not known for 1 round`,
  );
  const bound = round({ [gain]: 0.5, [`${error}, at most`]: 0.4 });
  assert.equal(label(bound), "acceptance rate; +0.50 tokens per round over the exact rule, total variation distance at most 0.200 per token");
  assert.equal(label(bound, free), `${over} at most 0.100 per token`);
  const blind = round({ [gain]: -0.1 });
  assert.equal(label(bound, dear, blind), `${over} at most 0.100 per token; not known for 1 round`);
  const unknown = "tokens per round over the exact rule, total variation distance not known";
  assert.equal(label(round({ [gain]: -0.25 })), `acceptance rate; −0.25 ${unknown}`);
  assert.equal(label(round({ [gain]: -0.001 })), `acceptance rate; ±0.00 ${unknown}`);
});

test("singular for one", () => {
  const times = { seconds: 0.1, draft_s: 0, verify_s: 0.1, target_forwards: 1 };
  const round = { nodes: { status: [] }, path: [], emitted: [{}], ...times };
  const { value, unit, label } = items(summary([round]), null, definitions, none).find((i) => i.id === "passes");
  assert.deepEqual([value, unit, label], ["1", "pass", "of the target for 1 token"]);
});

test("a paced run has a note at its times and its speed-up", () => {
  const round = (signals) => ({
    nodes: { status: [] }, path: [], emitted: [{}], signals,
    seconds: 0.1, draft_s: 0, verify_s: 0.1, target_forwards: 1,
  });
  const speed = figure({ mine: 10, plain: 5, none: "" }),
    by = (rounds, id) => items(summary(rounds), { tokens_per_second: 5 }, definitions, speed).find((i) => i.id === id);
  const waited = [round({}), round({ "delay before the round (s)": 0.4 })];
  assert.match(by(waited, "rate").label, /; some rounds delayed$/);
  const earlier = [round({}), round({ "held back before it (s)": 0.4 })];
  assert.match(by(earlier, "rate").label, /; some rounds delayed$/);
  assert.match(by(waited, "rate").worked, /1 of 2 rounds started after a pause .* took longer than at full speed$/);
  assert.match(by(waited, "speedup").label, /; some rounds delayed$/);
  for (const id of ["rate", "speedup"]) assert.doesNotMatch(by([round({})], id).label, /delayed/);
});

test("the rate is that of the pair closest to the estimate, if pairs were measured", () => {
  const typical = { method: { rate: 30.4, ends: [] }, plain: { rate: 15.2, ends: [] } };
  const rate = (pair) => items(summary([]), null, definitions, none, pair).find((i) => i.id === "rate");
  assert.equal(rate(typical).value, "30");
  assert.match(rate(typical).label, /plain 15 tok\/s; pair of runs closest/);
  assert.doesNotMatch(rate(null).label, /pair/);
});
