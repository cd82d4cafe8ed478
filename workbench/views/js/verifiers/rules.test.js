import assert from "node:assert/strict";
import { test } from "node:test";
import { acceptance, APPROXIMATE, chains, curves, lenient, outcome, priced, transport, typical } from "./acceptance.js";
import { distance, withEntry, noise, overlap, residual, sum, atTemperature } from "./distributions.js";
import { emitted, RULES, sound, weights } from "./rules.js";
import { tally } from "./rounds.js";
import { count, sampleDrafts, size, tuples, uniforms, WAYS } from "./sampling.js";

const P = [0.5, 0.3, 0.15, 0.05], Q = [0.1, 0.4, 0.3, 0.2];
const near = (a, b, within = 1e-6) => assert.ok(Math.abs(a - b) < within, `${a} is not ${b}`);

/** Random pairs of distributions, some with a token that one of them lacks. */
function pairs(n) {
  const uniform = uniforms(7);
  return Array.from({ length: n }, (_, i) => {
    const size = 2 + (i % 4), of = (zero) => {
      const probs = Array.from({ length: size }, (_, t) => (t === zero ? 0 : uniform() ** 3 + 1e-3));
      return probs.map((x) => x / sum(probs));
    };
    return [of(i % 3 ? -1 : 0), of(i % 2 ? -1 : size - 1)];
  });
}

test("the reference distributions have the acceptance rates of the verification cards", () => {
  const golden = {
    "independent/independent": [0.64, 0.676],
    "k-seq/independent": [0.658443, 0.710003],
    "recursive/without": [0.656845, 0.748988],
    "greedy-draft/head": [0.666667, 0.833333],
    "bound/independent": [0.69, 0.771],
    "bound/without": [0.734524, 0.94881],
    "deterministic/fixed": [0.45, 0.5],
  };
  const found = curves(P, Q);
  for (const [id, values] of Object.entries(golden)) values.forEach((v, i) => near(found[id][i + 1], v));
  near(found["optimal-two/independent"][1], 0.69);
  near(found["optimal-two/without"][1], 0.734524);
  for (const [id, values] of Object.entries(found)) if (!id.startsWith("deterministic")) near(values[0], 0.6);
});

test("a sound combination emits p for any distributions, and an unsound one does not for some", () => {
  for (const rule in RULES) for (const sampling in WAYS) for (const k of [1, 2, 3]) {
    if (sound(rule, sampling, k)) {
      for (const [p, q] of pairs(12)) near(distance(outcome(p, q, k, sampling, rule).probs, p), 0, 1e-9);
    } else {
      const missed = [[P, Q], ...pairs(12)].map(([p, q]) => distance(outcome(p, q, k, sampling, rule).probs, p));
      assert.ok(Math.max(...missed) > 0.01, `${rule} on ${sampling}, ${k}`);
    }
  }
});

test("the top two drafts under p/q give the distribution of the cards, far from p", () => {
  const { probs: probs } = outcome(P, Q, 2, "fixed", "independent");
  [0.25, 0.75, 0, 0].forEach((x, i) => near(probs[i], x));
  near(distance(probs, P), 0.45);
});

test("closed forms equal enumeration of all drafts", () => {
  for (const [p, q] of pairs(12))
    for (const rule of ["recursive", "independent", "k-seq", "optimal-two", "deterministic"])
      for (const k of [1, 2, 3, 4])
        near(acceptance(p, q, k, "independent", rule), outcome(p, q, k, "independent", rule).accepted, 1e-9);
});

test("rules are ordered as in theory, below the bound of their drafts, which grows with k", () => {
  for (const [p, q] of pairs(30)) {
    const found = curves(p, q);
    for (let i = 0; i < 8; i += 1) {
      const [one, k, bound] = ["independent", "k-seq", "bound"].map((rule) => found[`${rule}/independent`][i]);
      assert.ok(one <= k + 1e-9 && k <= bound + 1e-9);
      assert.ok(found["recursive/without"][i] <= found["bound/without"][i] + 1e-9);
      for (const sampling of ["independent", "without"])
        assert.ok(found[`optimal-two/${sampling}`][i] <= found[`bound/${sampling}`][i] + 1e-9);
      if (i) assert.ok(found["bound/independent"][i] >= found["bound/independent"][i - 1] - 1e-12);
    }
    near(found["optimal-two/independent"][1], found["bound/independent"][1], 2e-3);
    near(found["greedy-draft/head"][1], transport(p, q, 2, "head").bound, 1e-9);
  }
});

test("the weights of the best of two give the distribution of the selection", () => {
  for (const sampling of ["independent", "without"]) {
    const { w, r } = weights(P, Q, sampling), probs = P.map(() => 0);
    for (const [[x, y], prob] of tuples(Q, 2, sampling)) {
      const first = 1 / (1 + Math.exp(w[y] - w[x]));
      probs[x] += prob * first;
      probs[y] += prob * (1 - first);
    }
    near(distance(probs, r), 0, 1e-12);
  }
});

test("block verification accepts more in a chain, and as many at one position", () => {
  for (const [p, q] of pairs(12)) {
    const { token, block } = chains(p, q);
    near(block[0], token[0], 1e-9);
    block.forEach((v, i) => assert.ok(v >= token[i] - 1e-9 && v <= i + 1 + 1e-9));
  }
  near(chains(P, Q).block[1], 1); // .6 + E[min(1, min(1, p/q)·p/q)] = .6 + .4
});

