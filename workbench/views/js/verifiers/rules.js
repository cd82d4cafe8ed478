/** Verification rules for several drafts of one position, each as in its paper. Pure.
 *
 *  A rule is prepared for p, q and n drafts; given the drafts, it returns the tests in order, as a list of branches of
 *  which one is taken at random. Most rules have one branch.
 *
 *  @typedef {{draft: number, against: number[], by: number[], accept: number}} Test
 *    `draft`: index of the draft; `against`: residual of p; `by`: the distribution to divide by; `accept`: probability
 *  @typedef {{prob: number, says: string, tests: Test[], residual: number[]}} Branch
 *    `residual`: distribution of the emitted token if no test passes */

import { normalised, overlap, residual, sum, without } from "./distributions.js";
import { draftProbs } from "./sampling.js";

const TINY = 1e-300;
const HALVINGS = 50, STEPS = 40, MOST = 40;

/** Test the drafts in order, each against the residual of p after the earlier ones. @returns {Branch[]} */
function testSequentially(p, drafts, by) {
  const tests = [];
  let rest = p;
  for (const [draft, token] of drafts.entries()) {
    const probs = by(draft);
    tests.push({ draft, against: rest, by: probs, accept: Math.min(1, rest[token] / Math.max(probs[token], TINY)) });
    rest = residual(rest, probs);
  }
  return [{ prob: 1, says: "", tests, residual: rest }];
}

/** Return ρ*, the least divisor in [1, k] with which k tests accept no token more often than p allows. Sun et al.
 *  2023, §4. */
export function discount(p, q, k) {
  let low = 1, high = k;
  for (let i = 0; i < HALVINGS; i += 1) {
    const rho = (low + high) / 2, beta = overlap(q, p.map((x) => x / rho));
    if (rho * beta >= 1 - (1 - beta) ** k) high = rho;
    else low = rho;
  }
  return high;
}

/** Return the log weights by which the optimal rule for two drafts selects, and the distribution r of its selection.
 *  log w ← log w + log p − log r; of all weights seen, the ones with the largest Σ min(p, r). @returns {{w: number[],
 *  r: number[]}} */
export function weights(p, q, sampling) {
  const of = (w) =>
    q.map((x, i) =>
      sum(q.map((y, j) => {
        if (i === j) return sampling === "independent" ? x * x : 0;
        const both =
          sampling === "independent" ? 2 * x * y : x * y * (1 / Math.max(1 - x, TINY) + 1 / Math.max(1 - y, TINY));
        return both / (1 + Math.exp(w[j] - w[i]));
      })),
    );
  const log = (x) => Math.log(Math.max(x, TINY));
  let w = q.map(() => 0), best = { w, r: of(w) };
  for (let step = 0; step <= STEPS; step += 1) {
    const r = of(w);
    if (overlap(p, r) > overlap(p, best.r)) best = { w, r };
    w = w.map((x, i) => Math.min(MOST, Math.max(-MOST, x + log(p[i]) - log(r[i]))));
  }
  return best;
}

/** @type {Record<string, {title: string, paper: string, says: string, exact: string[], ready: (p: number[], q:
 *  number[], n: number, sampling: string) => (drafts: number[]) => Branch[]}>} */
