/** Picker of methods: all methods by the origin of their drafts, with search, requirements and measured speed. */

import * as controls from "./controls.js";
import * as kit from "./kit.js";
import { h } from "./kit.js";

const WIDTH = 74, HIGH = 20;

/** Return whether a method matches all words of a search. Pure.
 *  @param {{name: string, title: string, teaches?: string, source?: {authors?: string, title?: string, year?: number}}}
 *    method  @param {string} query */
export function matches({ name, title, teaches = "", source = {} }, query) {
  const text = [name, title, teaches, source.authors, source.title, source.year].join(" ").toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Return the methods that match, in their groups. Pure.
 *  @param {any[]} methods  of the catalogue  @param {[string, string][]} groups  name and description, in order
 *  @returns {{name: string, about: string, methods: any[]}[]} without empty groups */
export function grouped(methods, groups, query = "") {
  const found = methods.filter((method) => matches(method, query));
  const known = new Set(groups.map(([name]) => name)), rest = found.filter((m) => !known.has(m.group));
  return [...groups.map(([name, about]) => ({ name, about, methods: found.filter((m) => m.group === name) })),
    { name: "Others", about: "", methods: rest }].filter((group) => group.methods.length);
}

/** Return the method to select for a search: the first whose name or title begins with it, else contains it. Pure.
 *  @returns {string|null} */
export function best(methods, query) {
  const wanted = query.toLowerCase(), of = (method) => [method.name, method.title.toLowerCase()];
  if (!wanted) return null;
  const found =
    methods.find((method) => of(method).some((text) => text.startsWith(wanted))) ??
    methods.find((method) => of(method).some((text) => text.includes(wanted)));
  return found?.name ?? null;
}

/** Return the points of a sparkline on a logarithmic scale, and the height of 1×. Pure.
 *  @param {number[]} values  speed-ups, above 0 */
export function sparkline(values, width = WIDTH, high = HIGH) {
  const logs = values.map(Math.log), low = Math.min(0, ...logs), top = Math.max(0, ...logs), span = top - low || 1;
  const y = (value) => high - 2 - ((high - 4) * (value - low)) / span;
  const step = values.length > 1 ? (width - 4) / (values.length - 1) : 0;
  return { points: logs.map((value, i) => [2 + i * step, y(value)]), one: y(0) };
}

/** Describe a measured speed. Pure. @param {any} speed  of `bench.measured_speeds`, or undefined */
export function speedWords(speed) {
  if (!speed) return { value: "–", title: "Not on the speed boards of this target" };
  const { value, low, high } = speed.speedup, range = low === null ? "" : ` (${low.toFixed(2)}–${high.toFixed(2)}×)`;
  const kinds = speed.by_kind.map(([kind, ratio]) => `${kind} ${ratio.toFixed(2)}×`).join(", ");
  return {
    value: `${value.toFixed(2)}×`,
    title: `Speed-up over plain decoding${range}, τ ${speed.tau.toFixed(2)}. ${kinds}. Board “${speed.board}”, ${speed.date}`,
  };
}

/** Return the next selectable name in a direction; the first or last one at the ends. Pure. */
export function step(names, name, direction) {
  if (!names.length) return null;
  const at = names.indexOf(name);
  if (at < 0) return direction > 0 ? names[0] : names.at(-1);
  return names[Math.min(names.length - 1, Math.max(0, at + direction))];
}

/** Build the picker's button. It opens the dialog, which emits `wb:choose` from the button.
 *  @param {() => {catalogue: any, choice: any, speeds: () => Promise<any>}} data  read when the dialog opens */
export function build(data) {
  const open = h("button", { type: "button", className: "wb-link wb-browse" }, "Browse");
  open.title = "All methods by the origin of their drafts, with search and measured speed";
  kit.set(open, { "aria-haspopup": "dialog" });
  open.addEventListener("click", () => show(open, data()));
  return open;
}

function show(open, { catalogue, choice, speeds }) {
  const dialog = h("dialog", { className: "wb-picker" }), list = h("div", { className: "wb-pickerlist" });
  const search = h("input", { type: "search", placeholder: `Search ${catalogue.methods.length} methods` });
  const close = () => dialog.close();
  const ui = { dialog, list, search, measured: {}, selected: choice.method, options: [], uid: `wbp${Math.random().toString(36).slice(2, 8)}` };
  const choose = (name) => {
    close();
    if (name !== choice.method) kit.emit(open, "wb:choose", { what: "method", value: name });
  };
  const redraw = () => draw(ui, catalogue, choice, choose);
  kit.set(search, { "aria-label": "Search methods", role: "combobox", "aria-expanded": "true", "aria-controls": ui.uid, autocomplete: "off" });
  kit.set(list, { role: "listbox", id: ui.uid, "aria-label": "Methods" });
  kit.set(dialog, { "aria-label": "Choose a method" });
  search.addEventListener("input", () => {
    ui.selected = best(catalogue.methods, search.value.trim()) ?? ui.selected;
    redraw();
  });
  search.addEventListener("keydown", (event) => {
    const direction = { ArrowDown: 1, ArrowUp: -1, PageDown: 6, PageUp: -6 }[event.key];
    if (direction) {
      ui.selected = step(ui.options, ui.selected, direction);
      event.preventDefault();
      redraw();
    } else if (event.key === "Enter") {
      event.preventDefault(); // it would press the button that gets the focus
      if (ui.options.includes(ui.selected)) choose(ui.selected);
    }
    event.stopPropagation(); // the page's own keys rest while the dialog is open
  });
  dialog.addEventListener("click", (event) => event.target === dialog && close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    open.focus();
  });
  dialog.append(
    h("div", { className: "wb-pickerhead" }, search, h("button", { type: "button", className: "wb-tool", onclick: close, title: "Close (Esc)" }, "×")),
    h("p", { className: "wb-pickerkey" }, `Line: speed-up by kind of prompt on ${choice.target}, dashed: 1×. Figure: geometric mean over all prompts.`),
    list,
  );
  (open.closest(".wb") ?? document.body).append(dialog);
  redraw();
  dialog.showModal();
  search.focus();
  list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "center" });
  speeds().then((found) => {
    ui.measured = found ?? {};
    redraw();
  });
}

