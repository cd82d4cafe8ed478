import assert from "node:assert/strict";
import { test } from "node:test";
import * as formula from "./formula.js";
import * as retest from "./retest.js";
import { expectedTau } from "./theory.js";
import { coverage, outlook, sliders } from "./retestcard.js";
import * as acceptanceRule from "./acceptancerule.js";

const RATIO = {
  name: "ratio",
  title: "p over q",
  formula: "min(1, p / q)",
  places: { p: "p", q: "q" },
  because: {},
  says: "why",
  leaves: "excess",
};
const ODD = {
  name: "odd",
  title: "Odd",
  formula: "w · p",
  places: { w: "weight", p: "p" },
  because: {},
  says: "why",
  leaves: "all",
};

/** One node with p = .2, q = .5 below the root, tested by `rule`. */
function round(rule, more = {}) {
  const nodes = {
    tokens: [1],
    parents: [-1],
    depth: [1],
    text: ["a"],
    p: [0.2],
    q: [0.5],
    accept: [0.4],
    u: [0.3],
    status: ["accepted"],
    rule: [rule],
    inputs: {},
    ...more,
  };
  const top = (prob) => ({ tokens: [1, 2], text: ["a", "b"], prob });
  return {
    nodes,
    params: { temperature: 1, depth: 4 },
    path: [],
    emitted: [],
    entropy: [],
    top_p: [top([0.2, 0.7]), null],
    top_q: [top([0.5, 0.3]), null],
  };
}
const factsOf = (r, rules) => Object.fromEntries(acceptanceRule.statement(r, 0, rules, formula, (text) => text));

test("the card shows only the rule that the trace names", () => {
  assert.equal(factsOf(round("ratio"), { ratio: RATIO })["acceptance probability"], "min(1, p / q) = min(1, 0.2 / 0.5) = 0.4");
  const odd = factsOf(round("odd", { inputs: { weight: [2] } }), { odd: ODD });
  assert.deepEqual(
    [odd.rule, odd["acceptance probability"]],
    ["Odd", "w · p = 2 · 0.2 = 0.4"],
    "a custom verifier is explained from its trace alone",
  );
});

test("an older trace gets no equation although p/q would fit; the card says that it does not name its rule", () => {
  for (const r of [
    round(null),
    { ...round(null), nodes: { ...round(null).nodes, rule: undefined, inputs: undefined } },
  ]) {
    assert.deepEqual(factsOf(r, undefined), { "acceptance probability": "0.4, as recorded; the trace does not name the rule" });
    assert.equal(retest.testAgain(r, 0, {}, {}), null);
  }
  assert.match(factsOf(round("mine"), {})["acceptance probability"], /has no description of the rule “mine”/);
  assert.match(factsOf(round("constructor"), {})["acceptance probability"], /constructor/);
});

test("a rule that contradicts the recorded value gets no equation", () => {
  const facts = factsOf(round("ratio", { accept: [0.7] }), { ratio: RATIO });
  assert.equal(facts["acceptance probability"], "0.7, as recorded; min(1, p / q) gives another value");
  assert.deepEqual(
    factsOf(round("ratio", { accept: [null] }), { ratio: RATIO }),
    {},
    "a node that was not tested has no rule",
  );
});

