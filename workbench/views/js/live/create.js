/** Common parts of the Live and Vision pages: state, start, export menu, and screen-reader announcements of a run. */

import * as copying from "../shared/copying.js";
import * as exports from "../shared/exports.js";
import * as figures from "../shared/figures.js";
import * as kit from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as preferences from "../shared/preferences.js";
import * as ribbon from "../shared/ribbon.js";
import * as store from "../shared/store.js";
import * as keyboard from "./keyboard.js";
import * as selection from "./selection.js";
import * as words from "./words.js";

const ANNOUNCE_MS = 5000;

/** Build a page of runs in `el` and show what its address names.
 *  @param {any} el  @param {any} view  `parts`, `host`, `embed`; `title` of its tab; `state`: its extra fields;
 *    `begin(page)`: add `draw`, `clear`, `describe` and `ended`; `onMessage(page, message)`: handle a bus message;
 *    `actions(page)`: functions of its buttons and keys; `textOf(page, name)`: text to copy; `wire(page, el)`;
 *    `tick(page)`: every second; `arrive(page)`: show what the address names; `stepped(page)`: the address changed;
 *    `applyFrame(page)`: adapt to embedding; `menu(page)`: data of its exports
 *  @returns {Promise<any>} */
export async function createPage(el, { parts, host, embed, title, state, ...view }) {
  if (host.base === undefined) parts.nav.hidden = true;
  else pagehead.fill(parts.nav, host, title);
  const page = {
    el,
    parts,
    host,
    embed,
    catalogue: null,
    choice: null,
    run: null,
    plain: null,
    plainKey: "",
    errors: [],
    notices: [],
    selection: selection.newSelection(),
    pendingPin: null,
    brush: null,
    ghosts: preferences.isOn(ribbon.DRAFTS, false),
    threshold: 0,
    mode: "spine",
    wantPlain: false,
    note: "",
    changes: {},
    channels: 0,
    playing: null,
    feeding: null,
    next: null,
    lost: 0,
    scroll: false,
    announcedAt: 0,
    announcedRounds: 0,
    stepping: false,
    shownView: null,
    recorded: null,
    estimate: "",
    touched: false,
    ...state,
  };
  page.announce = (over) => announce(page, over);
  view.begin(page);
  host.listen?.((message) => view.onMessage(page, message));
  page.actions = view.actions(page);
  parts.textOf = (name) => view.textOf(page, name);
  copying.listen(el);
  view.wire(page, el);
  wireMenu(parts);
  keyboard.listen(page, page.actions);
  new ResizeObserver(page.draw).observe(parts.stage);
  page.timer = setInterval(() => view.tick(page), 1000);
  page.draw();
  await view.arrive(page);
  addEventListener("wb:address", () => host.address && host.isOpen?.() !== false && view.stepped(page));
  view.applyFrame(page);
  page.draw();
  const menu = {
    stage: parts.stage,
    host,
    definitions: () => page.view?.definitions ?? {},
    keeps: page.catalogue?.keeps,
  };
  exports.mount(parts.exports, { ...menu, ...view.menu(page) });
  el.dataset.ready = "true";
  return page;
}

function wireMenu(parts) {
  const menu = (on) => {
    parts.exports.hidden = !on;
    parts.export.setAttribute("aria-expanded", String(on));
  };
  parts.export.addEventListener("click", () => menu(parts.exports.hidden));
  document.addEventListener("click", (/** @type {any} */ event) => event.target.closest(".wb-menu") || menu(false));
  parts.exports.parentElement.addEventListener("keydown", (event) => event.key === "Escape" && menu(false));
  kit.set(parts.export, { "aria-haspopup": "true", "aria-expanded": "false" });
}

/** Announce to a screen reader: every round while stepping, a summary every few seconds of a run, and its end. */
export function announce(page, over) {
  const { run } = page;
  if (!run || run.from !== "live") return;
  const rounds = store.visible(run), now = performance.now(), last = rounds.at(-1);
  const running = store.isActive(run) && run.state === "running";
  let text = null;
  if (over) text = words.announcement(figures.summary(rounds), true);
  else if (page.stepping && rounds.length !== page.announcedRounds && last) {
    text = `${last.vision?.pictures?.length ? "The image was changed. " : ""}${ribbon.describe(last)}`;
  } else if (running && now - page.announcedAt > ANNOUNCE_MS && last)
    text = words.announcement(figures.summary(rounds), false);
  if (text === null) return;
  Object.assign(page, { announcedAt: now, announcedRounds: rounds.length });
  page.parts.live.textContent = text;
}
