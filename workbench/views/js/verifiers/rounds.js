/** Sampling of rounds in the page: drafts, tests, the emitted token. Pure. */

import { pick, count, draw, uniforms } from "./ways.js";
import { RULES } from "./rules.js";

/** Sample one round. @param {() => number} uniform  @returns {{drafts: number[], says: string, left: number[], token:
 *  number, kept: number|null, tests: {draft: number, token: number, against: number[], by: number[], accept: number,
 *  u: number, passed: boolean}[]}} `kept`: accepted draft, or null */
function one(judge, q, n, way, uniform) {
  const drafts = draw(q, n, way, uniform), branches = judge(drafts);
  const branch = branches.length > 1 && uniform() >= branches[0].chance ? branches[1] : branches[0];
  const tests = [], found = { drafts, says: branch.says, left: branch.left, tests };
  for (const test of branch.tests) {
    const u = uniform(), passed = u < test.accept;
    tests.push({ ...test, token: drafts[test.draft], u, passed });
    if (passed) return { ...found, token: drafts[test.draft], kept: test.draft };
  }
  return { ...found, token: pick(branch.left, uniform()), kept: null };
}

/** Sample the first `rounds` rounds of a seed: count of each token, count of accepted drafts, and the last round (the
 *  first one if none is counted). */
export function tally({ p, q }, { k, way, rule, seed, rounds }) {
  const n = count(q, k, way), judge = RULES[rule].ready(p, q, n, way), uniform = uniforms(seed);
  const counts = p.map(() => 0);
  let accepted = 0, last = null;
  for (let i = 0; i < Math.max(1, rounds); i += 1) {
    last = one(judge, q, n, way, uniform);
    if (!rounds) break;
    counts[last.token] += 1;
    accepted += Number(last.drafts.includes(last.token));
  }
  return { counts, accepted, last };
}
