import assert from "node:assert/strict";
import { test } from "node:test";
import { acceptance, curves, DRAFTS, tempered, transport } from "./acceptance.js";
import { OTHERS, placeQuery, RULE_OF, WAY_OF } from "../shared/benchlink.js";
import { csv } from "./page.js";
import { keyed } from "../shared/pq.js";
import { RULES } from "./rules.js";
import * as states from "./state.js";
import { WAYS } from "./sampling.js";
import * as words from "./words.js";

test("an address restores its state", () => {
  const state = { ...states.example(1), p: [0.25, 0.75], words: ["a,b", "<i>"], k: 5, way: "head", rule: "k-seq", tp: 0.5, rounds: 300, seed: 9 };
  const { state: read, problems } = states.fromQuery(`?${states.toQuery(state)}`);
  assert.deepEqual(problems, []);
  assert.deepEqual({ ...read, from: "", note: "" }, { ...state, from: "", note: "" });
  assert.equal(read.from, "edited by hand");
});

test("invalid parts of an address are ignored and reported", () => {
  const problemsOf = (query) => states.fromQuery(query).problems.join();
  assert.match(problemsOf("?p=1,2&q=1"), /q=1: give 2 to 6 non-negative numbers/);
  assert.match(problemsOf("?p=1e308,1e308&q=1,1"), /p=1e308/);
  assert.match(problemsOf("?p=1,2&q=1,2,3"), /has 3 numbers, but p has 2/);
  assert.match(problemsOf("?p=a,b&q=1,2"), /^p=a,b/);
  assert.match(problemsOf("?p=0,0&q=1,2"), /^p=0,0/);
  assert.match(problemsOf("?p=1,,2&q=1,1,1"), /^p=1,,2/);
  assert.match(problemsOf("?k=9"), /k=9: give a whole number from 1 to 8/);
  assert.match(problemsOf("?k=1.5&tp=0"), /k=1.5.*tp=0: give a number from 0.1 to 3/);
  assert.match(problemsOf("?way=no&rule=toString"), /way=no: give one of independent.*rule=toString: give one of recursive/);
  assert.deepEqual(states.fromQuery("?k=9&p=x").state, states.example());
  assert.deepEqual(states.fromQuery("?p=2,2&q=3,1").state.p, [0.5, 0.5], "weights are normalised");
});

test("the worked examples show what their texts state", () => {
  const of = (name) => states.EXAMPLES.find((each) => each.name === name);
  for (const { p, q, words } of states.EXAMPLES) {
    assert.ok(Math.abs(p.reduce((a, b) => a + b) - 1) < 1e-9 && Math.abs(q.reduce((a, b) => a + b) - 1) < 1e-9);
    assert.equal(words.length, p.length);
    assert.equal(new Set(words).size, words.length);
  }
  const hand = of("two tokens"), bound = transport(hand.p, hand.q, 2, "independent");
  assert.ok(Math.abs(bound.bound - 0.94) < 1e-9);
  assert.deepEqual(bound.set, [1]);
  assert.ok(Math.abs(acceptance(hand.p, hand.q, 2, "independent", "optimal-two") - 0.94) < 1e-6);
  const cross = of("greedy draft above the bound"), greedy = acceptance(cross.p, cross.q, 2, "head", "greedy-draft");
  assert.ok(Math.abs(greedy - 1) < 1e-9);
  assert.ok(greedy > transport(cross.p, cross.q, 2, "without").bound + 0.1);
  assert.match(words.crossing(cross, { k: 2 }), /above the bound .* independently and .* without replacement/);
  const wrong = of("confident but wrong"), found = curves(wrong.p, wrong.q);
  assert.ok(found["recursive/without"][3] > found["independent/independent"][3] + 0.3);
  const flat = curves(of("flat drafter").p, of("flat drafter").q);
  for (let i = 1; i < DRAFTS; i += 1) assert.ok(flat["k-seq/independent"][i] > flat["independent/independent"][i]);
});

test("a bar is moved at its displayed temperature", () => {
  const state = { ...states.example(), tp: 2 }, wanted = [0.4, 0.3, 0.2, 0.1];
  Object.assign(state, states.withProbs(state, "p", wanted));
  tempered(state).p.forEach((x, i) => assert.ok(Math.abs(x - wanted[i]) < 1e-9));
  assert.equal(state.from, "edited by hand");
});

test("tokens are added and removed, without duplicate names", () => {
  const more = states.resized(states.example(2), 6);
  assert.equal(new Set(more.words).size, 6);
  assert.equal(more.p.length, 6);
  const less = states.resized({ ...states.example(), ...more }, 2);
  assert.deepEqual(less.words, more.words.slice(0, 2));
  assert.ok(Math.abs(less.p[0] + less.p[1] - 1) < 1e-12);
});

