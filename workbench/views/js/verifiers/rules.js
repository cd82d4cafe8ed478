/** The rules that verify several drafts for one place, each as its paper states it. Pure.
 *
 *  A rule is made ready for p, q and n drafts, and then, given the drafts, says which are tested, in order. Its answer
 *  is a list of branches, of which one is taken by chance; most rules have one.
 *
 *  @typedef {{draft: number, against: number[], by: number[], accept: number}} Test
 *    `draft`: which of the drafts; `against`: what is left of p; `by`: the law it is divided by; `accept`: the chance
 *  @typedef {{chance: number, says: string, tests: Test[], left: number[]}} Branch
 *    `left`: the law of the token that is emitted if no test passes */

import { normalised, overlap, residual, sum, without } from "./laws.js";
import { lawOf } from "./ways.js";

const TINY = 1e-300;
const HALVINGS = 50, STEPS = 40, MOST = 40;

/** Test one draft after the other against what its elders left of p. @returns {Branch[]} */
function oneAfterTheOther(p, drafts, by) {
  const tests = [];
  let left = p;
  for (const [draft, token] of drafts.entries()) {
    const law = by(draft);
    tests.push({ draft, against: left, by: law, accept: Math.min(1, left[token] / Math.max(law[token], TINY)) });
    left = residual(left, law);
  }
  return [{ chance: 1, says: "", tests, left }];
}

/** ρ*, the least divisor in [1, k] for which k tests accept no token more often than p has it. Sun et al. 2023, §4. */
export function discount(p, q, k) {
  let low = 1, high = k;
  for (let i = 0; i < HALVINGS; i += 1) {
    const rho = (low + high) / 2, beta = overlap(q, p.map((x) => x / rho));
    if (rho * beta >= 1 - (1 - beta) ** k) high = rho;
    else low = rho;
  }
  return high;
}

/** Logarithms of the weights by which the best rule for two drafts chooses, and the law r of its choice.
 *  log w ← log w + log p − log r; of all weights met, those of the largest Σ min(p, r). @returns {{w: number[], r:
 *  number[]}} */
export function weights(p, q, way) {
  const of = (w) =>
    q.map((x, i) =>
      sum(q.map((y, j) => {
        if (i === j) return way === "independent" ? x * x : 0;
        const both =
          way === "independent" ? 2 * x * y : x * y * (1 / Math.max(1 - x, TINY) + 1 / Math.max(1 - y, TINY));
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
 *  number[], n: number, way: string) => (drafts: number[]) => Branch[]}>} */
export const RULES = {
  recursive: {
    title: "Recursive rejection",
    paper: "Jeon et al. 2024, arXiv:2402.14160; each draft by the law it was drawn from",
    says: "Each draft is tested against what its elders left of p, by the law that it was drawn from.",
    exact: ["independent", "without", "head", "fixed"],
    ready: (p, q, n, way) => (drafts) =>
      oneAfterTheOther(p, drafts, (j) => lawOf(q, drafts.slice(0, j), n, way)),
  },
  independent: {
    title: "Independent",
    paper: "Miao et al. 2024, SpecInfer, arXiv:2305.09781, Algorithm 2",
    says: "Each draft is tested against what its elders left of p, as a draw from q itself.",
    exact: ["independent"],
    ready: (p, q) => (drafts) => oneAfterTheOther(p, drafts, () => q),
  },
  "k-seq": {
    title: "K-SEQ",
    paper: "Sun et al. 2023, SpecTr, arXiv:2310.15141, §4",
    says: "The first draft that passes p / (ρ·q) is kept; ρ makes up for the many chances.",
    exact: ["independent"],
    ready: (p, q, n) => {
      const rho = discount(p, q, n), common = q.map((x, i) => Math.min(x, p[i] / rho)), beta = sum(common);
      const any = 1 - (1 - beta) ** n;
      const left = normalised(p.map((x, i) => Math.max(0, x - (common[i] * any) / Math.max(beta, TINY))), p);
      const by = q.map((x) => x * rho);
      const test = (token, draft) => ({ draft, against: p, by, accept: common[token] / Math.max(q[token], TINY) });
      return (drafts) => [{ chance: 1, says: `ρ = ${rho.toFixed(3)}`, tests: drafts.map(test), left }];
    },
  },
  "optimal-two": {
    title: "The best of two",
    paper: "after Hu et al. 2025, arXiv:2502.18779, and Khisti et al. 2024, arXiv:2410.18234",
    says: "One of the first two drafts is chosen by weights, and tested by the law r that the choice has.",
    exact: ["independent", "without"],
    ready: (p, q, n, way) => {
      const { w, r } = n > 1 ? weights(p, q, way) : { w: q, r: q }, rest = residual(p, r);
      return (drafts) => {
        const first = n > 1 ? 1 / (1 + Math.exp(w[drafts[1]] - w[drafts[0]])) : 1;
        const choices = n > 1 ? [[0, first], [1, 1 - first]] : [[0, 1]];
        return choices.map(([draft, chance]) => {
          const accept = Math.min(1, p[drafts[draft]] / Math.max(r[drafts[draft]], TINY));
          const more = oneAfterTheOther(rest, drafts.slice(2), (j) =>
            way === "independent" ? q : lawOf(q, drafts.slice(0, j + 2), n, "without"))[0];
          const tests = [
            { draft, against: p, by: r, accept },
            ...more.tests.map((test) => ({ ...test, draft: test.draft + 2 })),
          ];
          return { chance, says: n > 1 ? `draft ${draft + 1} chosen` : "", tests, left: more.left };
        });
      };
    },
  },
  "greedy-draft": {
    title: "Greedy draft",
    paper: "Hu et al. 2025, arXiv:2502.18779",
    says: "The last draft alone is tested, by q without the others (q̃); if it fails, y ~ (p − q̃)₊ may be one of them.",
    exact: ["without", "head"],
    ready: (p, q) => (drafts) => {
      const last = drafts.length - 1, by = without(q, drafts.slice(0, last)), token = drafts[last];
      const accept = by[token] > 0 ? Math.min(1, p[token] / by[token]) : 0;
      return [{ chance: 1, says: "", tests: [{ draft: last, against: p, by, accept }], left: residual(p, by) }];
    },
  },
  deterministic: {
    title: "Draw and follow",
    paper: "Li et al. 2024, EAGLE-2, arXiv:2406.16858, §4; naive sampling of SpecInfer",
    says: "The target draws y ~ p; a draft that has it is kept. q is not looked at.",
    exact: ["independent", "without", "head", "fixed"],
    ready: (p) => (drafts) => oneAfterTheOther(p, drafts, (j) => p.map((_, i) => Number(i === drafts[j]))),
  },
};

/** Whether what comes out has the law p, for any p and q. One draft that was drawn is everybody's case. */
export function sound(rule, way, k) {
  return RULES[rule].exact.includes(way) || (k === 1 && way !== "fixed");
}

/** The law of the emitted token, given the drafts. @param {Branch[]} branches */
export function emitted(branches, drafts) {
  const law = branches[0].left.map(() => 0);
  for (const { chance, tests, left } of branches) {
    let on = chance;
    for (const { draft, accept } of tests) {
      law[drafts[draft]] += on * accept;
      on *= 1 - accept;
    }
    left.forEach((x, i) => (law[i] += on * x));
  }
  return law;
}
