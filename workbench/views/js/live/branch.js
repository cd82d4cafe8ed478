/** "Continue from here": a new run whose prompt ends at a node of a draft tree, plus one selected token. */

import { tentativeTokens } from "../shared/tentative.js";
import { roundTokens } from "../shared/store.js";

/** Return the tokens up to a place in a round's tree: prompt, committed text, the nodes on the path to it. Pure.
 *  @param {{prompt_tokens: number[], prompt_text: string[]}} header  @param {object[]} rounds
 *  @param {{round: number, place: number, token: number, text: string}} pick  `place`: a node, or −1 for the root
 *  @returns {{prompt_tokens: number[], prompt: string}} */
export function continuation(header, rounds, { round, place, token, text }) {
  const { nodes } = rounds[round], line = [];
  for (let i = place; i >= 0; i = nodes.parents[i]) line.unshift(i);
  const earlier = rounds.slice(0, round);
  const tentative = tentativeTokens(earlier).flatMap(({ token: known }) => known ?? []);
  const before = [...earlier.flatMap((r) => r.emitted), ...tentative];
  return {
    prompt_tokens: [...header.prompt_tokens, ...before.map((e) => e.token), ...line.map((i) => nodes.tokens[i]), token],
    prompt: [...header.prompt_text, ...before.map((e) => e.text), ...line.map((i) => nodes.text[i]), text].join(""),
  };
}

/** Return the token that the original text has at that place; null where its path never reached it. Pure. */
export function originalToken(round, place) {
  const tip = round.path.at(-1) ?? -1;
  const original = roundTokens(round).find((e) => (e.node === null ? tip : round.nodes.parents[e.node]) === place);
  return original ? original.text : null;
}

/** Return the note that links a branch to its original run, and back; null for a run without either. Pure.
 *  @param {any} run  with `origin` (the original run), or with the `branch` that was continued from it
 *  @param {boolean} active  whether the branch is still running
 *  @param {(text: string) => string} visible  @returns {{text: string, button: string}|null} */
export function branchNote(run, active, visible) {
  if (run?.origin) {
    const text = words(run.origin, visible);
    if (!run.origin.run) return { text, button: "" };
    return active
      ? { text: `${text}. The original run is kept; you can show it after this run has ended.`, button: "" }
      : { text, button: "show the original run" };
  }
  return run?.branch ? { text: words(run.branch.origin, visible), button: "show the branch" } : null;
}

/** Describe the origin of a branch. Pure. */
export function words({ round, text, instead: was }, visible) {
  const replaced = was === null ? "" : ` instead of “${visible(was)}”`;
  return `branched at round ${round + 1}: “${visible(text)}”${replaced}`;
}
