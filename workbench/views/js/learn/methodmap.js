/** Map of methods: mean accepted length τ by measured speed on one target, with filters that the page's cards share.
 *  Methods without a measurement on the target are listed beside it. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import { MARKS } from "../shared/linechart.js";
import { grouped, matches, speedWords } from "../shared/methodpicker.js";
import * as pagehead from "../shared/pagehead.js";
import * as scatter from "./scatter.js";

/** Mark and colour of each group, in the order of the groups.
 *  @type {{mark: string, colour: string, hollow?: boolean}[]} */
const LOOKS = [
  { mark: "circle", colour: "method-a" }, { mark: "square", colour: "method-b" }, { mark: "diamond", colour: "method-c" },
  { mark: "up", colour: "method-d" }, { mark: "down", colour: "method-a", hollow: true },
  { mark: "circle", colour: "method-b", hollow: true }, { mark: "cross", colour: "method-d" },
];
const PARTS = [["", "anything"], ["nothing", "nothing else"], ["draft model", "a draft model"], ["head", "a trained head"]];
const PROMISED = [["", "any promise"], ["exact", "exact"], ["approximate", "approximate"]];

/** @typedef {{query: string, groups: string[], promise: string, part: string, here: boolean}} Filters  `groups`: the
 *    hidden ones */

/** Return filters that every method passes. @returns {Filters} */
export const everything = () => ({ query: "", groups: [], promise: "", part: "", here: false });

/** Return whether a method passes the filters. Pure. @param {any} method  @param {Filters} filters
 *  @param {Set<string>|null} available  methods that run here on the target; null: unknown, all pass */
export function passes(method, filters, available = null) {
  return (
    !filters.groups.includes(method.group) &&
    (!filters.promise || method.promise === filters.promise) &&
    (!filters.part || method.part === filters.part) &&
    (!filters.here || available === null || available.has(method.name)) &&
    matches(method, filters.query)
  );
}

/** Return the names of the methods that run here with a target; null if the target is not available here. Pure.
 *  @param {{columns: {target: string}[], rows: {name: string, reasons: string[]}[]}} matrix */
export function availableOn(matrix, target) {
  const columns = matrix.columns.flatMap((column, i) => (column.target === target ? [i] : []));
  if (!columns.length) return null;
  return new Set(matrix.rows.filter((row) => columns.some((i) => !row.reasons[i])).map((row) => row.name));
}

/** Return the measured and the other methods of a target. Pure. Only measured methods get a place on the map.
 *  @param {any[]} methods  @param {Record<string, any>} speeds  by method */
export function split(methods, speeds) {
  const isMeasured = (method) => Boolean(speeds[method.name]);
  return { measured: methods.filter(isMeasured), others: methods.filter((method) => !isMeasured(method)) };
}

/** Return the dots of the map. Pure. @param {any[]} measured  @param {Record<string, any>} speeds
 *  @param {[string, string][]} groups  @param {(method: any) => boolean} isShown
 *  @returns {import("./scatter.js").Dot[]} */
export function dotsOf(measured, speeds, groups, isShown) {
  return measured.map((method) => {
    const { tau, speedup } = speeds[method.name], words = speedWords(speeds[method.name]);
    return {
      id: method.name, x: tau, y: speedup.value, low: speedup.low, high: speedup.high, label: method.name,
      title: `${method.title}: ${words.value}, τ ${tau.toFixed(2)}`, faint: !isShown(method), ...look(groups, method.group),
    };
  });
}

/** Return the boards of the measurements, each with the latest day. Pure. @param {Record<string, any>} speeds */
export function sources(speeds) {
  const days = new Map();
  for (const { board, date } of Object.values(speeds)) {
    const day = `${date}`.slice(0, 10);
    if (day > (days.get(board) ?? "")) days.set(board, day);
  }
  return [...days].map(([board, day]) => `board “${board}”, ${day}`).join("; ");
}

/** Return mark and colour of a group. Pure. @param {[string, string][]} groups */
export function look(groups, group) {
  const at = groups.findIndex(([name]) => name === group);
  return LOOKS[at < 0 ? LOOKS.length - 1 : at % LOOKS.length];
}

/** Build the map and its filters.
 *  @param {{measured: any, matrix: () => Promise<any>, open: (name: string) => void, filtered: (shown: Set<string>) =>
 *    void, host: any, recorded: string[], hasSearch?: boolean}} given  `measured`: answer of the server function
 *    `measured`; `matrix`: fetch the compatibility matrix; `open`: called with the chosen method; `filtered`: called
 *    with the methods that pass; `recorded`: names of recordings; `hasSearch`: whether it has its own search field
 *  @returns {{section: HTMLElement, search: (query: string) => void}} `search`: filter by words */
