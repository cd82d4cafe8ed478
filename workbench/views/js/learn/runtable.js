/** Table of runs in the gallery: search, sorted columns, selection, a scatter plot of two columns, comparison, CSV. */

import * as addresses from "../shared/address.js";
import * as exports from "../shared/exports.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import { look } from "../shared/linechart.js";
import * as pagehead from "../shared/pagehead.js";
import * as rows from "./runrows.js";
import * as scatter from "./scatter.js";

const COLUMNS_KEY = "wb-run-columns", LONGEST = 90, COLOURED = 6;

/** Build the table. It loads its rows when `show` is first called.
 *  @param {{host: any, main: any, passes: (row: any) => boolean}} given  `passes`: whether the page's filters let a run
 *    pass  @returns {{section: HTMLElement, show: () => Promise<void>, draw: () => void, reload: () => Promise<void>}}
 *    `show`: fetch the rows if they are missing; `reload`: fetch them again if they were fetched */
export function build({ host, main, passes }) {
  const ui = /** @type {any} */ ({
    host, main, passes, all: [], total: 0, shown: [], selected: new Set(), query: "", sort: "source", direction: 1,
    columns: storedColumns(host), x: "tau", y: "tokens_per_second", by: "method", loaded: false, turn: 0,
  });
  const part = (name, tag, properties = {}, ...children) => (ui[name] = h(tag, properties, ...children));
  const search = h("input", { type: "search", placeholder: "words  #tag  tau>=2", ariaLabel: "Search runs" });
  search.addEventListener("input", kit.paced(() => {
    ui.query = search.value.trim();
    draw(ui);
  }));
  const chosenColumns = h("details", { className: "wb-runcolumns" }, h("summary", { className: "wb-button" }, "Columns"), part("choices", "div", {}));
  const save = h("button", { type: "button", className: "wb-button", title: "Save all rows shown as a CSV file" }, "CSV");
  save.addEventListener("click", () => {
    kit.write(ui.status, `Saved ${exports.save("runs.csv", rows.csv(ui.shown), "text/csv")}: ${ui.shown.length} runs, all columns`);
  });
  const axis = (label, name) => {
    const select = h("select", {}, ...rows.NUMBERS.map((column) => h("option", { value: column.name }, column.title)));
    select.value = ui[name];
    select.addEventListener("change", () => {
      ui[name] = select.value;
      draw(ui);
    });
    return h("label", {}, h("span", {}, label), select);
  };
  const by = h("select", {}, ...rows.GROUPED.map((name) => h("option", { value: name }, name === "name" ? "each run" : rows.column(name).title)));
  by.addEventListener("change", () => {
    ui.by = by.value;
    drawSelection(ui);
  });
  part("compare", "button", { type: "button", className: "wb-button is-main", onclick: () => compare(ui) }, "Compare selected");
  part("beside", "a", { className: "wb-button", hidden: true }, "Open side by side");
  part("clear", "button", { type: "button", className: "wb-button", onclick: () => {
    ui.selected.clear();
    draw(ui);
  } }, "Clear selection");
  part("status", "p", { className: "wb-keptfound" });
  part("answer", "ul", { className: "wb-runanswer" });
  part("plot", "div", { className: "wb-runplot" });
  part("head", "tr");
  part("body", "tbody");
  part("why", "span", { className: "wb-runwhy" });
  kit.set(ui.status, { role: "status" });
  kit.set(ui.answer, { "aria-live": "polite" });
  const scroll = h("div", { className: "wb-scroll wb-runscroll", tabIndex: 0 }, h("table", { className: "wb-runtable" }, h("thead", {}, ui.head), ui.body));
  kit.set(scroll, { role: "region", "aria-label": "Table of runs" });
  ui.plot.addEventListener("wb:opendot", (event) => toggle(ui, /** @type {any} */ (event).detail.id));
  ui.plot.addEventListener("wb:redraw", () => drawPlot(ui));
  const section = h(
    "section",
    { className: "wb-runs", id: "runs" },
    h("div", { className: "wb-runbar" }, h("label", {}, h("span", {}, "Search"), search), chosenColumns, save),
    ui.status,
    h("div", { className: "wb-runbar" }, ui.compare, h("label", {}, h("span", {}, "Groups by"), by), ui.beside, ui.clear, ui.why),
    ui.answer,
    scroll,
    h("h3", {}, "Two columns as a plot"),
    h("div", { className: "wb-runbar" }, axis("horizontal", "x"), axis("vertical", "y")),
    ui.plot,
  );
  drawChoices(ui);
  const reload = async () => {
    const answer = await pagehead.ask(main, { host }, "table");
    if (answer) Object.assign(ui, { all: answer.rows, total: answer.total, loaded: true });
    draw(ui);
  };
  return {
    section,
    reload: async () => (ui.loaded ? reload() : undefined),
    draw: () => ui.loaded && draw(ui),
    show: async () => (ui.loaded ? draw(ui) : reload()),
  };
}

