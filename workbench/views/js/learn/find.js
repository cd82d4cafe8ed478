/** Search field for methods and board rows, and navigation to a place of the page. */

import { h } from "../shared/kit.js";
import * as kit from "../shared/kit.js";

const ROWS = ".wb-board tbody tr, .wb-matrix tbody tr";

/** Return whether a text has all words of a query, in any order and case. Pure. @param {string} text  @param {string}
 *  query */
export function matches(text, query) {
  const lower = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

/** Return the number of matches as text. Pure. */
export function summary(methods, of, rows) {
  return `${methods} of ${of} methods, ${rows} ${rows === 1 ? "row" : "rows"} of the boards`;
}

/** Build the search field. @param {HTMLElement} body  its cards and rows without a match are hidden, its boards with
 *    a match are opened  @param {(query: string) => void} [also]  called with each query */
export function field(body, also = () => {}) {
  const status = h("small", {}), input = h("input", { type: "search", placeholder: "Search by name, rule, policy or paper …" });
  kit.set(status, { role: "status" });
  const opened = /** @type {Set<any>} */ (new Set());
  const filter = kit.paced(() => {
    const query = input.value.trim(), show = (el) => !(el.hidden = !matches(el.textContent, query));
    const cards = /** @type {any[]} */ ([...body.querySelectorAll(".wb-method")]);
    const boards = /** @type {any[]} */ ([...body.querySelectorAll(".wb-foldable:not(.wb-method)")]);
    const methods = cards.filter(show).length;
    let rows = 0;
    for (const board of boards) {
      const all = [...board.querySelectorAll(ROWS)], some = all.filter(show).length, fold = board.firstChild;
      if (!all.length) continue;
      rows += some;
      board.hidden = some === 0;
      if (query && some && !fold.open) opened.add(fold);
      if (opened.has(fold)) fold.open = Boolean(query);
    }
    if (!query) opened.clear();
    also(query);
    kit.write(status, query ? summary(methods, cards.length, rows) : "");
  });
  input.addEventListener("input", filter);
  return h("label", { className: "wb-find" }, h("span", {}, "Find"), input, status);
}

/** Return a section whose content is collapsed under its head; `draw` is called when it is first opened. */
export function fold(properties, head, content, draw = () => {}) {
  const details = h("details", {}, h("summary", {}, ...head), ...content);
  details.addEventListener("toggle", draw, { once: true });
  const section = h("section", properties, details);
  section.classList.add("wb-card", "wb-foldable");
  return section;
}

/** Open the element that the address names, and scroll to it; return whether it exists.
 *  @param {HTMLElement} body  @returns {boolean} */
export function reveal(body) {
  const named = location.hash && `[id="${CSS.escape(location.hash.slice(1))}"]`;
  const at = /** @type {any} */ (named && body.querySelector(named));
  if (!at) return false;
  if (at.matches(".wb-foldable")) at.firstChild.open = true;
  at.hidden = at.id === "which" ? at.hidden : false;
  at.classList.remove("is-filtered");
  at.scrollIntoView();
  return true;
}
