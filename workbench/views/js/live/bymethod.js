/** Table of figures per method, under the key figures of the whole run. Shown only where the method changed during the
 *  run. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

const HEAD = ["method", "rounds", "tokens", "τ", "accepted / tested", "tok/s", "ms per round"];

/** Return the cells of the table, one row for each segment and one for the whole run. Pure.
 *  @param {{name: string, from: number, to: number, figures: object}[]} segments  of `figures.segmentFigures`
 *  @param {object} all  figures of the whole run */
export function rows(segments, all) {
  const fixed = (v, digits) => (v === null ? "–" : v.toFixed(digits));
  const cells = (name, where, f) => [
    name,
    where,
    `${f.tokens}`,
    fixed(f.tau, 2),
    f.tested ? `${Math.round(100 * f.acceptance_rate)} % (${f.accepted}/${f.tested})` : "–",
    fixed(f.tokens_per_second, 0),
    f.rounds ? ((1e3 * f.seconds) / f.rounds).toFixed(1) : "–",
  ];
  return [
    ...segments.map((s) => cells(s.name, s.from === s.to ? `${s.from + 1}` : `${s.from + 1}–${s.to + 1}`, s.figures)),
    cells("whole run", `1–${all.rounds}`, all),
  ];
}

/** Draw into `el`; a click on a segment emits `wb:brush` {from, to}, on the whole run `wb:brush` null.
 *  @param {any} el  @param {{segments: object[], all: object, range: number[]|null}} data  `range`: rounds that the
 *    charts count now */
export function render(el, { segments, all, range }) {
  el.hidden = segments.length < 2;
  if (el.hidden) return;
  const list = rows(segments, all), body = (el._body ??= build(el));
  kit.resize(body, list.length, () => row(el));
  list.forEach((cells, i) => {
    const tr = body.children[i], segment = segments[i] ?? null, [first, ...rest] = tr.children,
      on = segment ? range?.[0] === segment.from && range?.[1] === segment.to : range === null;
    tr._range = segment && { from: segment.from, to: segment.to };
    kit.set(tr, { "data-slot": segment?.slot ?? "", class: segment ? "" : "is-whole" });
    kit.write(first.firstChild.lastChild, cells[0]);
    kit.set(first.firstChild, { "aria-pressed": on });
    rest.forEach((cell, k) => kit.write(cell, cells[k + 1]));
  });
}

function build(el) {
  const body = h("tbody", {});
  el.append(
    h("table", {}, h("thead", {}, h("tr", {}, ...HEAD.map((text) => h("th", { scope: "col" }, text)))), body),
  );
  kit.set(el, { role: "region", "aria-label": "Figures by method", tabindex: 0 });
  return body;
}

function row(el) {
  const button = h("button", { type: "button", className: "wb-link" }, h("i", { className: "wb-band" }), h("span"));
  button.title = "Show only these rounds in the charts by position and by accepted drafts";
  const tableRow = h("tr", {}, h("th", { scope: "row" }, button), ...HEAD.slice(1).map(() => h("td")));
  button.addEventListener("click", () => kit.emit(el, "wb:brush", /** @type {any} */ (tableRow)._range));
  return tableRow;
}
