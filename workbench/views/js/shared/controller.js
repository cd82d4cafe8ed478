/** Controller of a page: one object with its elements, host and messages. It draws at most once per frame and while
 *  its tab is open, connects header, keys, events, address and files, and ends everything that it started.
 *
 *  A view declares what differs. All functions get the page first and are optional:
 *
 *  - `draw(page)`; `begin(page)`: add to the page before anything is connected;
 *  - `wire(page, on, click)`: `on(event, act)` gets the event's detail, `click(part, act)` a button by its name;
 *  - `press(page, button, detail)`: a button of the page (`wb:press`); `main`: the button that Ctrl+Enter presses;
 *  - `keys(page, event)`: what a key does while the stage has the focus, as a function; null: nothing;
 *  - `onMessage(page, message)`: a message of the backend; `tick(page)`: every second, also while the tab is closed;
 *  - `arrive(page)`: first content; `stepped(page)`: the address changed by a step in the browser's history;
 *  - `query(page)`: the current view as the query of a link; `lacking(page)`: what such a link does not contain;
 *  - `open(page, file)`: a file that the user chose; `textOf(page, name)`: text that a copy button copies;
 *  - `exports(page)`: the Export menu; see `exports.fill`.
 *
 *  A page of another host embeds the same view: without `host.address` and `host.base` it has no links and no
 *  navigation, without `host.call` it shows what it was given.
 */

import * as address from "./address.js";
import * as copying from "./copying.js";
import * as exporting from "./exports.js";
import * as kit from "./kit.js";

const EDITABLE = "input, textarea, select, [contenteditable]", TICK_MS = 1000;

/** Build the page of a view in `el` and show its first content.
 *  @param {any} el  @param {any} view  `parts`: elements by name; `host`; `title` of the document; `state`: fields of
 *    the page; and the functions above  @returns {Promise<any>} the page: `el`, `parts`, `host`, `errors`, `notices`,
 *    `note`, `draw()`, `query()`, `every(ms, work)`, `end()` and the fields of `state` */
export async function open(el, { parts, host, title = "", state = {}, ...view }) {
  const page = newPage(el, parts, host, state), { signal } = page;
  page.draw = kit.paced(() => isOpen(page) && view.draw(page));
  page.query = () => view.query(page);
  view.begin?.(page);
  host.listen?.((message) => !signal.aborted && view.onMessage?.(page, message));
  wireHeader(page, view);
  wireKeys(page, view);
  const on = (name, act) => el.addEventListener(name, (event) => act(event.detail ?? {}, event), { signal });
  on("wb:redraw", () => page.draw());
  if (view.press) on("wb:press", ({ button, ...detail }) => view.press(page, button, detail));
  view.wire?.(page, on, (part, act) => parts[part].addEventListener("click", act, { signal }));
  observe(page);
  if (view.tick) page.every(TICK_MS, () => view.tick(page));
  if (title && host.base !== undefined && !host.go) document.title = `${title} · Speculative Decoding Workbench`;
  page.draw();
  await view.arrive?.(page);
  addEventListener("wb:address", () => host.address && isOpen(page) && view.stepped?.(page), { signal });
  page.draw();
  if (view.exports) exporting.fill(parts.exports, view.exports(page));
  el.dataset.ready = "true";
  return page;
}

function newPage(el, parts, host, state) {
  const ending = new AbortController(), ends = [() => ending.abort()];
  const page = { el, parts, host, errors: [], notices: [], note: "", ends, signal: ending.signal };
  return Object.assign(page, {
    draw: () => {},
    every: (ms, work) => {
      const timer = setInterval(work, ms);
      ends.push(() => clearInterval(timer));
    },
    end: () => ends.splice(0).forEach((end) => end()),
    ...state,
  });
}

/** Return whether the page's tab is open; true for a page without tabs. */
export function isOpen({ host }) {
  return host.isOpen?.() !== false;
}

/** Redraw when the stage's size or the theme changes. */
function observe(page) {
  const size = new ResizeObserver(() => page.draw()), theme = new MutationObserver(() => page.draw());
  size.observe(page.parts.stage);
  theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  page.ends.push(() => (size.disconnect(), theme.disconnect()));
}

/** Connect the buttons of the header that the page has. */
function wireHeader(page, view) {
  const { parts, host, signal } = page;
  const click = (part, act) => parts[part]?.addEventListener("click", act, { signal });
  click("theme", () => host.theme?.());
  click("help", () => parts.keys.showModal());
  click("copy", () => copyLink(page, page.query(), view.lacking?.(page)));
  click("open", () => parts.file.click());
  parts.file?.addEventListener(
    "change",
    () => view.open(page, parts.file.files[0]).finally(() => (parts.file.value = "")),
    { signal },
  );
  if (parts.exports) exporting.wire(parts, signal);
  parts.textOf = (name) => view.textOf?.(page, name) ?? "";
  copying.listen(page.el);
}

function wireKeys(page, view) {
  const { el, parts, signal } = page;
  el.addEventListener(
    "keydown",
    (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        if (!view.main) return;
        event.preventDefault();
        view.press(page, view.main, {});
      } else if (parts.stage.contains(event.target) && view.keys && isForStage(event)) {
        const act = view.keys(page, event);
        if (!act) return;
        event.preventDefault();
        act();
      }
    },
    { signal },
  );
}

/** Return whether a key is for the stage: no control is edited or pressed with it. */
function isForStage(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(EDITABLE)) return false;
  return !(event.target.closest("button, a, summary") && (event.key === " " || event.key === "Enter"));
}

/** Copy a link to the current view; show it under the buttons where the clipboard is not available.
 *  @param {string} query  @param {string} [more]  what the link does not contain */
export async function copyLink(page, query, more = "") {
  const url = page.host.address.url(query), done = await copying.put(url);
  page.note = (done ? "Link copied to the clipboard." : url) + address.lacking(query) + more;
  page.parts.live.textContent = done ? "Link copied" : "The link is shown under the buttons";
  page.draw();
}
