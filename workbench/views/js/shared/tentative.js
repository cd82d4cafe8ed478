/** Tentative tokens after the final text of a run whose decoder places tokens at positions of its choice and revokes
 *  some. */

import * as kit from "./kit.js";

/** Return the tentative tokens after `rounds`, the first ones of a run, with masked positions between them: see
 *  `workbench.trace.events.list_tentative_tokens`.
 *  @typedef {{token: number, text: string, p: number, round: number}} Standing
 *  @param {{revoked?: number[], placed?: {position: number, token?: number, text: string, p: number}[],
 *    emitted: {position: number}[]}[]} rounds
 *  @returns {{position: number, token: Standing|null}[]}  `null`: masked */
export function tentativeTokens(rounds) {
  const found = new Map();
  rounds.forEach((r, round) => {
    for (const position of r.revoked ?? []) found.delete(position);
    for (const { position, token, text, p } of r.placed ?? []) found.set(position, { token, text, p, round });
    if (found.size) for (const e of r.emitted) found.delete(e.position);
  });
  if (!found.size) return [];
  const places = [...found.keys()], last = Math.max(...places), final = rounds.findLast((r) => r.emitted.length);
  const first = final ? final.emitted.at(-1).position + 1 : Math.min(...places);
  return Array.from({ length: last - first + 1 }, (_, i) => ({
    position: first + i,
    token: found.get(first + i) ?? null,
  }));
}

/** Return whether a round sets tentative tokens, or writes several tokens or none, without a draft. Pure. */
export function isPlacing(round) {
  const { nodes, placed, revoked, emitted } = round;
  return nodes.status.length === 0 && Boolean(placed?.length || revoked?.length || (emitted?.length ?? 1) !== 1);
}

/** Describe a round that places tokens. Pure. */
export function words(round) {
  const places = (n) => `${n} ${n === 1 ? "position" : "positions"}`;
  return `${places(round.placed.length)} filled, ${places(round.revoked.length)} revoked, ${round.emitted.length} final`;
}

/** Describe a round without a draft. Pure. */
export function noDraftWords(round) {
  return isPlacing(round)
    ? "No drafts: the target fills positions directly and may revise them in later rounds."
    : "No drafts in this round: plain decoding.";
}

/** Draw the tentative tokens after the text, with a block per masked position; null if there are none.
 *  @param {ReturnType<typeof tentativeTokens>} found  @param {(text: string) => string} legible */
export function draw(found, legible) {
  if (!found.length) return null;
  const row = kit.h("span", { className: "wb-row" }), box = kit.h("span", { className: "wb-round is-coming" }, row);
  kit.set(box, { "aria-hidden": "true" });
  for (const { token } of found) {
    const title = token ? `tentative; p = ${token.p.toFixed(2)}, filled in round ${token.round + 1}` : "masked";
    row.append(
      kit.h("span", { className: `wb-guess is-${token ? "set" : "masked"}`, title }, token ? legible(token.text) : "▒"),
    );
  }
  return box;
}
