/** Frame of a page: header with its buttons, settings, stage, live region; and functions that create its elements. */

import * as kit from "./kit.js";
import { h } from "./kit.js";
import * as exports from "./exports.js";
import * as pagehead from "./pagehead.js";
import * as panel from "./panel.js";

/** Return functions that create elements and keep them by name in `parts`. */
export function builder() {
  const parts = /** @type {any} */ ({});
  const part = (name, tag = "div", properties = {}, ...children) => (parts[name] = h(tag, properties, ...children));
  const labelled = (element, label) => (element.setAttribute("aria-label", label), element);
  const button = (className) => (name, text, title = "") =>
    part(name, "button", { type: "button", className, ...(title && { title }) }, text);
  return {
    parts,
    part,
    /** Return a card around a drawing; see `panel.card`. */
    card: (...args) => panel.card(parts, ...args),
    /** Return a card with a chart and its table; see `panel.chart`. */
    chart: (...args) => panel.chart(parts, ...args),
    region: (...args) => panel.region(parts, ...args),
    /** Return a button of the header. */
    badge: button("wb-badge"),
    /** Return a small button of a card. */
    tool: button("wb-tool"),
    /** Return a paragraph of the page's own text. */
    paragraph: (name, className) => part(name, "p", { className }),
    /** Return a selector. @param {[string|number, string][]} options  value, text */
    select: (name, label, options = []) =>
      labelled(part(name, "select", {}, ...options.map(([value, text]) => h("option", { value }, text))), label),
    /** Return a group of toggle buttons. @param {[string, string][]} entries  value, text  @param {string} key  data
     *  attribute of a button's value */
    modes: (name, label, entries, key = "value") => {
      const buttons = entries.map(([value, text]) => {
        const toggle = h("button", { type: "button", className: "wb-tool" }, text);
        toggle.dataset[key] = value;
        return toggle;
      });
      const group = part(name, "span", { className: "wb-modes" }, ...buttons);
      kit.set(group, { role: "group", "aria-label": label });
      return group;
    },
    /** Return the place of error messages. */
    alerts: () => {
      kit.set(part("alerts", "div", { className: "wb-alerts" }), { role: "alert" });
      return parts.alerts;
    },
    /** Return the description of the cards, shown before the first measurement. @param {string[][]} cards */
    intro: (cards) =>
      part(
        "intro",
        "div",
        { className: "wb-intro" },
        part("empty", "p", { className: "wb-empty" }),
        h("dl", {}, ...cards.flatMap(([name, says]) => [h("dt", {}, name), h("dd", {}, says)])),
      ),
    /** Return the progress of a measurement; see `jobs.progress`. */
    progress: (...more) =>
      part(
        "progress",
        "div",
        { className: "wb-measuring", hidden: true },
        part("progressText", "span"),
        part("progressBar", "progress"),
        part("progressNote", "small"),
        ...more,
      ),
    /** Return the button that opens a file, with its hidden input. */
    opener: (title, label, accept) => [
      button("wb-badge")("open", "open …", title),
      labelled(part("file", "input", { type: "file", accept, hidden: true }), label),
    ],
    /** Return the Export menu; see `exports.fill`. */
    exporter: (title) => exports.menu(part, title),
  };
}

/** Select the button of a group of modes. */
export function choose(group, value, key = "value") {
  for (const button of group.children) kit.set(button, { "aria-pressed": String(button.dataset[key] === value) });
}

/** Put the frame of a page into `el`, around its stage.
 *  @param {Element} el  @param {any} build  of `builder`
 *  @param {{host?: any, current: string, side: string, sideClass?: string, from?: boolean, tools?: any[], more?:
 *    any[], settings?: any[], before?: any[], after?: any[]}} given  `current`: the page's name in the navigation;
 *    `side`: label of the settings, `settings` their elements; `from`: show the badge with the origin of the figures;
 *    `tools`: header buttons before the theme's, `more` those after it; `before`: elements between header and
 *    settings; `after`: elements after the live region
 *  @param {any} stage  the page's own element */
export function frame(el, build, given, stage) {
  const { part, badge } = build;
  const { host, current, side, sideClass = "", from = true } = given;
  const { tools = [], more = [], settings = [], before = [], after = [] } = given;
  const nav = part("nav", "nav", { className: "wb-nav" });
  el.append(
    h(
      "header",
      { className: "wb-head" },
      h("h1", { className: "wb-name" }, h("span", {}, "Speculative Decoding "), "Workbench"),
      nav,
      h("span", { className: "wb-space" }),
      ...(from
        ? [part("badge", "span", { className: "wb-badge wb-from-where" }, h("i"), part("badgeText", "span"))]
        : []),
      ...tools,
      badge("theme", "◐ theme", "Light or dark"),
      ...more,
    ),
    h(
      "div",
      { className: "wb-main" },
      ...before,
      part("side", "aside", { className: `wb-side ${sideClass}`.trim() }, ...settings),
      stage,
    ),
    part("live", "div", { className: "wb-unseen" }),
    ...after,
  );
  kit.set(build.parts.live, { "aria-live": "polite" });
  kit.set(build.parts.side, { "aria-label": side });
  stage.tabIndex = -1;
  if (host?.base === undefined) nav.hidden = true; // a notebook or a file has no other pages
  else pagehead.fill(nav, host, current);
}
