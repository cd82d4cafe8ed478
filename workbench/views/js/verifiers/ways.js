/** How the k drafts for one place come: each way is the law of a draft, given its elder ones. Pure. */

import { point, without } from "./laws.js";

export const WAYS = {
  independent: { title: "independent", says: "each drawn from q; one token may come twice" },
  without: { title: "without replacement", says: "each drawn from q without the tokens before it" },
  head: { title: "k − 1 fixed, 1 drawn", says: "the likeliest k − 1 of q, and one drawn from the rest" },
  fixed: { title: "top k, fixed", says: "the likeliest k of q: nothing is drawn" },
};

const order = (q) => [...q.keys()].sort((a, b) => q[b] - q[a]);

/** How many drafts there are: no more than q has tokens, where none comes twice. */
export function count(q, k, way) {
  return way === "independent" ? k : Math.min(k, q.filter((x) => x > 0).length);
}

/** The law of draft number `elders.length` of n. */
export function lawOf(q, elders, n, way) {
  const j = elders.length;
  if (way === "independent") return q;
  if (way === "without" || (way === "head" && j === n - 1)) return without(q, elders);
  return point(order(q)[j], q.length);
}

/** All ways in which n drafts can come out: [tokens, chance]. @returns {[number[], number][]} */
export function tuples(q, n, way) {
  let found = /** @type {[number[], number][]} */ ([[[], 1]]);
  for (let j = 0; j < n; j += 1)
    found = found.flatMap(([elders, chance]) =>
      lawOf(q, elders, n, way).flatMap((x, i) =>
        x > 0 ? [/** @type {[number[], number]} */ ([[...elders, i], chance * x])] : [],
      ),
    );
  return found;
}

/** How many those are, at most. */
export function size(q, n, way) {
  const m = q.filter((x) => x > 0).length;
  if (way === "independent") return m ** n;
  return way === "without" ? Array.from({ length: n }, (_, i) => m - i).reduce((a, b) => a * b, 1) : m;
}

/** n drafts. @param {() => number} uniform  a number in [0, 1) at each call @returns {number[]} */
export function draw(q, n, way, uniform) {
  const found = [];
  while (found.length < n) {
    const law = lawOf(q, found, n, way);
    found.push(law.includes(1) ? law.indexOf(1) : pick(law, uniform()));
  }
  return found;
}

/** The token at u of a law. */
export function pick(law, u) {
  let above = u;
  const at = law.findIndex((x) => (above -= x) < 0);
  return at >= 0 ? at : law.findLastIndex((x) => x > 0);
}

/** Uniform numbers that follow from a seed (mulberry32). @returns {() => number} */
export function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
  };
}
