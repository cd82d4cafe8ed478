/** Navigation between the pages, links to Live, and the frame of pages without settings. */

import * as alerts from "./alerts.js";
import * as copying from "./copying.js";
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
  nav.before(menu(nav, current));
  nav.parentElement.prepend(skip(nav));
}

/** Return the button that opens and closes the list of pages on a narrow screen; on a wide one the list is always open
 *  and the button is hidden. */
function menu(nav, current) {
  const button = h("button", { type: "button", className: "wb-navmenu" }, `${current} `, h("i", {}, "▾"));
  const open = (isOpen) => {
    nav.classList.toggle("is-open", isOpen);
    button.setAttribute("aria-expanded", `${isOpen}`);
  };
  button.setAttribute("aria-label", `Pages: ${current}`);
  button.addEventListener("click", () => open(!nav.classList.contains("is-open")));
  nav.addEventListener("click", () => open(false));
  nav.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !nav.classList.contains("is-open")) return;
    open(false);
    button.focus();
  });
  open(false);
  return button;
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
    status.textContent = (await copying.put(url)) ? " copied" : ` ${url}`;
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
  const answer = await alerts.call(host, name, request);
  if (!answer?.error) return answer;
  problem(main, answer.error);
  return null;
}

/** Format a date and time without seconds; leave unreadable text unchanged. Pure. */
export function when(created) {
  const found = /^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2})/.exec(created ?? "");
  return found ? `${found[1]} ${found[2]}` : created ?? "";
}
