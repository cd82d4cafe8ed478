/** Ways of sampling the k drafts of a position: the distribution of each draft, given the earlier ones. Pure. */

import { point, without } from "./distributions.js";

export const WAYS = {
  independent: { title: "independent", says: "each sampled from q; a token may occur twice" },
  without: { title: "without replacement", says: "each sampled from q without the earlier tokens" },
  head: { title: "k − 1 fixed, 1 sampled", says: "the most likely k − 1 tokens of q, and one sampled from the rest" },
  fixed: { title: "top k, fixed", says: "the most likely k tokens of q, without sampling" },
};

const order = (q) => [...q.keys()].sort((a, b) => q[b] - q[a]);

/** Return the number of drafts: at most the tokens of q, unless tokens may repeat. */
export function count(q, k, sampling) {
  return sampling === "independent" ? k : Math.min(k, q.filter((x) => x > 0).length);
}

/** Return the distribution of draft number `earlier.length` of n. */
export function draftProbs(q, earlier, n, sampling) {
  const j = earlier.length;
  if (sampling === "independent") return q;
  if (sampling === "without" || (sampling === "head" && j === n - 1)) return without(q, earlier);
  return point(order(q)[j], q.length);
}

/** Enumerate all outcomes of n drafts: [tokens, probability]. @returns {[number[], number][]} */
export function tuples(q, n, sampling) {
  let found = /** @type {[number[], number][]} */ ([[[], 1]]);
  for (let j = 0; j < n; j += 1)
    found = found.flatMap(([earlier, prob]) =>
      draftProbs(q, earlier, n, sampling).flatMap((x, i) =>
        x > 0 ? [/** @type {[number[], number]} */ ([[...earlier, i], prob * x])] : [],
      ),
    );
  return found;
}

/** Return an upper bound of the number of outcomes. */
export function size(q, n, sampling) {
  const m = q.filter((x) => x > 0).length;
  if (sampling === "independent") return m ** n;
  return sampling === "without" ? Array.from({ length: n }, (_, i) => m - i).reduce((a, b) => a * b, 1) : m;
}

/** Sample n drafts. @param {() => number} uniform  returns a number in [0, 1) @returns {number[]} */
export function sampleDrafts(q, n, sampling, uniform) {
  const found = [];
  while (found.length < n) {
    const probs = draftProbs(q, found, n, sampling);
    found.push(probs.includes(1) ? probs.indexOf(1) : tokenAt(probs, uniform()));
  }
  return found;
}

/** Return the token at quantile u of a distribution. */
export function tokenAt(probs, u) {
  let above = u;
  const at = probs.findIndex((x) => (above -= x) < 0);
  return at >= 0 ? at : probs.findLastIndex((x) => x > 0);
}

/** Return a generator of uniform numbers that follow from a seed (mulberry32). @returns {() => number} */
export function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}