test("unmoved sliders reproduce the recorded test; the unrecorded mass is stated as an upper or lower bound", () => {
  const r = round("ratio"), start = retest.recorded(r, 0, RATIO), seen = retest.testAgain(r, 0, { ratio: RATIO }, start);
  assert.deepEqual(
    [seen.accept, seen.accepted, seen.asRecorded, seen.mass.p.toFixed(2), seen.mass.q.toFixed(2)],
    [0.4, true, true, "0.90", "0.80"],
  );
  assert.equal(
    seen.expected.toFixed(4),
    ((1 - 0.5 ** 5) / 0.5).toFixed(4),
    "K drafts are drawn from q: rate Σ min(p, q) = .2 + .3, not this token's .4",
  );
  assert.equal(
    outlook(seen, 4, formula),
    "K = 4 drafts with distributions like these, each accepted with a = Σ min(p, q) ≥ 0.5: (1 − aᴷ⁺¹)/(1 − a) ≥ 1.94 tokens per round",
  );
  assert.equal(
    outlook({ ...seen, rate: 0.4, drawn: false, expected: expectedTau(0.4, 4) }, 4, formula),
    "K = 4 drafts, each accepted with a = 0.4: (1 − aᴷ⁺¹)/(1 − a) = 1.65 tokens per round",
  );
  assert.match(coverage(seen, start, start), /p of 2 tokens, together 90\.0 %; q of 2 tokens, together 80\.0 %\.$/);
  const cold = { ...start, temperature: 0.5 }, hot = { ...start, temperature: 1.5 };
  assert.match(coverage(retest.testAgain(r, 0, { ratio: RATIO }, cold), cold, start), /an upper bound\.$/);
  assert.match(coverage(retest.testAgain(r, 0, { ratio: RATIO }, hot), hot, start), /a lower bound\.$/);
  assert.equal(retest.testAgain(r, 0, { ratio: RATIO }, { ...start, u: 0.41 }).accepted, false);
});

test("the result is continuous at the recorded temperature; at 0 the rule is greedy equality", () => {
  const r = round("ratio"),
    start = retest.recorded(r, 0, RATIO),
    at = (temperature) => retest.testAgain(r, 0, { ratio: RATIO }, { ...start, temperature });
  assert.ok(Math.abs(at(1 + 1e-9).accept - at(1).accept) < 1e-6);
  assert.ok(Math.abs(at(1 + 1e-9).rows[1].residual - at(1).rows[1].residual) < 1e-6);
  assert.deepEqual([at(0).rule.formula, at(0).accept], ["x = x*", 0]);
});

test("two tokens with the same text are shown by their ids", () => {
  const greedy = {
    name: "greedy",
    title: "Greedy",
    formula: "x = x*",
    places: { x: "token", "x*": "likeliest" },
    because: {},
    says: "why",
    leaves: "all",
  };
  const r = round("greedy", { inputs: { likeliest: [2] }, accept: [0], u: [null] });
  assert.equal(factsOf(r, { greedy })["accepted if"], "x = x*: “a” = “b” does not hold");
  r.top_p[0].text = ["a", "a"];
  assert.equal(factsOf(r, { greedy })["accepted if"], "x = x*: id 1 = id 2 does not hold");
});

test("a rule's parameters are sliders; other inputs stay as recorded", () => {
  const typical = { ...ODD, formula: "p > θ", places: { p: "p", θ: "threshold", ε: "epsilon" }, because: { θ: "ε" } };
  const r = round("odd", { inputs: { threshold: [0.3], weight: [2] }, accept: [0] });
  r.params.epsilon = 0.3;
  const start = retest.recorded(r, 0, typical), moved = { ...start, params: { epsilon: 0.1 } };
  const seen = retest.testAgain(r, 0, { odd: typical }, moved);
  assert.deepEqual([start.params, seen.accept, seen.compares, seen.accepted], [{ epsilon: 0.3 }, 1, true, true]);
  assert.deepEqual(sliders(start, seen, typical).map((s) => s.label), ["T", "K", "ε"]);
  const fixed = retest.testAgain(
    round("odd", { inputs: { weight: [2] } }),
    0,
    { odd: ODD },
    { ...start, params: {}, temperature: 2 },
  );
  assert.equal(fixed.values.w, 2);
});

test("inputs outside the formula are shown as recorded, and nothing else", () => {
  const rule = { ...ODD, formula: "w", places: { w: "weight", "p′": "reflected" } };
  const facts = (inputs) => acceptanceRule.statement(round("odd", { inputs }), 0, { odd: rule }, formula, (t) => t);
  assert.deepEqual(facts({ weight: [0.4], reflected: [0.25] }).find(([term]) => term === "p′"), ["p′", "0.25"]);
  assert.equal(facts({ weight: [0.4], reflected: [null] }).some(([term]) => term === "p′"), false);
  assert.equal(facts({ weight: [0.4], reflected: [0.25] }).filter(([term]) => term === "w").length, 0);
});