function storedColumns(host) {
  const known = rows.COLUMNS.map((column) => column.name);
  const standard = known.filter((name) => !rows.column(name).hidden);
  try {
    const stored = JSON.parse(host.remember?.getItem(COLUMNS_KEY) ?? "null");
    const chosen = Array.isArray(stored) ? known.filter((name) => stored.includes(name)) : [];
    return chosen.length ? chosen : standard;
  } catch {
    return standard; // damaged, or the browser blocks storage
  }
}

function drawChoices(ui) {
  ui.choices.replaceChildren(
    ...rows.COLUMNS.map(({ name, title }) => {
      const box = h("input", { type: "checkbox", checked: ui.columns.includes(name) });
      box.addEventListener("change", () => {
        const isChosen = (each) => (each === name ? box.checked : ui.columns.includes(each));
        const chosen = rows.COLUMNS.map((column) => column.name).filter(isChosen);
        if (!chosen.length) return void (box.checked = true); // one column remains
        ui.columns = chosen;
        try {
          ui.host.remember?.setItem(COLUMNS_KEY, JSON.stringify(chosen));
        } catch {
          // without storage the choice holds for this page only
        }
        draw(ui);
      });
      return h("label", {}, box, title);
    }),
  );
}

function draw(ui) {
  const found = ui.all.filter((row) => ui.passes(row) && rows.matches(row, ui.query));
  ui.shown = rows.sorted(found, rows.column(ui.sort), ui.direction);
  const kept = ui.all.filter((row) => row.source === "kept").length;
  const older = ui.total > kept ? ` (the newest of ${ui.total})` : "";
  kit.write(ui.status, `${ui.shown.length} of ${ui.all.length} runs: ${kept} kept on this machine${older}, ${ui.all.length - kept} recordings`);
  const columns = ui.columns.map(rows.column);
  ui.head.replaceChildren(h("th", { scope: "col" }, selectAll(ui)), ...columns.map((column) => header(ui, column)));
  ui.body.replaceChildren(...ui.shown.map((row) => line(ui, row, columns)));
  drawSelection(ui);
  drawPlot(ui);
}

function selectAll(ui) {
  const isAll = ui.shown.length > 0 && ui.shown.every((row) => ui.selected.has(row.name));
  const box = h("input", { type: "checkbox", checked: isAll, ariaLabel: "Select all runs shown" });
  box.addEventListener("change", () => {
    for (const { name } of ui.shown)
      if (box.checked) ui.selected.add(name);
      else ui.selected.delete(name);
    draw(ui);
  });
  return box;
}

function header(ui, column) {
  const isSorted = ui.sort === column.name, button = h("button", { type: "button" }, column.title, h("i", {}, isSorted ? (ui.direction > 0 ? " ▲" : " ▼") : ""));
  button.addEventListener("click", () => {
    Object.assign(ui, { sort: column.name, direction: isSorted ? -ui.direction : column.kind === "number" ? -1 : 1 });
    draw(ui);
    ui.head.querySelector(`[data-column="${column.name}"] button`)?.focus();
  });
  const cell = h("th", { scope: "col", className: column.kind === "number" ? "is-number" : "" }, button);
  kit.set(cell, { "aria-sort": isSorted ? (ui.direction > 0 ? "ascending" : "descending") : "none", "data-column": column.name });
  return cell;
}

