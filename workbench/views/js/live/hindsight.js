/** Best tree in hindsight: the additional draft that would have been accepted where a round's drafts ended. Pure. */

/** Return the additional draft after a round's accepted path that would have equalled the target's own token there.
 *
 *  Ranks come from the recorded `top_q` or `ranking`, with the same rule as `workbench.trace.whatif.width`, whose 0
 *  is "beyond" here.
 *  @param {any} round
 *  @returns {{state: "saved"|"beyond"|"unknown"|"none", rank: number|null, q: number|null, text: string, place: number,
 *    recorded: number, sibling: boolean, greedy: boolean, reason: string}}
 *    `place`: node after which the draft is missing, −1: the root; `sibling`: the position had drafts (all rejected),
 *    otherwise the draft ended there; `recorded`: number of recorded ranks; `reason`: why there is none */
export function of(round) {
  const out = { state: /** @type {any} */ ("none"), rank: null, q: null, text: "", place: -1, recorded: 0, sibling: false, greedy: false, reason: "" };
  if (!round) return { ...out, reason: "no round is selected" };
  const { nodes, path } = round, place = path.at(-1) ?? -1;
  if (!nodes.parents.length) return { ...out, reason: "the round has no drafts" };
  if (round.bonus === null) return { ...out, reason: "the target added no token to this round" };
  const children = nodes.parents.flatMap((parent, i) => (parent === place ? [i] : []));
  const own = round.emitted.findLast((e) => e.token === round.bonus);
  const found = { ...out, place, sibling: children.length > 0, greedy: round.params?.temperature === 0, text: own?.text ?? "" };
  if (children.some((i) => nodes.tokens[i] === round.bonus))
    return { ...found, reason: "the target's token was drafted here, but its test failed" };
  const top = round.top_q?.[place + 1] ?? round.ranking?.[place + 1] ?? null;
  if (!top) return { ...found, state: "unknown" };
  const at = top.tokens.indexOf(round.bonus);
  if (at < 0) return { ...found, state: "beyond", recorded: top.tokens.length };
  return { ...found, state: "saved", rank: at + 1, q: top.prob[at], text: top.text[at] || found.text, recorded: top.tokens.length };
}

/** State the result in one sentence. Pure. @param {ReturnType<typeof of>} found  @param {(text: string) => string}
 *  visible */
export function words(found, visible) {
  const { state, rank, q, text, sibling, greedy, recorded, reason } = found, token = text ? ` “${visible(text)}”` : "";
  if (state === "none") return `No better draft: ${reason}.`;
  if (state === "unknown") return "Not known: the trace has no drafter ranking at the end of the accepted path.";
  const where = sibling ? "as a sibling" : "one level deeper";
  if (state === "beyond") return `The target's token${token} is not among the drafter's ${recorded} recorded tokens here.`;
  const chance = greedy ? "would have been accepted" : "could have been accepted (a matter of chance, because this run samples)";
  return `The drafter's token of rank ${rank} ${chance}: draft${token} ${where}, q ${q.toFixed(2)}.`;
}
