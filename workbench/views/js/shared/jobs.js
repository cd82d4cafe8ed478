/** Common parts of Compare and Sweep, the views of long measurements: start, requests, links, files. */

import { lacking } from "./address.js";
import * as exports from "./exports.js";
import * as form from "./form.js";
import * as kit from "./kit.js";
import { h } from "./kit.js";

/** The backend sends a message twice per second while it measures. */
const SILENCE_MS = 5000;
const LOADING_MS = 3000;
const LOST = {
  error: { message: "The app did not answer.", remedy: "Check that it is still running, then reload the page." },
};

/** Start a view: event handlers, messages, redraws on size and theme changes, and the panel from catalogue and link.
 *  @param {any} page  @param {object} does  `wire`, `hear`, `draw`, `look` of the view, `fromQuery` of its choices,
 *  `adopt(page, made)`: show a recorded example if nothing else is shown */
export async function begin(page, { wire, onMessage, draw, loadCatalogue, fromQuery, adopt }) {
  const { el, parts, host } = page;
  page.draw = kit.paced(() => host.isOpen?.() !== false && draw(page));
  wire(page);
  host.listen((message) => onMessage(page, message));
  new ResizeObserver(page.draw).observe(parts.stage);
  new MutationObserver(page.draw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  page.draw();
  example(page, adopt);
  const catalogue = await ask(page, "catalogue");
  if (catalogue) {
    Object.assign(page, { catalogue, plotly: catalogue.plotly });
    const { choice, problems } = fromQuery(host.address.read(), catalogue, form.clamp);
    page.choice = choice;
    if (problems.length)
      page.errors.push({ kind: "note", message: "Ignored parts of the link:", remedy: problems.join(" · ") });
    if (choice.target !== catalogue.chosen.target) await loadCatalogue(page);
  }
  addEventListener(
    "wb:address",
    () => page.catalogue && host.isOpen?.() !== false && stepped(page, { loadCatalogue, fromQuery }),
  );
  page.draw();
  el.dataset.ready = "true";
  page.timer = setInterval(() => watch(page), 1000);
  page.comes = setInterval(() => host.isOpen?.() !== false && pollLoading(page), LOADING_MS);
  return page;
}

/** React to a step back or forth in the browser's history: load the settings of the address. If it has none, or a
 *  measurement is running, write the panel's settings to it. */
async function stepped(page, { loadCatalogue, fromQuery }) {
  const { el, host, catalogue } = page, query = host.address.read();
  if (page.channel || new URLSearchParams(query).size < 2)
    return el.dispatchEvent(new CustomEvent("wb:choose", { detail: {} }));
  page.choice = fromQuery(query, catalogue, form.clamp).choice;
  if (page.choice.target !== catalogue.chosen.target) await loadCatalogue(page);
  page.draw();
}

/** Show a recorded example if nothing was measured yet; it needs no backend. A link with settings shows none, because
 *  the example has other settings. */
async function example(page, adopt) {
  if (new URLSearchParams(page.host.address.read()).size > 1) return;
  const found = await page.host.call("example", {}).catch(() => null);
  if (!found?.made || !Object.keys(found.made).length || page.channel) return;
  page.plotly ??= found.plotly;
  adopt(page, found.made);
  page.draw();
}

/** Detect a silent backend: the app may have been stopped. */
function watch(page) {
  const quiet = page.channel && page.job ? performance.now() - page.lastMessageAt : 0,
    silent = quiet > SILENCE_MS ? Math.round(quiet / 1000) : 0;
  if (silent === page.silent) return;
  page.silent = silent;
  page.draw();
}

/** While a target is loading, poll its progress; the rest of the panel stays. */
export async function pollLoading(page) {
  if (!page.catalogue?.targets.some((t) => t.loading)) return;
  const found = await page.host.call("catalogue", { target: page.choice.target }).catch(() => null);
  if (!found?.targets) return;
  page.catalogue = { ...page.catalogue, targets: found.targets };
  page.draw();
}

/** Stop waiting for a silent backend. @param {string} what  name of the job  @param {string} remedy */
export function stopWaiting(page, what, remedy) {
  Object.assign(page, { channel: null, silent: 0 });
  page.errors.push({ kind: "error", message: `The app did not answer, so the ${what} was stopped.`, remedy });
}

/** Call the server; show an error on the page and return null. @returns {Promise<object|null>} */
export async function ask(page, name, request = {}) {
  const answer = await page.host.call(name, request).catch(() => LOST);
  if (!answer?.error) return answer;
  page.errors.push({ ...answer.error, kind: "error" });
  page.draw();
  return null;
}

/** Fetch the catalogue of the chosen target; an unknown target is reported and replaced. */
export async function loadCatalogue(page) {
  const found = await ask(page, "catalogue", { target: page.choice.target });
  if (!found) return null;
  if (found.problem) page.errors.push({ ...found.problem, kind: "error" });
  Object.assign(page, { catalogue: found, choice: { ...page.choice, target: found.chosen.target } });
  page.draw();
  return found;
}

/** Return a unique channel name for a job's messages. */
export function channel(kind) {
  return `${kind}-${Math.random().toString(36).slice(2, 10)}`;
}

/** Copy a link to the panel's settings; show it under the buttons where the clipboard is not available. */
export async function copyLink(page, query) {
  const url = page.host.address.url(query),
    done = await navigator.clipboard?.writeText(url).then(
      () => true,
      () => false,
    );
  page.note = (done ? "Link copied to the clipboard." : url) + lacking(query);
  page.parts.live.textContent = done ? "Link copied" : "The link is shown under the buttons";
  page.draw();
}

/** Build the Export menu and its button. @param {[string, string][]} kinds  kind of file, label */
export function exportMenu(part, title, kinds) {
  const links = kinds.map(([kind, words]) => {
    const button = h("button", { type: "button", className: "wb-link" }, words);
    button.dataset.kind = kind;
    return button;
  });
  const menuButton = h(
    "div",
    { className: "wb-menu" },
    part("export", "button", { type: "button", className: "wb-badge", title }, "export ▾"),
    part("exports", "div", { className: "wb-exports", hidden: true }, ...links),
  );
  kit.set(menuButton.firstChild, { "aria-haspopup": "true", "aria-expanded": "false" });
  return menuButton;
}

/** Open or close the Export menu. */
export function menu({ parts }, on) {
  parts.exports.hidden = !on;
  parts.export.setAttribute("aria-expanded", String(on));
}

/** Make the Export menu open and close; call `save(kind)` with the chosen kind. */
export function wireMenu(page, save) {
  const { parts } = page;
  parts.export.addEventListener("click", () => menu(page, parts.exports.hidden));
  document.addEventListener(
    "click",
    (/** @type {any} */ event) => event.target.closest(".wb-menu") || menu(page, false),
  );
  parts.exports.parentElement.addEventListener("keydown", (event) => event.key === "Escape" && menu(page, false));
  parts.exports.addEventListener("click", (event) => {
    if (!event.target.dataset.kind) return;
    menu(page, false);
    save(event.target.dataset.kind);
  });
}

/** Save a file whose bytes the server produces. */
export async function saveTable(page, request, name) {
  const answer = await ask(page, "table", request);
  if (answer) exports.save(name, new Blob([Uint8Array.from(atob(answer.data), (c) => c.charCodeAt(0))]), "");
}

/** Show a run in the Live view, which takes it when its tab opens. */
export async function openRun(page, request) {
  const trace = await ask(page, "trace", request);
  if (!trace) return;
  window.workbenchTrace = trace;
  page.host.go?.("live");
}

/** Draw the progress of a measurement. @param {any} page  @param {{text: string, note: string, done: number, total:
 *  number,
 *  label: string}} data */
export function progress({ parts }, { text, note, done, total, label }) {
  kit.write(parts.progressText, text.replace(/^./, (c) => c.toUpperCase()));
  kit.write(parts.progressNote, note);
  parts.progressBar.setAttribute("aria-label", label);
  if (total) {
    parts.progressBar.max = total;
    parts.progressBar.value = done;
  } else parts.progressBar.removeAttribute("value");
}

/** Format the remaining time; empty if unknown. Pure. */
export function remaining(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return ` · about ${seconds < 90 ? `${Math.max(1, Math.ceil(seconds))} s` : `${Math.ceil(seconds / 60)} min`} left`;
}
