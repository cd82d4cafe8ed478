/** The KV cache of a round as a strip of cells, before and after verification: draws the data of `kvcache`. */

import * as kit from "../shared/kit.js";
import { h, visible } from "../shared/kit.js";
import * as kvcache from "./kvcache.js";
import { ROOT, TARGET } from "./treemodel.js";
import { label } from "./treetext.js";

/** With more entries, cells have no text. */
const FEW = 48;
const CHARS = 9;

let strips = 0;

/** Draw into `el`; a click, or an arrow key, on a cell selects its node. Cells are rebuilt only when the round changes.
 *  @param {any} el
 *  @param {{round: any, cache: import("./kvcache.js").Cache, node: number|string|null, awaited?: Set<number|string>,
 *    layout?: any, dtype?: string}} data  `awaited`: nodes whose result is not shown yet; `layout`: `kv_cache` of the
 *    target; `dtype`: of its weights */
export function render(el, data) {
  const { cache, node, awaited = new Set(), layout = null, dtype = "" } = data;
  const state = (el._strip ??= begin(el));
  state.data = data;
  const memory = kvcache.memoryWords(cache, layout, dtype), keeping = kvcache.keepingWords(cache, layout);
  const waits = awaited.size > 0;
  const key = JSON.stringify([cache, memory, keeping, [...awaited]]);
  if (state.key !== key) {
    state.key = key;
    state.body.replaceChildren(...(cache.why ? [h("p", { className: "wb-cachenote" }, cache.why)] : strip(state, cache, waits, awaited)));
    kit.write(state.counts, cache.why ? "" : waits ? "" : kvcache.countWords(cache));
    kit.write(state.memory, cache.why || waits ? "" : memory);
    kit.write(state.keeping, cache.why ? "" : keeping);
    for (const line of [state.counts, state.memory, state.keeping]) line.hidden = !line.textContent;
    kit.set(el, { "aria-label": `KV cache of round ${data.round.index + 1}${cache.why || waits ? "" : `: ${kvcache.countWords(cache)}`}` });
  }
  const chosen = node === "-1" ? ROOT : node;
  el.removeAttribute("aria-activedescendant");
  for (const cell of el.querySelectorAll("[data-node]")) {
    const is = cell.dataset.node === `${chosen}`;
    cell.classList.toggle("is-chosen", is);
    if (cell.getAttribute("role") !== "option") continue;
    kit.set(cell, { "aria-selected": is });
    if (is) kit.set(el, { "aria-activedescendant": cell.id });
  }
}

function begin(el) {
  const [counts, memory, keeping] = ["is-counts", "", ""].map((name) => h("p", { className: `wb-cachenote ${name}`.trim(), hidden: true }));
  const body = h("div", { className: "wb-cachebody" });
  el.append(counts, body, memory, keeping);
  kit.set(el, { role: "listbox" });
  for (const part of [counts, body, memory, keeping]) kit.set(part, { role: "presentation" });
  const state = { counts, body, memory, keeping, key: "", uid: `wb-cache-${(strips += 1)}`, data: /** @type {any} */ (null) };
  el.addEventListener("keydown", (event) => {
    const { data } = state;
    if (event.ctrlKey || event.metaKey || event.altKey || !data || data.cache.why) return;
    const to = kvcache.neighbour(data.cache, data.node === "-1" ? ROOT : data.node, event.key);
    if (to === null) return;
    event.preventDefault();
    event.stopPropagation();
    state.data = { ...data, node: to }; // the next key may arrive before the next drawing
    kit.emit(el, "wb:pick", { round: data.round.index, node: to === ROOT ? "-1" : to });
    el.querySelector(".is-chosen")?.scrollIntoView({ block: "nearest" });
  });
  return state;
}

/** Return the two rows: entries as written by the forward pass, and entries after verification. */
function strip(state, cache, waits, awaited) {
  const small = cache.entries.length > FEW, rows = [row("Written by the verification pass", small, [
    committed(cache.before, "before the round"),
    ...cache.entries.map((entry) => option(state, entry, small, awaited.has(entry.id) || (waits && entry.kind === "probe"))),
  ])];
  if (waits) return rows;
  const first = cache.before === null ? cache.after - 1 : Math.min(cache.before - cache.earlier, cache.after);
  const { stream } = cache, own = cache.own;
  rows.push(
    row("After verification", small, [
      ...(stream
        ? [committed(stream.sinks, "sinks"), gone(stream.gone), committed(stream.recent - 1, "newest", stream.sinks)]
        : [committed(first, "kept from before")]),
      ...cache.entries.filter((e) => e.kept !== null).map((entry) => moved(entry, small)),
      ...(own ? [ownCell(state, cache.after, own)] : []),
    ]),
  );
  return rows;
}

const row = (title, small, cells) =>
  h("div", { className: "wb-cacherow" }, hide(h("h4", {}, title)), present(h("div", { className: `wb-cachestrip${small ? " is-small" : ""}` }, ...cells)));

const hide = (el) => (kit.set(el, { "aria-hidden": "true" }), el);
const present = (el) => (kit.set(el, { role: "presentation" }), el);

/** Cell of several committed positions. */
function committed(n, words, from = 0) {
  const text = n === null ? "not recorded" : n === 0 ? "none" : n === 1 ? `${from}` : `${from} – ${from + n - 1}`;
  const cell = hide(h("span", { className: "wb-cachecell is-committed" }, h("b", {}, text), h("small", {}, words)));
  cell.style.setProperty("--n", `${Math.min(40, n ?? 1)}`);
  return cell;
}

const gone = (n) => hide(h("span", { className: "wb-cachecell is-gone" }, h("b", {}, `${n}`), h("small", {}, "dropped")));

function cell(className, text, below) {
  return h("span", { className: `wb-cachecell ${className}` }, h("b", {}, text), h("small", {}, below));
}

/** Cell of an entry that the forward pass writes. */
function option(state, entry, small, waits) {
  const dropped = !waits && entry.kept === null, kind = waits ? "pending" : entry.kind;
  const made = cell(
    `is-${kind}${dropped ? " is-dropped" : ""}`, small ? "" : entry.kind === "probe" ? "probe" : label(entry.text, CHARS),
    small ? "" : `${entry.at}${waits ? "" : dropped ? " ✕" : " ✓"}`,
  );
  const words = kvcache.entryWords(entry, visible, waits);
  made.title = words;
  kit.set(made, { role: "option", "aria-label": words, "aria-selected": "false", id: `${state.uid}-${entry.id ?? `p${entry.at}`}` });
  if (entry.id !== null) made.dataset.node = entry.id;
  return made;
}

/** Cell of an entry at its place after verification. The option above has its words. */
function moved(entry, small) {
  const from = entry.kept === entry.at ? `${entry.kept}` : `${entry.at} → ${entry.kept}`;
  const made = hide(cell(`is-${entry.kind}`, label(entry.text, CHARS), small || entry.kept === entry.at ? `${entry.kept}` : from));
  made.dataset.node = entry.id;
  return made;
}

/** Cell of the target's own token: it has no entry yet. */
function ownCell(state, at, { kind, text }) {
  const made = cell(`is-${kind} is-next`, label(text, CHARS), `${at}, next round`);
  const words = `“${visible(text)}”, ${kind} token: no entry yet, the next round writes it at position ${at}`;
  made.title = words;
  kit.set(made, { role: "option", "aria-label": words, "aria-selected": "false", id: `${state.uid}-${TARGET}` });
  made.dataset.node = TARGET;
  return made;
}
