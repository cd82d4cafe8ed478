/** Parts below the tree: tables of signals (`cells.js`) and probe tokens, which the target computed in the same forward
 *  pass as the draft; they are never accepted, rejected or discarded. */

import * as cells from "./cells.js";
import * as kit from "../shared/kit.js";
import { visible } from "../shared/kit.js";

/** Group a round's probes by source, in their order. Older traces have none. Pure.
 *  @param {{probes?: {token: number, text: string, parent: number, position: number, source: string}[]}|null} round
 *  @returns {{source: string, tokens: {text: string, position: number, parent: number}[]}[]} */
export function groups(round) {
  const found = new Map();
  for (const probe of round?.probes ?? []) {
    if (!found.has(probe.source)) found.set(probe.source, []);
    found.get(probe.source).push({ text: probe.text, position: probe.position, parent: probe.parent });
  }
  return [...found].map(([source, tokens]) => ({ source, tokens }));
}

/** State the number of probes; empty if there are none. Pure. */
export function words(round) {
  const n = round?.probes?.length ?? 0;
  return n ? `${n} probe token${n === 1 ? "" : "s"}` : "";
}

/** Name the token that a probe follows. Pure.
 *  @param {{nodes: {text: string[]}, probes: {text: string}[]}} round  @param {number} parent  see `Probe.parent` */
export function place(round, parent) {
  const n = round.nodes.text.length;
  if (parent < 0) return "after the last token before this round";
  return parent < n
    ? `after the draft “${visible(round.nodes.text[parent])}”`
    : `after the probe token “${visible(round.probes[parent - n].text)}”`;
}

/** Draw below the tree: the tables, then one row per source of probes; nothing if there are none. */
export function render(el, round) {
  const found = groups(round), tables = cells.elements(round);
  el.hidden = found.length + tables.length === 0;
  const rows = found.map(({ source, tokens }) => {
    const n = tokens.length, row = kit.h("div", { className: "wb-proberow" });
    const label = `${n} probe token${n === 1 ? "" : "s"} of ${source || "the method"}: computed in the same forward pass of the target, never accepted`;
    row.append(kit.h("span", { className: "wb-probewords" }, label));
    for (const { text, position, parent } of tokens) {
      const title = `probe at position ${position}, ${place(round, parent)}`;
      row.append(kit.h("span", { className: "wb-probe", title }, visible(text)));
    }
    return row;
  });
  el.replaceChildren(...tables, ...rows);
}
