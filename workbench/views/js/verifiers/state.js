/** State of the bench as plain data: worked examples, the query of an address, a position of a run. Pure.
 *
 *  @typedef {{words: string[], p: number[], q: number[], tp: number, tq: number, k: number, way: string, rule: string,
 *    seed: number, rounds: number, from: string, note: string}} State
 *    `p`, `q`: at temperature 1; `rounds`: sampled since the last change; `from`: origin of p and q */

import { tempered, DRAFTS } from "./acceptance.js";
import { normalised, sum, atTemperature } from "./distributions.js";
import { OTHERS } from "../shared/benchlink.js";
import { RULES } from "./rules.js";
import { WAYS } from "./sampling.js";

export const TOKENS = [2, 6];
export const COLDEST = 0.1;
export const HOTTEST = 3;
export const MOST_ROUNDS = 1e6;
const WORDS = ["school", "market", "farm", "park", "zoo", "lake"];

/** Worked examples. The page computes their figures; a test checks the statements made here. */
export const EXAMPLES = [
  {
    name: "four tokens",
    p: [0.5, 0.3, 0.15, 0.05], q: [0.1, 0.4, 0.3, 0.2], k: 3, way: "without", rule: "recursive",
    says: "The drafter underrates the most likely token. Every rule that uses q accepts a single draft with probability 0.6; the rules differ in the gain from further drafts.",
  },
  {
    name: "two tokens",
    p: [0.7, 0.3], q: [0.4, 0.6], k: 2, way: "independent", rule: "optimal-two",
    says: "Two independent drafts are both the second token with probability 0.6² = 0.36, but p gives it only 0.3: the bound is 1 + 0.3 − 0.36 = 0.94.",
  },
  {
    name: "greedy draft above the bound",
    p: [0.9, 0.05, 0.05], q: [0.4, 0.3, 0.3], k: 2, way: "head", rule: "greedy-draft",
    says: "One fixed and one sampled draft cover all of p; two sampled drafts miss the likely token too often under any rule.",
  },
  {
    name: "confident but wrong",
    p: [0.1, 0.5, 0.3, 0.1], q: [0.85, 0.05, 0.05, 0.05], k: 4, way: "independent", rule: "independent",
    says: "Most drafts are copies of one token that is unlikely under p. Sampling without replacement avoids the copies.",
  },
  {
    name: "flat drafter",
    p: [0.4, 0.3, 0.2, 0.06, 0.04], q: [0.2, 0.2, 0.2, 0.2, 0.2], k: 3, way: "independent", rule: "k-seq",
    says: "q is uniform, so drafts carry no information about p. With two or more drafts, K-SEQ accepts more often than the rule “Independent”.",
  },
].map((each) => ({ ...each, words: WORDS.slice(0, each.p.length) }));

/** Return the state of an example. @returns {State} */
export function example(at = 0) {
  const { name, says, ...rest } = EXAMPLES[at];
  return { ...structuredClone(rest), tp: 1, tq: 1, seed: 1, rounds: 0, from: `example: ${name}`, note: says };
}

/** Return the query of a state. @param {State} state */
export function toQuery(state) {
  const query = new URLSearchParams(), format = (values) => values.map((x) => `${Number(x.toPrecision(6))}`).join(",");
  query.set("p", format(state.p));
  query.set("q", format(state.q));
  for (const word of state.words) query.append("w", word);
  for (const name of ["k", "way", "rule", "seed"]) query.set(name, `${state[name]}`);
  for (const name of ["tp", "tq"]) if (state[name] !== 1) query.set(name, `${state[name]}`);
  if (state.rounds) query.set("n", `${state.rounds}`);
  if (state.from.startsWith("node")) query.set("from", state.from);
  return query.toString();
}

/** Parse an address; invalid parts are left out and listed.
 *  @param {string} search @returns {{state: State, problems: string[]}} */
export function fromQuery(search) {
  const query = new URLSearchParams(search), state = example(), problems = [];
  const bad = (name, why) => problems.push(`${name}=${(query.get(name) ?? "").slice(0, 40)}: ${why}`);
  if (query.has("p") || query.has("q")) {
    const p = parseProbs(query.get("p")), q = parseProbs(query.get("q"));
    if (!p) bad("p", `give ${TOKENS.join(" to ")} non-negative numbers, at least one above 0`);
    else if (!q) bad("q", `give ${TOKENS.join(" to ")} non-negative numbers, at least one above 0`);
    else if (p.length !== q.length) bad("q", `has ${q.length} numbers, but p has ${p.length}`);
    else {
      const words = query.getAll("w").map((word) => word.slice(0, 40));
      Object.assign(state, {
        p, q, from: (query.get("from") ?? "edited by hand").slice(0, 80), note: "",
        words: p.map((_, i) => words[i] ?? WORDS[i]),
      });
    }
  }
  const number = (name, key, low, high, whole) => {
    if (!query.has(name)) return;
    const value = Number(query.get(name) || NaN);
    if (value >= low && value <= high && (!whole || Number.isInteger(value))) state[key] = value;
    else bad(name, `give a ${whole ? "whole " : ""}number from ${low} to ${high}`);
  };
  number("k", "k", 1, DRAFTS, true);
  number("tp", "tp", COLDEST, HOTTEST, false);
  number("tq", "tq", COLDEST, HOTTEST, false);
  number("seed", "seed", 0, 2 ** 31, true);
  number("n", "rounds", 0, MOST_ROUNDS, true);
  for (const [name, known] of Object.entries({ way: WAYS, rule: RULES })) {
    if (!query.has(name)) continue;
    if (Object.hasOwn(known, query.get(name))) state[name] = query.get(name);
    else bad(name, `give one of ${Object.keys(known).join(", ")}`);
  }
  return { state, problems };
}

function parseProbs(text) {
  const values = (text ?? "").split(",").map((x) => (x.trim() === "" ? NaN : Number(x)));
  const fits = values.length >= TOKENS[0] && values.length <= TOKENS[1];
  const total = sum(values), weights = values.every((x) => Number.isFinite(x) && x >= 0);
  return fits && weights && Number.isFinite(total) && total > 0 ? normalised(values) : null;
}

/** Return a caveat about p and q taken from a run. Pure. */
export function caveat(state) {
  return state.words.includes(OTHERS)
    ? `“${OTHERS}” stands for all tokens that the trace does not list, so acceptance rates are upper estimates. Drafts are sampled as in the run.`
    : "";
}

/** Return the change that sets p or q, given at its temperature. @param {State} state  @param {"p"|"q"} which */
export function withProbs(state, which, probs) {
  const temperature = state[which === "p" ? "tp" : "tq"];
  return { [which]: atTemperature(probs, 1 / temperature), rounds: 0, from: "edited by hand", note: "" };
}

/** Return the change to `n` tokens. @param {State} state */
export function resized(state, n) {
  const fresh = WORDS.filter((word) => !state.words.includes(word));
  const words = [...state.words, ...fresh].slice(0, n);
  const resize = (values) =>
    normalised(words.map((_, i) => values[i] ?? 0.1), words.map(() => 1 / n));
  return { words, p: resize(state.p), q: resize(state.q), rounds: 0, from: "edited by hand", note: "" };
}

/** Return all computed figures of a state, for a file. */
export function report(state, figures) {
  const { words, k, way, rule, seed } = state;
  return { words, ...tempered(state), k, way, rule, seed, ...figures };
}
