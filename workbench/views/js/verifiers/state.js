/** What the bench shows, as plain data: worked examples, the query of an address, a place of a run. Pure.
 *
 *  @typedef {{words: string[], p: number[], q: number[], tp: number, tq: number, k: number, way: string, rule: string,
 *    seed: number, rounds: number, from: string, note: string}} State
 *    `p`, `q`: at temperature 1; `rounds`: drawn since the last change; `from`: where p and q come from */

import { lawsOf, DRAFTS } from "./acceptance.js";
import { normalised, sum, tempered } from "./laws.js";
import { OTHERS } from "../shared/benchlink.js";
import { RULES } from "./rules.js";
import { WAYS } from "./ways.js";

export const TOKENS = [2, 6];
export const COLDEST = 0.1;
export const HOTTEST = 3;
export const MOST_ROUNDS = 1e6;
const WORDS = ["school", "market", "farm", "park", "zoo", "lake"];

/** Worked examples: what each of them shows is computed by the page, and said of it here in words that a test holds. */
export const EXAMPLES = [
  {
    name: "four tokens",
    p: [0.5, 0.3, 0.15, 0.05], q: [0.1, 0.4, 0.3, 0.2], k: 3, way: "without", rule: "recursive",
    says: "The drafter underrates the likeliest token. Every rule that uses q starts at 0.6; what it makes of more drafts differs.",
  },
  {
    name: "two, by hand",
    p: [0.7, 0.3], q: [0.4, 0.6], k: 2, way: "independent", rule: "optimal-two",
    says: "Of two independent drafts both are the second token with 0.6² = 0.36, but p has only 0.3 there: the bound is 1 + 0.3 − 0.36 = 0.94.",
  },
  {
    name: "greedy crosses the bound",
    p: [0.9, 0.05, 0.05], q: [0.4, 0.3, 0.3], k: 2, way: "head", rule: "greedy-draft",
    says: "With one draft fixed and one drawn all of p is covered; two drawn drafts miss the likely token too often, whatever the rule.",
  },
  {
    name: "sure and wrong",
    p: [0.1, 0.5, 0.3, 0.1], q: [0.85, 0.05, 0.05, 0.05], k: 4, way: "independent", rule: "independent",
    says: "Most drafts are copies of one token that p hardly has. Drawn without replacement, none is wasted.",
  },
  {
    name: "flat drafter",
    p: [0.4, 0.3, 0.2, 0.06, 0.04], q: [0.2, 0.2, 0.2, 0.2, 0.2], k: 3, way: "independent", rule: "k-seq",
    says: "q knows nothing: more drafts help by their number alone, and K-SEQ uses it better than one test after the other.",
  },
].map((each) => ({ ...each, words: WORDS.slice(0, each.p.length) }));

/** The state of an example. @returns {State} */
export function example(at = 0) {
  const { name, says, ...rest } = EXAMPLES[at];
  return { ...structuredClone(rest), tp: 1, tq: 1, seed: 1, rounds: 0, from: `example: ${name}`, note: says };
}

/** The query under which the page shows a state. @param {State} state */
export function toQuery(state) {
  const query = new URLSearchParams(), law = (values) => values.map((x) => `${Number(x.toPrecision(6))}`).join(",");
  query.set("p", law(state.p));
  query.set("q", law(state.q));
  for (const word of state.words) query.append("w", word);
  for (const name of ["k", "way", "rule", "seed"]) query.set(name, `${state[name]}`);
  for (const name of ["tp", "tq"]) if (state[name] !== 1) query.set(name, `${state[name]}`);
  if (state.rounds) query.set("n", `${state.rounds}`);
  if (state.from.startsWith("node")) query.set("from", state.from);
  return query.toString();
}

/** The state that an address asks for; what is wrong in it is left out and said.
 *  @param {string} search @returns {{state: State, problems: string[]}} */
export function fromQuery(search) {
  const query = new URLSearchParams(search), state = example(), problems = [];
  const bad = (name, why) => problems.push(`${name}=${(query.get(name) ?? "").slice(0, 40)}: ${why}`);
  if (query.has("p") || query.has("q")) {
    const p = law(query.get("p")), q = law(query.get("q"));
    if (!p) bad("p", `give ${TOKENS.join(" to ")} numbers from 0, one of them above 0`);
    else if (!q) bad("q", `give ${TOKENS.join(" to ")} numbers from 0, one of them above 0`);
    else if (p.length !== q.length) bad("q", `it has ${q.length} numbers, and p has ${p.length}`);
    else {
      const words = query.getAll("w").map((word) => word.slice(0, 40));
      Object.assign(state, {
        p, q, from: (query.get("from") ?? "by hand").slice(0, 80), note: "",
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

function law(text) {
  const values = (text ?? "").split(",").map((x) => (x.trim() === "" ? NaN : Number(x)));
  const fits = values.length >= TOKENS[0] && values.length <= TOKENS[1];
  const total = sum(values), weights = values.every((x) => Number.isFinite(x) && x >= 0);
  return fits && weights && Number.isFinite(total) && total > 0 ? normalised(values) : null;
}

/** What must be said of p and q that come from a run. Pure. */
export function caveat(state) {
  return state.words.includes(OTHERS)
    ? `“${OTHERS}” holds what the trace does not list. It counts as one token here, so acceptance is an upper estimate. The way of drawing is the run’s.`
    : "";
}

/** p or q moved, as it is seen at its temperature. @param {State} state  @param {"p"|"q"} which */
export function withLaw(state, which, law) {
  const temperature = state[which === "p" ? "tp" : "tq"];
  return { [which]: tempered(law, 1 / temperature), rounds: 0, from: "by hand", note: "" };
}

/** One more token, or one less. @param {State} state */
export function resized(state, n) {
  const fresh = WORDS.filter((word) => !state.words.includes(word));
  const words = [...state.words, ...fresh].slice(0, n);
  const law = (values) =>
    normalised(words.map((_, i) => values[i] ?? 0.1), words.map(() => 1 / n));
  return { words, p: law(state.p), q: law(state.q), rounds: 0, from: "by hand", note: "" };
}

/** Everything that the bench computes of a state, as a file has it. */
export function report(state, figures) {
  const { words, k, way, rule, seed } = state;
  return { words, ...lawsOf(state), k, way, rule, seed, ...figures };
}