test("a position of a run has its listed tokens, and one for all others", () => {
  const rows = [{ text: " a", p: 0.6, q: 0.5 }, { text: "b", p: 0.2, q: null }, { text: "c", p: null, q: 0.25 }];
  const { state, problems } = states.fromQuery(`?${placeQuery(rows, 3, "node “ a”, round 2")}`);
  assert.deepEqual(problems, []);
  assert.deepEqual(state.words, [" a", OTHERS], "a token that one distribution does not list is among the others");
  [0.6, 0.4].forEach((x, i) => assert.ok(Math.abs(state.p[i] - x) < 1e-9));
  [0.5, 0.5].forEach((x, i) => assert.ok(Math.abs(state.q[i] - x) < 1e-9));
  assert.equal(state.k, 3);
  assert.equal(state.from, "node “ a”, round 2");
  assert.match(states.caveat(state), /upper estimate/);
  assert.equal(states.caveat(states.example()), "");
  assert.equal(placeQuery(rows.map((row) => ({ ...row, q: null })), 2, ""), null, "a drafter without a distribution");
  assert.equal(placeQuery(rows, 0, ""), null);
  assert.equal(placeQuery([], 1, ""), null);
});

test("a position of a run has its rule and the sampling of its siblings", () => {
  const rows = [{ text: "a", p: 0.6, q: 0.5 }, { text: "b", p: 0.2, q: 0.3 }];
  const shown = (drafts, chosen) => states.fromQuery(`?${placeQuery(rows, drafts, "node", chosen)}`);
  for (const [chosen, sampling, rule] of [
    [{ grower: "specinfer", verifier: "k-seq" }, "independent", "k-seq"],
    [{ grower: "rsd-s", verifier: "lossless" }, "without", "recursive"],
    [{ grower: "head-and-one", verifier: "greedy-draft" }, "head", "greedy-draft"],
    [{ grower: "template", verifier: "deterministic" }, "fixed", "deterministic"],
    [{ grower: "rsd-s", verifier: "k-seq" }, "without", "k-seq"],
    [{ grower: "rsd-s", verifier: "lenient" }, "without", states.example().rule],
    [{ verifier: "constructor", grower: "toString" }, "without", states.example().rule],
  ]) {
    const { state, problems } = shown(2, chosen);
    assert.deepEqual([problems, state.way, state.rule], [[], sampling, rule], JSON.stringify(chosen));
  }
  assert.equal(shown(1, { grower: "rsd-s" }).state.way, "independent", "one draft is sampled from q");
  assert.deepEqual(Object.values(RULE_OF).sort(), Object.keys(RULES).sort());
  assert.match(shown(2, { grower: "rsd-s", verifier: "lenient" }).state.from, /its verifier, lenient, is not available here/);
  for (const sampling of Object.values(WAY_OF)) assert.ok(Object.hasOwn(WAYS, sampling), sampling);
});

test("keys move a bar, others do not", () => {
  assert.equal(keyed("ArrowUp", 0.995), 1);
  assert.equal(keyed("PageDown", 0.25), 0.15);
  assert.equal(keyed("Home", 0.3), 0);
  assert.equal(keyed("End", 0.3), 1);
  assert.equal(keyed("a", 0.3), null);
  assert.equal(keyed("toString", 0.3), null);
});

test("a bound names its tokens; an unsound combination states its error", () => {
  const { p, q, words: names } = states.EXAMPLES[0], state = { ...states.example(), words: names };
  assert.match(words.boundWords({ p, q }, { ...state, way: "independent", k: 3 }), /0\.771.*“market”, “farm”, “park”.*0\.729.*0\.500.*0\.229/);
  assert.match(words.unsound({ p, q }, { ...state, way: "fixed", rule: "independent", k: 2 }), /TV 0\.450/);
  assert.equal(words.unsound({ p, q }, state), "");
  assert.match(words.unsound({ p, q }, { ...state, way: "head", rule: "independent", k: 8 }), /differ from p/);
});

test("acceptance as CSV: one row per line, one column per k", () => {
  const { p, q } = states.EXAMPLES[0], rows = csv(curves(p, q)).trim().split("\n");
  assert.equal(rows[0], "rule,drafts,k1,k2,k3,k4,k5,k6,k7,k8");
  assert.equal(rows[1].slice(0, 35), "bound,without,0.600000,0.734524,0.9");
});
