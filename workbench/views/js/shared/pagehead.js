/** The header that all views but Live share, and the way from each view to the others. */

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

/** Put links to all views into `nav`, which stands in its header already, and the way past that header before it; a tab
 *  of this page is opened without leaving it. */
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

/** The first stop of the tab key: past the header and the settings to what is shown. */
function skip(nav) {
  const link = h("a", { className: "wb-skip", href: place("stage") }, "Skip to what is shown");
  link.addEventListener("click", (event) => {
    const to = nav.closest(".wb")?.querySelector(".wb-stage, .wb-pagemain");
    event.preventDefault();
    to?.setAttribute("tabindex", "-1");
    to?.focus();
    to?.scrollIntoView({ block: "start" });
  });
  return link;
}

/** An address of the Live page. @param {string} base  of the app  @param {Record<string, unknown>} state  what it shall
 *  show Pure: undefined and null are left out. */
export function liveLink(base, state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state))
    if (value !== undefined && value !== null) query.set(name, `${value}`);
  return `${base}/?${query}`;
}

/** An address of a place on this page. Gradio's pages have a base of their own, so `#id` alone would leave them. Pure.
 *  @param {string} id  of an element  @param {{pathname: string, search: string}} at */
export function place(id, at = location) {
  return `${at.pathname}${at.search}#${encodeURIComponent(id)}`;
}

/** The state of the Live page that would make a recording again. Pure. */
export function settingsOf(entry) {
  const { target, drafter, method, seed, max_new_tokens, prompt, params } = entry;
  return { target, drafter, method, seed, max_new_tokens, prompt, ...params };
}

/** A button that puts an address into the clipboard; where there is none, the address stands beside it to be copied. */
export function copyButton(url, words = "copy link") {
  const said = h("small", { className: "wb-copied" }),
    button = h("button", { type: "button", className: "wb-button" }, words);
  said.setAttribute("role", "status");
  button.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(url).then(() => true, () => false);
    said.textContent = done ? " copied" : ` ${url}`;
  });
  return h("span", { className: "wb-copy" }, button, said);
}

/** Put the header and an empty main part into `el`; returns the main part. */
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

/** Put the frame of a view with settings into `el`: header, settings beside the stage, and what is read out.
 *  @param {Element} el  of the view
 *  @param {(name: string, tag?: string, properties?: object, ...children: any[]) => any} part  makes and keeps a part
 *  @param {{host: any, current: string, side: string, tools?: any[]}} given  `side`: what its settings are called;
 *    `tools`: between what says where it is from and the theme
 *  @param {any} stage  the view's own part, made already */
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

/** A button of such a header. */
export function tool(part, name, text, title) {
  return part(name, "button", { type: "button", className: "wb-badge", title }, text);
}

/** Say on the page what went wrong, and what to do. */
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

/** Ask the server; an error goes onto the page, and null comes back. */
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

/** A date and time as people write it, without seconds; what cannot be read stays as it is. Pure. */
export function when(created) {
  const found = /^(\d{4}-\d{2}-\d{2})T(\d{2}:\d{2})/.exec(created ?? "");
  return found ? `${found[1]} ${found[2]}` : created ?? "";
}
