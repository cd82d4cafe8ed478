/** The Live view inside another page: a recorded run without settings and buttons. The page chooses its cards. */

import * as live from "./page.js";
import * as selection from "./selection.js";

const ROWS = ".wb-two, .wb-four";

/** Mount the view in `el`.
 *  @param {any} el  @param {{host: any, trace: object}} given  `host` of the page: its theme and the sources of a
 *    replay are used, its backend and address are not
 *  @returns {Promise<any>} the view's page, as the functions below take it */
export function mount(el, { host, trace }) {
  return live.mount(el, { host: { theme: host.theme, sources: host.sources }, trace, embed: true });
}

/** Show some cards only, and let them share their rows.
 *  @param {any} el  of the view  @param {string[]} names  of cards; "figures": key figures, "scrub": timeline */
export function showCards(el, names) {
  for (const part of el.querySelectorAll(".wb-card, .wb-figures, .wb-scrub")) {
    const card = [...part.classList].find((name) => name.startsWith("wb-card-"))?.slice(8);
    part.hidden = !names.includes(card ?? (part.matches(".wb-scrub") ? "scrub" : "figures"));
  }
  for (const row of el.querySelectorAll(ROWS))
    row.dataset.open = [...row.children].filter((part) => !part.hidden).length;
}

/** Select a place of the run. @param {any} page  @param {object} pin  @param {object} [more]  other fields to set */
export function select(page, pin, more = {}) {
  Object.assign(page, { selection: { ...selection.newSelection(), pin }, brush: null, ...more });
  page.draw();
}