export function build({ measured, matrix, open, filtered, host, recorded, hasSearch = true }) {
  const { methods, groups, targets } = measured, links = recordingLink(host, recorded);
  const ui = /** @type {any} */ ({ filters: everything(), target: targets[0], available: null, matrix: null });
  const count = h("small", {}), plot = h("div", { className: "wb-mapplot" }), card = h("div", { className: "wb-mapcard" });
  const aside = h("details", { className: "wb-mapothers", open: !matchMedia("(max-width: 640px)").matches }), note = h("p", { className: "wb-about" });
  kit.set(count, { role: "status" });
  const draw = () => {
    const { filters, target, available } = ui, isShown = (method) => passes(method, filters, available);
    const speeds = target?.speeds ?? {}, { measured: placed, others } = split(methods, speeds);
    const shown = new Set(methods.filter(isShown).map((method) => method.name));
    scatter.render(plot, {
      dots: dotsOf(placed, speeds, groups, isShown),
      x: { title: "mean accepted length τ, tokens per target pass", from: 1 },
      y: { title: "speed-up over plain decoding, measured", log: true, line: 1, words: (value) => `${Number(value.toPrecision(2))}×` },
      summary: `Map of ${placed.length} methods measured on ${target?.name}: mean accepted length τ by speed-up. Arrow keys move between methods.`,
      height: plot.clientWidth < 560 ? 340 : 430,
    });
    kit.write(count, `${shown.size} of ${methods.length} methods`);
    listOthers(aside, others.filter(isShown), groups, (name) => show(name), open);
    kit.write(note, target ? `${placed.length} methods measured on ${target.name} with this workbench (${sources(speeds)}). Vertical lines: 95 % confidence intervals over prompts. A dot above 1× is faster than plain decoding.` : "No method is measured yet.");
    filtered(shown);
  };
  const show = (name) => describe(card, methods.find((method) => method.name === name), ui.target, open, links);
  const change = (change) => {
    Object.assign(ui.filters, change);
    draw();
  };
  const here = h("input", { type: "checkbox", onchange: () => limit() });
  const limit = async () => {
    if (here.checked && !ui.matrix) {
      kit.write(count, "The backend is starting …");
      ui.matrix = await matrix();
    }
    ui.available = ui.matrix?.columns ? availableOn(ui.matrix, ui.target?.name) ?? new Set() : null;
    change({ here: here.checked });
  };
  const switches = targets.map((target) => {
    const button = h("button", { type: "button", className: "wb-button" }, target.name);
    button.addEventListener("click", () => {
      ui.target = target;
      switches.forEach((each, i) => kit.set(each, { "aria-pressed": targets[i] === target }));
      card.hidden = true;
      return here.checked ? limit() : draw();
    });
    kit.set(button, { "aria-pressed": target === ui.target });
    return button;
  });
  const choose = (label, options, name) => {
    const select = h("select", {}, ...options.map(([value, text]) => h("option", { value }, text)));
    select.addEventListener("change", () => change({ [name]: select.value }));
    return h("label", {}, h("span", {}, label), select);
  };
  const search = h("input", { type: "search", placeholder: "Search by name, idea or paper …" });
  search.addEventListener("input", kit.paced(() => change({ query: search.value.trim() })));
  const present = groups.filter(([name]) => methods.some((method) => method.group === name));
  const keys = present.map(([name, about]) => legend(name, about, look(groups, name), (isHidden) => {
    const others = ui.filters.groups.filter((each) => each !== name);
    change({ groups: isHidden ? [...others, name] : others });
  }));
  plot.addEventListener("wb:dot", (event) => show(/** @type {any} */ (event).detail.id));
  plot.addEventListener("wb:opendot", (event) => open(/** @type {any} */ (event).detail.id));
  plot.addEventListener("wb:redraw", () => draw());
  const filterRow = h(
    "div",
    { className: "wb-mapfilters" },
    ...(hasSearch ? [h("label", { className: "wb-mapsearch" }, h("span", {}, "Search"), search)] : []),
    choose("promise", PROMISED, "promise"),
    choose("needs", PARTS, "part"),
    h("label", { className: "wb-maphere" }, here, "available here"),
    count,
  );
  const targetRow = h("div", { className: "wb-maptargets", hidden: targets.length < 2 }, h("span", {}, "Target"), ...switches);
  kit.set(targetRow, { role: "group", "aria-label": "Target of the measurements" });
  const legendRow = h("div", { className: "wb-mapkeys" }, ...keys);
  kit.set(legendRow, { role: "group", "aria-label": "Ideas shown" });
  const section = h(
    "section",
    { className: "wb-card wb-map", id: "map" },
    h("div", { className: "wb-maphead" }, h("h2", {}, "Map of methods"), targetRow),
    filterRow,
    legendRow,
    h("div", { className: "wb-mapbody" }, h("div", {}, plot, note), h("div", { className: "wb-mapside" }, card, aside)),
  );
  card.hidden = true;
  kit.set(card, { "aria-live": "polite" });
  requestAnimationFrame(draw); // it needs the width of the page
  return { section, search: (query) => change({ query }) };
}

