/** What stands behind the final text of a run whose decoder sets tokens at places of its choice, and takes some
 *  back. */

import * as kit from "./kit.js";

/** What stands after `rounds`, the first of a run, with the masked places between: see
 *  `workbench.trace.events.standing`.
 *  @typedef {{token: number, text: string, p: number, round: number}} Standing
 *  @param {{revoked?: number[], placed?: {position: number, token?: number, text: string, p: number}[],
 *    emitted: {position: number}[]}[]} rounds
 *  @returns {{position: number, token: Standing|null}[]}  `null`: masked */
export function standing(rounds) {
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

/** Whether a round is one of places: it drafts nothing, and its decoder may change its mind. Pure. */
export function isOfPlaces(round) {
  return round.nodes.status.length === 0 && Boolean(round.placed?.length || round.revoked?.length);
}

/** What such a round did, in words. Pure. */
export function words(round) {
  const places = (n) => `${n} ${n === 1 ? "place" : "places"}`;
  return `${places(round.placed.length)} set, ${places(round.revoked.length)} taken back, ${round.emitted.length} final`;
}

/** What a round without a draft was, in words. Pure. */
export function undrafted(round) {
  return isOfPlaces(round)
    ? "A round of places: nothing is drafted, and each pass guesses them anew."
    : "Nothing was drafted in this round: plain decoding.";
}

/** What stands there, as the ribbon shows it behind the text, with a block for each masked place; null where nothing
 *  does.
 *  @param {ReturnType<typeof standing>} found  @param {(text: string) => string} legible */
export function draw(found, legible) {
  if (!found.length) return null;
  const row = kit.h("span", { className: "wb-row" }), box = kit.h("span", { className: "wb-round is-coming" }, row);
  kit.set(box, { "aria-hidden": "true" });
  for (const { token } of found) {
    const title = token ? `not final; p = ${token.p.toFixed(2)}, set in round ${token.round + 1}` : "masked";
    row.append(
      kit.h("span", { className: `wb-guess is-${token ? "set" : "masked"}`, title }, token ? legible(token.text) : "▒"),
    );
  }
  return box;
}