function line(ui, row, columns) {
  const box = h("input", { type: "checkbox", checked: ui.selected.has(row.name), ariaLabel: `Select ${row.name}` });
  box.addEventListener("change", () => toggle(ui, row.name));
  const cells = columns.map((column) => {
    const text = rows.text(row, column), short = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    if (column.name === "name") return h("td", {}, h("a", { href: addressOf(ui.host, row) }, text));
    return h("td", { className: column.kind === "number" ? "is-number" : "", title: short === text ? "" : text }, short);
  });
  const line = h("tr", { className: ui.selected.has(row.name) ? "is-selected" : "" }, h("td", {}, box), ...cells);
  line.dataset.run = row.name;
  return line;
}

const addressOf = (host, row) => (row.source === "kept" ? addresses.run(host.base, row.name) : pagehead.liveLink(host.base, { recorded: row.name }));

function toggle(ui, name) {
  if (!ui.selected.delete(name)) ui.selected.add(name);
  const line = [...ui.body.children].find((each) => each.dataset.run === name);
  if (line) {
    line.className = ui.selected.has(name) ? "is-selected" : "";
    line.querySelector("input").checked = ui.selected.has(name);
  }
  drawSelection(ui);
  drawPlot(ui);
}

function drawSelection(ui) {
  const selected = ui.all.filter((row) => ui.selected.has(row.name));
  const { first, second, why } = rows.pair(selected, rows.column(ui.by));
  ui.turn += 1; // an answer for an earlier selection is not shown
  ui.answer.replaceChildren();
  ui.compare.disabled = Boolean(why);
  ui.clear.hidden = !selected.length;
  ui.beside.hidden = selected.length !== 2;
  if (selected.length === 2) ui.beside.href = addresses.run(ui.host.base, ...selected.map((row) => row.name));
  kit.write(ui.why, why || `${first.name} (${first.rows.length}) compared with ${second.name} (${second.rows.length})`);
}

async function compare(ui) {
  const selected = ui.all.filter((row) => ui.selected.has(row.name));
  const { first, second, why } = rows.pair(selected, rows.column(ui.by));
  if (why) return;
  const turn = ui.turn, names = (group) => group.rows.map((row) => row.name);
  const answer = await pagehead.ask(ui.main, { host: ui.host }, "significance", { first: names(first), second: names(second) });
  if (answer && turn === ui.turn)
    ui.answer.replaceChildren(...rows.comparisonLines(answer, first.name, second.name).map((text) => h("li", {}, text)));
}

function drawPlot(ui) {
  const [x, y] = [rows.column(ui.x), rows.column(ui.y)], names = rows.groupsOf(ui.shown, rows.column("method")).map((group) => group.name);
  const dots = ui.shown.flatMap((row) => {
    const [across, up] = [rows.value(row, x), rows.value(row, y)], interval = y.name === "speedup" ? row.speedup : null;
    if (across === null || up === null) return [];
    const { colour, mark, hollow } = names.length <= COLOURED ? look(names.indexOf(row.method)) : { colour: "ink", mark: "circle", hollow: !ui.selected.has(row.name) };
    return [{
      id: row.name, x: across, y: up, low: interval?.low, high: interval?.high, colour, mark, hollow, label: row.method,
      faint: ui.selected.size > 0 && !ui.selected.has(row.name), title: `${row.name}, ${row.method}: ${x.title} ${rows.text(row, x)}, ${y.title} ${rows.text(row, y)}`,
    }];
  });
  scatter.render(ui.plot, {
    dots, x: { title: x.title }, y: { title: y.title }, height: 320,
    summary: `${dots.length} runs: ${x.title} by ${y.title}. Enter selects a run; arrow keys move between runs.`,
  });
}
