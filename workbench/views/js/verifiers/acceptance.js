/** Acceptance rate of k drafts for each rule, and the optimal-transport bound of all exact rules. Pure. */

import { distance, overlap, residual, sum, atTemperature } from "./distributions.js";
import { discount, emitted, RULES, weights } from "./rules.js";
import { count, size, tuples } from "./sampling.js";

export const DRAFTS = 8;
/** Maximum number of draft outcomes that are enumerated. */
const MANY = 8000;

/** Enumerate all drafts of a rule: the distribution of the emitted token, and the acceptance rate.
 *  @returns {{probs: number[], accepted: number}|null} null: too many outcomes */
export function outcome(p, q, k, sampling, rule) {
  const n = count(q, k, sampling);
  if (size(q, n, sampling) > MANY) return null;
  const prepared = RULES[rule].ready(p, q, n, sampling), output = p.map(() => 0);
  let accepted = 0;
  for (const [drafts, prob] of tuples(q, n, sampling)) {
    const each = emitted(prepared(drafts), drafts);
    each.forEach((x, i) => {
      output[i] += prob * x;
      if (drafts.includes(i)) accepted += prob * x;
    });
  }
  return { probs: output, accepted };
}

/** Acceptance rate of independent drafts in closed form, where enumeration would take too long. */
const CLOSED = {
  recursive: (p, q, k) => CLOSED.independent(p, q, k),
  independent: (p, q, k) => 1 - missed(p, q, k).missed,
  "k-seq": (p, q, k) => 1 - (1 - overlap(q, p.map((x) => x / discount(p, q, k)))) ** k,
  deterministic: (p, q, k) => sum(p.map((x, i) => x * (1 - (1 - q[i]) ** k))),
  "optimal-two": (p, q, k) => {
    if (k === 1) return overlap(p, q);
    const { w, r } = weights(p, q, "independent"), accepted = overlap(p, r);
    const more = missed(residual(p, r), q, k - 2);
    // If the choice fails, so do all later tests, and the finally sampled token may be the draft that was not chosen.
    let other = 0;
    q.forEach((x, s) => q.forEach((y, o) => {
      if (s === o || !(r[s] > p[s])) return;
      const chosen = (2 * x * y) / (1 + Math.exp(w[o] - w[s])) * (1 - p[s] / r[s]);
      other += chosen * more.missed * more.residual[o];
    }));
    return accepted + (1 - accepted) * (1 - more.missed) + other;
  },
};

/** Return the probability that none of k draws from q passes sequential tests against the residual; and the residual.
 *  */
function missed(p, q, k) {
  let rest = p, prob = 1;
  for (let j = 0; j < k; j += 1) {
    prob *= 1 - overlap(rest, q);
    rest = residual(rest, q);
  }
  return { missed: Math.max(0, prob), residual: rest };
}

/** Return the acceptance rate of a rule with k drafts sampled in some way; for sound combinations. @returns {number} */
export function acceptance(p, q, k, sampling, rule) {
  if (sampling === "independent") return CLOSED[rule](p, q, k);
  const n = count(q, k, sampling);
  return outcome(p, q, n, sampling, rule)?.accepted ?? NaN;
}

/** Return the acceptance bound of all exact rules, 1 + min over sets H of P(H) − Pr(all drafts in H), and the set.
 *  Source: Hu et al. 2025, arXiv:2502.18779; the transport problem is SpecTr's, arXiv:2310.15141.
 *  @returns {{bound: number, set: number[], inP: number, inAll: number}} */
export function transport(p, q, k, sampling) {
  const n = count(q, k, sampling), all = within(q, n, sampling);
  const best = { bound: 1, set: /** @type {number[]} */ ([]), inP: 0, inAll: 0 };
  for (let H = 1; H < 1 << p.length; H += 1) {
    const set = [...p.keys()].filter((i) => (H >> i) & 1);
    const inP = sum(set.map((i) => p[i])), inAll = all(H, set);
    if (1 + inP - inAll < best.bound - 1e-12) Object.assign(best, { bound: 1 + inP - inAll, set, inP, inAll });
  }
  return best;
}

/** Return the probability that all n drafts are in a set, as a function of the set (as bits, and as a list). */
function within(q, n, sampling) {
  if (sampling === "independent") return (_, set) => sum(set.map((i) => q[i])) ** n;
  if (sampling !== "without") {
    const drafts = tuples(q, n, sampling);
    return (H) => sum(drafts.map(([tokens, prob]) => (tokens.every((i) => (H >> i) & 1) ? prob : 0)));
  }
  // Draws without replacement, by the set of drawn tokens.
  let level = new Map([[0, 1]]);
  for (let j = 0; j < n; j += 1) {
    const next = new Map();
    for (const [S, prob] of level) {
      const rest = sum(q.map((x, i) => ((S >> i) & 1 ? 0 : x)));
      q.forEach((x, i) => {
        if (x > 0 && !((S >> i) & 1)) next.set(S | (1 << i), (next.get(S | (1 << i)) ?? 0) + (prob * x) / rest);
      });
    }
    level = next;
  }
  return (H) => sum([...level].map(([S, prob]) => ((S & ~H) === 0 ? prob : 0)));
}