export const RULES = {
  recursive: {
    title: "Recursive rejection",
    paper: "Jeon et al. 2024, arXiv:2402.14160; each draft with its own sampling distribution",
    says: "Each draft is tested against the residual of p after the earlier drafts, with the distribution it was sampled from.",
    exact: ["independent", "without", "head", "fixed"],
    ready: (p, q, n, sampling) => (drafts) =>
      testSequentially(p, drafts, (j) => draftProbs(q, drafts.slice(0, j), n, sampling)),
  },
  independent: {
    title: "Independent",
    paper: "Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2",
    says: "Each draft is tested against the residual of p after the earlier drafts, as a sample from q.",
    exact: ["independent"],
    ready: (p, q) => (drafts) => testSequentially(p, drafts, () => q),
  },
  "k-seq": {
    title: "K-SEQ",
    paper: "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4",
    says: "The first draft that passes p / (ρ·q) is accepted; ρ corrects for the repeated tests.",
    exact: ["independent"],
    ready: (p, q, n) => {
      const rho = discount(p, q, n), common = q.map((x, i) => Math.min(x, p[i] / rho)), beta = sum(common);
      const any = 1 - (1 - beta) ** n;
      const rest = normalised(p.map((x, i) => Math.max(0, x - (common[i] * any) / Math.max(beta, TINY))), p);
      const by = q.map((x) => x * rho);
      const test = (token, draft) => ({ draft, against: p, by, accept: common[token] / Math.max(q[token], TINY) });
      return (drafts) => [{ prob: 1, says: `ρ = ${rho.toFixed(3)}`, tests: drafts.map(test), residual: rest }];
    },
  },
  "optimal-two": {
    title: "Optimal choice of two drafts",
    paper: "after Hu et al. 2025, arXiv:2502.18779, and Khisti et al. 2024, arXiv:2410.18234",
    says: "One of the first two drafts is chosen at random with optimised weights, and tested with the distribution r of the chosen draft.",
    exact: ["independent", "without"],
    ready: (p, q, n, sampling) => {
      const { w, r } = n > 1 ? weights(p, q, sampling) : { w: q, r: q }, rest = residual(p, r);
      return (drafts) => {
        const first = n > 1 ? 1 / (1 + Math.exp(w[drafts[1]] - w[drafts[0]])) : 1;
        const choices = n > 1 ? [[0, first], [1, 1 - first]] : [[0, 1]];
        return choices.map(([draft, prob]) => {
          const accept = Math.min(1, p[drafts[draft]] / Math.max(r[drafts[draft]], TINY));
          const more = testSequentially(rest, drafts.slice(2), (j) =>
            sampling === "independent" ? q : draftProbs(q, drafts.slice(0, j + 2), n, "without"))[0];
          const tests = [
            { draft, against: p, by: r, accept },
            ...more.tests.map((test) => ({ ...test, draft: test.draft + 2 })),
          ];
          return { prob, says: n > 1 ? `draft ${draft + 1} chosen` : "", tests, residual: more.residual };
        });
      };
    },
  },
  "greedy-draft": {
    title: "Greedy draft",
    paper: "Hu et al. 2025, arXiv:2502.18779",
    says: "Only the last draft is tested, with q̃, which is q without the other drafts. If it is rejected, y ~ (p − q̃)₊ may equal one of the other drafts.",
    exact: ["without", "head"],
    ready: (p, q) => (drafts) => {
      const last = drafts.length - 1, by = without(q, drafts.slice(0, last)), token = drafts[last];
      const accept = by[token] > 0 ? Math.min(1, p[token] / by[token]) : 0;
      return [{ prob: 1, says: "", tests: [{ draft: last, against: p, by, accept }], residual: residual(p, by) }];
    },
  },
  deterministic: {
    title: "Sample and match",
    paper: "Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4; naive sampling of SpecInfer",
    says: "The target samples y ~ p; a draft equal to y is accepted. q is not used.",
    exact: ["independent", "without", "head", "fixed"],
    ready: (p) => (drafts) => testSequentially(p, drafts, (j) => p.map((_, i) => Number(i === drafts[j]))),
  },
};

/** Return whether the output has distribution p for any p and q. One sampled draft is the same case for all rules. */
export function sound(rule, sampling, k) {
  return RULES[rule].exact.includes(sampling) || (k === 1 && sampling !== "fixed");
}

/** Return the distribution of the emitted token, given the drafts. @param {Branch[]} branches */
export function emitted(branches, drafts) {
  const probs = branches[0].residual.map(() => 0);
  for (const { prob, tests, residual: rest } of branches) {
    let on = prob;
    for (const { draft, accept } of tests) {
      probs[drafts[draft]] += on * accept;
      on *= 1 - accept;
    }
    rest.forEach((x, i) => (probs[i] += on * x));
  }
  return probs;
}
