/** Table of speed-ups by kind of work for methods without training; the fastest of each kind is marked. */

import { h } from "../shared/kit.js";
import * as kit from "../shared/kit.js";

/** Return the texts of a cell: speed-up, interval, τ; null if it was not measured. Pure.
 *  @param {{speedup: any, tau: any}|undefined} cell  @returns {{value: string, more: string}|null} */
export function words(cell) {
  if (!cell?.speedup) return null;
  const { value, low, high, verdict } = cell.speedup, tau = cell.tau ? `τ\u00a0${cell.tau.value.toFixed(2)}` : "";
  const interval = low === null ? "" : `${low.toFixed(2)}–${high.toFixed(2)}×`;
  return { value: `${value.toFixed(2)}×${verdict === "faster" ? " ✓" : ""}`, more: [interval, tau].filter(Boolean).join(", ") };
}

/** Recommend a method for a kind of work. Pure. @param {any} target  @param {string} kind */
export function advice(target, kind) {
  const best = target.methods.find((m) => m.method === target.best[kind]);
  return best ? best.title : "plain decoding: no method was faster";
}

/** Build a button per target and the target's table. @param {any[]} targets */
export function build(targets) {
  const section = h("div", { className: "wb-work", id: "work" });
  section.append(h("h3", {}, "Earlier measurements by workload"));
  if (!targets.length) {
    section.append(h("p", { className: "wb-empty" }, "No measurements yet. Create them with: workbench recommend --kinds --report"));
    return section;
  }
  const about = h("p", { className: "wb-about" }), place = h("div", {});
  const buttons = targets.map((each) => {
    const button = h("button", { type: "button", className: "wb-button" }, each.target);
    button.addEventListener("click", () => show(each));
    return button;
  });
  const choice = h("div", { className: "wb-worktargets" }, ...buttons);
  kit.set(choice, { role: "group", "aria-label": "Target" });
  section.append(choice, about, place);
  show(targets[0]);
  return section;

  function show(target) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", `${targets[i] === target}`));
    kit.write(about, `Methods that need no trained drafter: speed-up over plain decoding of the same prompt, its 95 % confidence interval, and τ, tokens per forward pass of the target. ${target.prompts} prompts per kind, up to ${target.tokens} tokens each, ${target.dtype}. ★: the fastest of its kind; selecting the best of many methods overestimates its speed-up. ✓: the whole interval is above 1. Measured on ${target.machine}.`);
    // on a phone the table is very long: show the recommendations above it
    const open = matchMedia("(min-width: 701px)").matches, words = h("summary", {}, "All methods");
    const all = h("details", { open }, words, table(target), h("p", {}, h("code", {}, target.command)));
    place.replaceChildren(best(target), all);
  }
}

function best(target) {
  const rows = Object.entries(target.kinds).flatMap(([kind, title]) => [h("dt", {}, title), h("dd", {}, advice(target, kind))]);
  return h("dl", { className: "wb-factlist wb-workbest" }, ...rows);
}

function table(target) {
  const kinds = Object.entries(target.kinds), heads = ["method", "all kinds", ...kinds.map(([, title]) => title)];
  const rows = target.methods.map((method) => {
    const isBest = (kind) => target.best[kind] === method.method;
    const cells = [drawn(method.all, false), ...kinds.map(([kind]) => drawn(method.cells[kind], isBest(kind)))];
    const row = h("tr", {}, h("th", { scope: "row" }, method.title), ...cells);
    [...row.children].forEach((cell, i) => (cell.dataset.head = heads[i])); // narrow screens stack the cells
    return row;
  });
  const head = h("tr", {}, ...heads.map((title) => h("th", { scope: "col" }, title)));
  const scroll = h("div", { className: "wb-scroll", tabIndex: 0 }, h("table", { className: "wb-board wb-worktable" }, h("thead", {}, head), h("tbody", {}, ...rows)));
  kit.set(scroll, { role: "region", "aria-label": `Speed-ups by kind of work on ${target.target}` });
  return scroll;
}

function drawn(cell, isBest) {
  const texts = words(cell);
  if (!texts) return h("td", {}, "–");
  return h("td", { className: isBest ? "is-best" : "" }, isBest ? "★ " : "", texts.value, h("small", {}, texts.more));
}
