/** Sampling of rounds in the page: drafts, tests, the emitted token. Pure. */

import { tokenAt, count, sampleDrafts, uniforms } from "./sampling.js";
import { RULES } from "./rules.js";

/** Sample one round. @param {() => number} uniform
 *  @returns {{drafts: number[], says: string, residual: number[], token: number, acceptedDraft: number|null,
 *            tests: {draft: number, token: number, against: number[], by: number[], accept: number, u: number,
 *            passed: boolean}[]}} `acceptedDraft`: index of the accepted draft, or null */
function sampleRound(rule, q, n, sampling, uniform) {
  const drafts = sampleDrafts(q, n, sampling, uniform), branches = rule(drafts);
  const branch = branches.length > 1 && uniform() >= branches[0].prob ? branches[1] : branches[0];
  const tests = [], found = { drafts, says: branch.says, residual: branch.residual, tests };
  for (const test of branch.tests) {
    const u = uniform(), passed = u < test.accept;
    tests.push({ ...test, token: drafts[test.draft], u, passed });
    if (passed) return { ...found, token: drafts[test.draft], acceptedDraft: test.draft };
  }
  return { ...found, token: tokenAt(branch.residual, uniform()), acceptedDraft: null };
}

/** Sample the first `rounds` rounds of a seed: count of each token, count of accepted drafts, and the last round (the
 *  first one if none is counted). */
export function tally({ p, q }, { k, way: sampling, rule, seed, rounds }) {
  const n = count(q, k, sampling), prepared = RULES[rule].ready(p, q, n, sampling), uniform = uniforms(seed);
  const counts = p.map(() => 0);
  let accepted = 0, last = null;
  for (let i = 0; i < Math.max(1, rounds); i += 1) {
    last = sampleRound(prepared, q, n, sampling, uniform);
    if (!rounds) break;
    counts[last.token] += 1;
    accepted += Number(last.drafts.includes(last.token));
  }
  return { counts, accepted, last };
}
