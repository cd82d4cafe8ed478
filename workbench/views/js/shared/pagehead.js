/** Header of all views but Live, with the navigation between views. */

import * as kit from "./kit.js";
import { h } from "./kit.js";

const VIEWS = [
  ["Live", "", "live"],
  ["Compare", "?tab=compare", "compare"],
  ["Vision", "?tab=vision", "vision"],
  ["Sweep", "?tab=sweep", "sweep"],
  ["Lab", "?tab=lab", "lab"],
  ["Verifiers", "verifiers"],
  ["Gallery", "gallery"],
  ["Learn", "learn"],
  ["Methods", "methods"],
];

/** Fill `nav`, which is already in its header, with links to all views, and add a skip link before it; a tab of this
 *  page opens without leaving it. */
export function fill(nav, host, current) {
  for (const [name, path, tab] of VIEWS) {
    const link = h("a", { href: `${host.base}/${path}` }, name);
    if (name === current) link.setAttribute("aria-current", "page");
    link.addEventListener("click", (event) => {
      if (!tab || !host.go || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      host.go(tab);
    });
    nav.append(link);
  }
  nav.setAttribute("aria-label", "Pages");
  nav.parentElement.prepend(skip(nav));
}

/** Return the skip link: past header and settings to the content. */
function skip(nav) {
  const link = h("a", { className: "wb-skip", href: place("stage") }, "Skip to content");
  link.addEventListener("click", (event) => {
    const to = nav.closest(".wb")?.querySelector(".wb-stage, .wb-pagemain");
    event.preventDefault();
    to?.setAttribute("tabindex", "-1");
    to?.focus();
    to?.scrollIntoView({ block: "start" });
  });
  return link;
}

/** Return an address of the Live page. Pure: undefined and null are left out. @param {string} base  of the app  @param
 *  {Record<string, unknown>} state  settings to show */
export function liveLink(base, state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state))
    if (value !== undefined && value !== null) query.set(name, `${value}`);
  return `${base}/?${query}`;
}

/** Return the address of an element on this page. Gradio's pages have their own base, so `#id` alone would leave them.
 *  Pure.
 *  @param {string} id  of an element  @param {{pathname: string, search: string}} at */
export function place(id, at = location) {
  return `${at.pathname}${at.search}#${encodeURIComponent(id)}`;
}

/** Return the settings of the Live page that repeat a recording. Pure. */
export function settingsOf(entry) {
  const { target, drafter, method, seed, max_new_tokens, prompt, params } = entry;
  return { target, drafter, method, seed, max_new_tokens, prompt, ...params };
}

/** Return a button that copies an address; where the clipboard is not available, the address is shown beside it. */
export function copyButton(url, words = "copy link") {
  const status = h("small", { className: "wb-copied" }),
    button = h("button", { type: "button", className: "wb-button" }, words);
  status.setAttribute("role", "status");
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(url).then(() => true, () => false);
    status.textContent = done ? " copied" : ` ${url}`;
  });
  return h("span", { className: "wb-copy" }, button, status);
}

/** Put the header and an empty main part into `el`; return the main part. */
export function build(el, { host, current, about }) {
  const nav = h("nav", { className: "wb-nav" });
  const theme = h("button", { type: "button", className: "wb-badge", title: "Light or dark" }, "◐ theme");
  theme.addEventListener("click", () => host.theme());
  const main = h(
    "div",
    { className: "wb-pagemain" },
    h("div", { className: "wb-pagetitle" }, h("h1", {}, current), h("p", {}, about)),
  );
  el.append(
    h(
      "header",
      { className: "wb-head" },
      h("b", { className: "wb-name" }, h("span", {}, "Speculative Decoding "), "Workbench"),
      nav,
      h("span", { className: "wb-space" }),
      theme,
    ),
    main,
  );
  fill(nav, host, current);
  if (!host.go) document.title = `${current} · Speculative Decoding Workbench`;
  return main;
}

/** Put the frame of a view with settings into `el`: header, settings, stage, and live region.
 *  @param {Element} el  of the view
 *  @param {(name: string, tag?: string, properties?: object, ...children: any[]) => any} part  creates and stores an
 *    element
 *  @param {{host: any, current: string, side: string, tools?: any[]}} given  `side`: label of the settings; `tools`:
 *    buttons between badge and theme
 *  @param {any} stage  the view's own element */
export function frame(el, part, { host, current, side, tools = [] }, stage) {
  const nav = part("nav", "nav", { className: "wb-nav" });
  const settings = part("side", "aside", { className: "wb-side" }), live = part("live", "div", { className: "wb-unseen" });
  el.append(
    h(
      "header",
      { className: "wb-head" },
      h("h1", { className: "wb-name" }, h("span", {}, "Speculative Decoding "), "Workbench"),
      nav,
      h("span", { className: "wb-space" }),
      part("badge", "span", { className: "wb-badge wb-from-where" }, h("i"), part("badgeText", "span")),
      ...tools,
      tool(part, "theme", "◐ theme", "Light or dark"),
    ),
    h("div", { className: "wb-main" }, settings, stage),
    live,
  );
  fill(nav, host, current);
  kit.set(live, { "aria-live": "polite" });
  kit.set(settings, { "aria-label": side });
  stage.tabIndex = -1;
}

/** Return a button of such a header. */
export function tool(part, name, text, title) {
  return part(name, "button", { type: "button", className: "wb-badge", title }, text);
}

/** Show an error and its remedy on the page. */
export function problem(main, error) {
  const box = h(
    "div",
    { className: "wb-alert is-error" },
    h("b", {}, error.message),
    " ",
    h("span", {}, error.remedy ?? ""),
  );
  box.setAttribute("role", "alert");
  main.append(box);
}

/** Call the server; show an error on the page and return null. */
export async function ask(main, { host }, name, request = {}) {
  const answer = await host
    .call(name, request)
    .catch(() => ({
      error: { message: "The app did not answer.", remedy: "Check that it is still running, then reload the page." },
    }));
  if (!answer?.error) return answer;
  problem(main, answer.error);
  return null;
}

/** Format a date and time without seconds; leave unreadable text unchanged. Pure. */
export function when(created) {
  const found = /^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2})/.exec(created ?? "");
  return found ? `${found[1]} ${found[2]}` : created ?? "";
}