test("lenience raises acceptance and the distance from p; at 1 it is exact", () => {
  near(lenient(P, Q, 1).accepted, 0.6);
  near(lenient(P, Q, 1).error, 0, 1e-12);
  // λ = ½: min(q, 2p) accepts .1 + .4 + .3 + .1; the residual (2p − q)₊ = (.9, .2, 0, 0) gets the remaining .1
  near(lenient(P, Q, 0.5).accepted, 0.9);
  near(lenient(P, Q, 0.5).error, 0.1 + 0.1 * (2 / 11) + 0.15 + 0.05);
});

/** Return acceptance and distance from p of a rule with k independent drafts, by enumerating all of them.
 *  `rule`: drafts → [acceptance, distribution of the emitted token]. */
function enumerate(p, q, k, rule) {
  const probs = p.map(() => 0);
  let accepted = 0;
  for (const [drafts, prob] of tuples(q, k, "independent")) {
    const [acceptedShare, each] = rule(drafts);
    accepted += prob * acceptedShare;
    each.forEach((x, i) => (probs[i] += prob * x));
  }
  return { accepted, error: distance(probs, p) };
}

test("acceptance and distance of approximate rules equal enumeration of all drafts", () => {
  const knobs = { epsilon: 0.09, delta: 0.3 };
  for (const [p, q] of [[P, Q], ...pairs(12)]) for (const k of [1, 2, 3]) {
    const H = -sum(p.map((x) => (x > 0 ? x * Math.log(x) : 0))), least = Math.min(0.09, 0.3 * Math.exp(-H));
    const byThreshold = enumerate(p, q, k, (drafts) => {
      const best = drafts.filter((t) => p[t] > least).sort((a, b) => p[b] - p[a])[0];
      return best === undefined ? [0, p] : [1, p.map((_, i) => Number(i === best))];
    });
    const oneByOne = enumerate(p, q, k, (drafts) => {
      const probs = p.map(() => 0);
      let rest = p, on = 1;
      for (const t of drafts) {
        const accept = Math.min(1, rest[t] / 0.5 / q[t]);
        probs[t] += on * accept;
        on *= 1 - accept;
        rest = residual(rest.map((x) => x / 0.5), q);
      }
      return [1 - on, probs.map((x, i) => x + on * rest[i])];
    });
    for (const [ours, wanted] of [[typical(p, q, knobs, k), byThreshold], [lenient(p, q, 0.5, k), oneByOne]]) {
      near(ours.accepted, wanted.accepted, 1e-9);
      near(ours.error, wanted.error, 1e-9);
    }
    near(lenient(p, q, 1, k).accepted, acceptance(p, q, k, "independent", "independent"), 1e-9);
    near(lenient(p, q, 1, k).error, 0, 1e-9);
  }
  const found = priced(P, Q);
  for (const { id, of } of APPROXIMATE) assert.deepEqual(found[id][2], of(P, Q, 3));
});

test("drafts have the frequencies of their sampling, without repeats where none are allowed, and depend only on the seed", () => {
  for (const sampling in WAYS) {
    const all = tuples(Q, 2, sampling), uniform = uniforms(3), n = 40000, seen = new Map();
    near(sum(all.map(([, prob]) => prob)), 1, 1e-12);
    assert.ok(all.length <= size(Q, 2, sampling));
    for (let i = 0; i < n; i += 1) {
      const key = sampleDrafts(Q, 2, sampling, uniform).join();
      seen.set(key, (seen.get(key) ?? 0) + 1);
    }
    for (const [tokens, prob] of all) near((seen.get(tokens.join()) ?? 0) / n, prob, 0.012);
    if (sampling !== "independent") assert.ok(all.every(([tokens]) => new Set(tokens).size === 2));
  }
  assert.equal(count([0.5, 0.5, 0], 3, "without"), 2);
  assert.equal(count([0.5, 0.5, 0], 3, "independent"), 3);
  const state = { k: 3, way: "without", rule: "optimal-two", seed: 5, rounds: 50 };
  assert.deepEqual(tally({ p: P, q: Q }, state), tally({ p: P, q: Q }, state));
});

test("samples have the computed distribution and acceptance rate, for every sound rule", () => {
  for (const rule in RULES) for (const sampling of RULES[rule].exact) {
    const rounds = 20000, { counts, accepted } = tally({ p: P, q: Q }, { k: 3, way: sampling, rule, seed: 11, rounds });
    assert.ok(distance(counts.map((x) => x / rounds), P) < 4 * noise(P, rounds), `${rule} on ${sampling}`);
    near(accepted / rounds, outcome(P, Q, 3, sampling, rule).accepted, 0.015);
  }
});

test("distributions: overlap, residual, temperature, a moved bar", () => {
  near(overlap(P, Q), 0.6);
  assert.deepEqual(residual(P, Q), [1, 0, 0, 0]);
  assert.deepEqual(residual(P, P), P);
  near(distance(atTemperature(atTemperature(P, 2), 0.5), P), 0, 1e-12);
  near(atTemperature(P, 0.1)[0], 1, 0.01);
  const probs = withEntry(P, 0, 0.75);
  [0.75, 0.15, 0.075, 0.025].forEach((x, i) => near(probs[i], x));
  assert.deepEqual(withEntry([1, 0, 0], 0, 0.5), [0.5, 0.25, 0.25]);
  assert.deepEqual(withEntry(P, 1, 7), [0, 1, 0, 0]);
  near(sum(emitted(RULES["k-seq"].ready(P, Q, 2, "independent")([2, 1]), [2, 1])), 1, 1e-12);
});
