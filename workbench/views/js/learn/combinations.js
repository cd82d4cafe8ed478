/** The matrix on the methods page: drafters by verifiers, in each cell the methods that join the two, with the policies
 *  and growers they offer, what they promise and the evidence. What is not offered says whether it would be sound. */

import { h } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";

/** The choices of an offer in words, one line each; behind each policy what was seen of it. Pure.
 *  @param {{verifier: string, ways: Record<string, string[]>, policies?: Record<string, string>, reason: string}} offer
 *  @returns {string[]} */
export function lines(offer) {
  const seen = offer.policies ?? {};
  const said = (name, value) => (name === "policy" && seen[value] ? `${value} (${seen[value]})` : value);
  const ways = Object.entries(offer.ways).map(
    ([name, values]) => `${name}: ${values.map((value) => said(name, value)).join(", ")}`,
  );
  return [...(offer.verifier ? [`verifier = ${offer.verifier}`] : []), ...ways, offer.reason].filter(Boolean);
}

/** What stands in a cell that no method offers. Pure. @param {string} reason  why it would be unsound; empty: sound */
export function missing(reason) {
  return reason ? `✕ ${reason}` : "Not offered; it would be sound.";
}

/** A row of the table. @param {{drafter: string, cells: {offers: any[], reason: string}[]}} row
 *  @param {(word: string) => Element} standing  draws what the exactness board says */
export function line(row, standing) {
  return h("tr", {}, h("th", { scope: "row" }, row.drafter), ...row.cells.map((cell) => drawn(cell, standing)));
}

function drawn({ offers, reason }, standing) {
  if (!offers.length) return h("td", { className: "is-off" }, h("small", {}, missing(reason)));
  return h("td", {}, ...offers.map((offer) => way(offer, standing)));
}

function way(offer, standing) {
  const promise = h("span", { className: "wb-promised" }, offer.promise);
  promise.dataset.promise = offer.promise;
  return h(
    "div",
    { className: offer.reason ? "wb-way is-unsound" : "wb-way" },
    h("a", { href: pagehead.place(offer.method) }, offer.title),
    " ",
    promise,
    " ",
    standing(offer.standing),
    ...lines(offer).map((words) => h("small", {}, words)),
  );
}