function draw(ui, catalogue, choice, choose) {
  const groups = grouped(catalogue.methods, catalogue.groups ?? [], ui.search.value.trim());
  ui.options = groups.flatMap((group) => group.methods.map((method) => method.name));
  if (!ui.options.includes(ui.selected)) ui.selected = ui.options[0] ?? null;
  ui.list.replaceChildren(
    ...groups.map((group) => {
      const title = h("h3", {}, group.name, h("small", {}, group.about));
      const section = h("div", {}, title, ...group.methods.map((method) => option(ui, method, choice, choose)));
      kit.set(section, { role: "group", "aria-label": group.name });
      return section;
    }),
    ...(groups.length ? [] : [h("p", { className: "wb-pickernone" }, "No method matches this search.")]),
  );
  const selected = ui.list.querySelector("[aria-selected=true]");
  if (selected) kit.set(ui.search, { "aria-activedescendant": selected.id });
  else ui.search.removeAttribute("aria-activedescendant");
  selected?.scrollIntoView({ block: "nearest" });
}

function option(ui, method, choice, choose) {
  const speed = ui.measured[method.name], words = speedWords(speed), isChosen = method.name === choice.method;
  const available = method.available !== false;
  const row = h(
    "div",
    { className: `wb-pickeritem${isChosen ? " is-chosen" : ""}${available ? "" : " is-off"}`, id: `${ui.uid}-${method.name}` },
    h(
      "span",
      { className: "wb-pickername" },
      h("b", {}, method.title, h("i", {}, method.promise === "exact" ? "" : controls.PROMISES[method.promise]?.split(":")[0] ?? "")),
      h("small", {}, available ? method.teaches ?? "" : method.reason ?? ""),
    ),
    line(speed),
    h("span", { className: "wb-pickerspeed", title: words.title }, words.value),
  );
  row.addEventListener("click", () => choose(method.name));
  kit.set(row, { role: "option", "aria-selected": method.name === ui.selected, "data-pick": method.name });
  return row;
}

function line(speed) {
  const svg = kit.s("svg", { width: WIDTH, height: HIGH, "aria-hidden": "true" });
  if (!speed || speed.by_kind.length < 2) return svg;
  const { points, one } = sparkline(speed.by_kind.map(([, value]) => value));
  svg.append(
    kit.s("path", { d: `M2 ${one}H${WIDTH - 2}`, class: "wb-sparkone" }),
    kit.s("path", { d: `M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, class: "wb-spark" }),
  );
  return svg;
}