/** Return a function that returns the link to a method's recording, if there is one. */
function recordingLink(host, recorded) {
  return ({ name, title }) => {
    if (!recorded.includes(name)) return [];
    const link = h("a", { className: "wb-button", href: pagehead.liveLink(host.base, { recorded: name }) }, "Watch the recording");
    kit.set(link, { "aria-label": `Watch the recording of ${title}` });
    return [link];
  };
}

/** @param {{mark: string, colour: string, hollow?: boolean}} drawn  @param {(isHidden: boolean) => void} toggle */
function legend(name, about, drawn, toggle) {
  const { mark, colour, hollow } = drawn;
  const svg = kit.s("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true", class: `wb-series is-${colour}${hollow ? " is-hollow" : ""}` });
  svg.append(kit.s("path", { d: `M0 0${MARKS[mark]}`, class: `wb-seriesmark is-${mark}` }));
  const button = h("button", { type: "button", className: "wb-mapkey", title: about }, svg, name);
  kit.set(button, { "aria-pressed": "true" });
  button.addEventListener("click", () => {
    const isHidden = button.getAttribute("aria-pressed") === "true";
    kit.set(button, { "aria-pressed": !isHidden });
    toggle(isHidden);
  });
  return button;
}

function listOthers(aside, others, groups, show, open) {
  const sections = grouped(others, groups).map((group) =>
    h("li", {}, h("b", {}, group.name), " ", ...group.methods.flatMap((method, i) => [
      ...(i ? [", "] : []),
      h("button", { type: "button", className: "wb-link", onclick: () => open(method.name), onfocus: () => show(method.name), onpointerenter: () => show(method.name) }, method.title),
    ])),
  );
  aside.replaceChildren(
    h("summary", {}, others.length ? `Not on these boards (${others.length})` : "All methods shown are on the speed boards of this target"),
    h("ul", {}, ...sections),
  );
}

/** Fill the card with a method and its measurement. */
function describe(card, method, target, open, links) {
  if (!method) return;
  const speed = target?.speeds[method.name], words = speedWords(speed);
  const kinds = speed ? [...speed.by_kind].sort((a, b) => b[1] - a[1]) : [];
  card.hidden = false;
  card.dataset.method = method.name;
  card.replaceChildren(
    h("h3", {}, method.title),
    h("p", { className: "wb-mapidea" }, `${method.group} · ${controls.PROMISES[method.promise]?.split(":")[0] ?? method.promise} · needs ${PARTS.find(([name]) => name === method.part)?.[1] ?? method.part}`),
    h("p", {}, method.teaches ?? ""),
    speed
      ? h("dl", { className: "wb-factlist" }, h("dt", {}, "speed-up"), h("dd", {}, words.value, interval(speed.speedup)), h("dt", {}, "τ"), h("dd", {}, speed.tau.toFixed(2)),
          ...(kinds.length > 1 ? [h("dt", {}, "by prompt"), h("dd", {}, `${kinds[0][0]} ${kinds[0][1].toFixed(2)}× … ${kinds.at(-1)[0]} ${kinds.at(-1)[1].toFixed(2)}×`)] : []))
      : h("p", { className: "wb-empty" }, "Not on the speed boards of this target."),
    h("div", { className: "wb-actions" }, h("button", { type: "button", className: "wb-button is-main", onclick: () => open(method.name) }, "Open the method"), ...links(method)),
  );
}

/** Describe an interval with its sample. Pure. @param {{low: number|null, high: number|null, n: number, prompts:
 *  number}} speedup */
export function interval({ low, high, n, prompts }) {
  return low === null ? ` (${n} runs)` : ` (${low.toFixed(2)}–${high.toFixed(2)}×, n = ${n}: ${prompts} prompts)`;
}
