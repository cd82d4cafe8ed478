/** What stands below the tree: tables of signals (`cells.js`), and what the target's pass computed beside the draft:
 *  probe tokens, never accepted, rejected or discarded. */

import * as cells from "./cells.js";
import * as kit from "../shared/kit.js";
import { visible } from "../shared/visible.js";

/** The probes of a round by who asked for them, in their order. Older traces have none. Pure.
 *  @param {{probes?: {token: number, text: string, parent: number, position: number, source: string}[]}|null} round
 *  @returns {{source: string, tokens: {text: string, position: number, behind: number}[]}[]} */
export function groups(round) {
  const found = new Map();
  for (const probe of round?.probes ?? []) {
    if (!found.has(probe.source)) found.set(probe.source, []);
    found.get(probe.source).push({ text: probe.text, position: probe.position, behind: probe.parent });
  }
  return [...found].map(([source, tokens]) => ({ source, tokens }));
}

/** How many there are, in words; empty where there are none. Pure. */
export function words(round) {
  const n = round?.probes?.length ?? 0;
  return n ? `${n} probe${n === 1 ? "" : "s"} beside it` : "";
}

/** What a probe stands behind, in words. Pure.
 *  @param {{nodes: {text: string[]}, probes: {text: string}[]}} round  @param {number} behind  see `Probe.parent` */
export function place(round, behind) {
  const n = round.nodes.text.length;
  if (behind < 0) return "behind the last token of the text";
  return behind < n
    ? `behind the draft “${visible(round.nodes.text[behind])}”`
    : `behind the probe “${visible(round.probes[behind - n].text)}”`;
}

/** Draw them below the tree, tables first, then a row for each part that asked; nothing where there are none. */
export function render(el, round) {
  const found = groups(round), tables = cells.elements(round);
  el.hidden = found.length + tables.length === 0;
  const rows = found.map(({ source, tokens }) => {
    const n = tokens.length, row = kit.h("div", { className: "wb-proberow" });
    const said = `${n} probe${n === 1 ? "" : "s"} of ${source || "the method"}: computed in the same pass, never accepted`;
    row.append(kit.h("span", { className: "wb-probewords" }, said));
    for (const { text, position, behind } of tokens) {
      const title = `probe at position ${position}, ${place(round, behind)}`;
      row.append(kit.h("span", { className: "wb-probe", title }, visible(text)));
    }
    return row;
  });
  el.replaceChildren(...tables, ...rows);
}