/** Lines of the chart: a rule with drafts sampled in one way, or the bound for that way. */
export const LINES = [
  { id: "bound/without", way: "without", rule: null, title: "upper bound, without replacement" },
  { id: "bound/independent", way: "independent", rule: null, title: "upper bound, independent" },
  { id: "greedy-draft/head", way: "head", rule: "greedy-draft", title: "greedy draft" },
  { id: "optimal-two/without", way: "without", rule: "optimal-two", title: "optimal for 2 drafts, without replacement" },
  { id: "recursive/without", way: "without", rule: "recursive", title: "recursive, without replacement" },
  { id: "optimal-two/independent", way: "independent", rule: "optimal-two", title: "optimal for 2 drafts, independent" },
  { id: "k-seq/independent", way: "independent", rule: "k-seq", title: "K-SEQ" },
  { id: "independent/independent", way: "independent", rule: "independent", title: "independent (SpecInfer)" },
  { id: "deterministic/fixed", way: "fixed", rule: "deterministic", title: "top k, fixed" },
];

/** Return the acceptance rate of every line for k = 1 … 8. @returns {Record<string, number[]>} */
export function curves(p, q) {
  const ks = Array.from({ length: DRAFTS }, (_, i) => i + 1), found = /** @type {Record<string, number[]>} */ ({});
  for (const { id, way: sampling, rule } of LINES) {
    const at = (k) => (rule ? acceptance(p, q, k, sampling, rule) : transport(p, q, k, sampling).bound);
    let before = -1;
    found[id] = ks.map((k) => {
      const n = count(q, k, sampling);
      if (n < k && k > 1 && before >= 0) return before; // q has no more tokens
      return (before = at(k));
    });
  }
  return found;
}

/** Return the mean number of accepted drafts of a chain of 1 … 8 positions with the same p and q: token by token, and
 *  block verification. P(τ ≥ i) is E[wᵢ], w₀ = 1, wᵢ = min(1, wᵢ₋₁·p(xᵢ)/q(xᵢ)). Source: Sun et al. 2025,
 *  arXiv:2403.10444.
 *  @returns {{token: number[], block: number[]}} */
export function chains(p, q) {
  const one = overlap(p, q), token = [], block = [];
  let w = new Map([[1, 1]]);
  for (let i = 0; i < DRAFTS; i += 1) {
    const next = new Map();
    for (const [value, prob] of w)
      q.forEach((x, t) => {
        if (!(x > 0)) return;
        const key = Number(Math.min(1, (value * p[t]) / x).toPrecision(12));
        next.set(key, (next.get(key) ?? 0) + prob * x);
      });
    w = next;
    token.push((token[i - 1] ?? 0) + one ** (i + 1));
    block.push((block[i - 1] ?? 0) + sum([...w].map(([value, prob]) => value * prob)));
  }
  return { token, block };
}

/** Test k independent drafts under lenience λ, each against the residual of p divided by λ: acceptance rate, and total
 *  variation distance of the output from p. The residual does not depend on the drawn tokens.
 *  Source: Leviathan et al. 2023, arXiv:2211.17192, appendix A.5; repeated as in Miao et al. 2024, arXiv:2305.09781. */
export function lenient(p, q, lenience, k = 1) {
  const output = p.map(() => 0);
  let rest = p, reach = 1;
  for (let j = 0; j < k; j += 1) {
    const lifted = rest.map((x) => x / lenience);
    q.forEach((x, i) => (output[i] += reach * Math.min(x, lifted[i])));
    reach *= Math.max(0, 1 - overlap(q, lifted));
    rest = residual(lifted, q);
  }
  rest.forEach((x, i) => (output[i] += reach * x));
  return { accepted: 1 - reach, error: distance(output, p) };
}

/** Test k independent drafts under typical acceptance: one is accepted if p gives it more than θ = min(ε, δ·exp(−H)),
 *  of several the most likely; otherwise the token is sampled from p.
 *  Source: Cai et al. 2024, Medusa, arXiv:2401.10774, §2.3.1. */
export function typical(p, q, { epsilon, delta }, k) {
  const entropy = -sum(p.map((x) => (x > 0 ? x * Math.log(x) : 0)));
  const least = Math.min(epsilon, delta * Math.exp(-entropy)), output = p.map(() => 0);
  let missed = 1, below = 1; // probability that no draft is accepted, over tokens by descending p
  for (const i of [...p.keys()].sort((a, b) => p[b] - p[a]).filter((at) => p[at] > least)) {
    below -= q[i];
    const none = Math.max(0, below) ** k;
    output[i] += missed - none;
    missed = none;
  }
  p.forEach((x, i) => (output[i] += missed * x));
  return { accepted: 1 - missed, error: distance(output, p) };
}

/** Approximate rules at their default parameters; `exact` is the line with the same drafts. */
export const APPROXIMATE = [
  { id: "lenient/independent", title: "lenient, λ = 0.5", exact: "independent/independent",
    of: (p, q, k) => lenient(p, q, 0.5, k) },
  { id: "typical/independent", title: "typical, ε = 0.09, δ = 0.3", exact: "independent/independent",
    of: (p, q, k) => typical(p, q, { epsilon: 0.09, delta: 0.3 }, k) },
];

/** Return the acceptance rate of the approximate rules and their distance from p for k = 1 … 8. @returns
 *  {Record<string, {accepted: number, error: number}[]>} */
export function priced(p, q) {
  const ks = Array.from({ length: DRAFTS }, (_, i) => i + 1);
  return Object.fromEntries(APPROXIMATE.map(({ id, of }) => [id, ks.map((k) => of(p, q, k))]));
}

/** Return p and q at their temperatures. */
export function tempered({ p, q, tp, tq }) {
  return { p: atTemperature(p, tp), q: atTemperature(q, tq) };
}
