/** Heat map of a sweep: a grid of cells that fills as they are measured. Elements are kept and updated. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

/** Format a value with its unit. Pure. */
export function words(metric, value) {
  if (value === null || value === undefined) return "–";
  if (metric === "acceptance_rate") return `${Math.round(100 * value)} %`;
  return metric === "tokens_per_second"
    ? value.toFixed(0)
    : `${value.toFixed(2)}${metric.startsWith("speedup") ? "×" : ""}`;
}

/** Format the interval and n of an estimate. Pure. */
export function interval(metric, found) {
  if (!found) return "";
  const range =
    found.low === null || found.low === undefined
      ? ""
      : `${words(metric, found.low).replace(/ ?[×%]$/, "")}–${words(metric, found.high)}, `;
  return `${range}n = ${found.n}`;
}

/** Return the colour strength of a cell, 0 to 1: its place between the smallest and the largest value. Pure. */
export function shade(value, low, high) {
  if (value === null || value === undefined) return 0;
  return high > low ? (value - low) / (high - low) : 0.5;
}

/** Return the accessible label of a cell. Pure. */
export function label(cell, axes, metric, title) {
  const at = Object.entries(axes)
    .map(([name, values], i) => `${name.replaceAll("_", " ")} ${values[cell.at[i]]}`)
    .join(", ");
  const found = cell.figures?.[metric];
  const state =
    cell.state === "failed"
      ? `failed: ${cell.error}`
      : cell.state === "running"
        ? `is being measured${found ? `, ${words(metric, found.value)} so far` : ""}`
        : cell.state === "waiting"
          ? "waiting"
          : found
            ? `${title} ${words(metric, found.value)}${found.low === null ? "" : `, 95 % confidence interval ${words(metric, found.low)} to ${words(metric, found.high)}`}, n = ${found.n}`
            : `no ${title}`;
  return `${at}: ${state}`;
}

/** Draw into `el`; emits `wb:cell` {id}. Arrow keys go from cell to cell. */
export function render(el, { sweep, cells, metric, title, chosen }) {
  const axes = sweep.sweep.axes,
    [rows, columns = { name: "", values: [""] }] = Object.entries(axes).map(([name, values]) => ({ name, values }));
  const key = JSON.stringify(axes),
    values = [...cells.values()]
      .map((cell) => cell.figures?.[metric]?.value)
      .filter((v) => v !== null && v !== undefined);
  const state = el._grid?.key === key ? el._grid : (el._grid = build(el, key, rows, columns));
  const low = Math.min(...values),
    high = Math.max(...values),
    byPlace = new Map([...cells.values()].map((cell) => [cell.place, cell]));
  state.cells.forEach(({ button, value, detail, place }) => {
    const cell = byPlace.get(place);
    if (!cell) return;
    const found = cell.figures?.[metric], failed = cell.state === "failed";
    button.dataset.id = cell.id;
    kit.set(button, {
      "data-state": cell.state,
      "aria-label": label(cell, axes, metric, title),
      "aria-pressed": String(cell.id === chosen),
    });
    button.title = failed ? cell.error : cell.state === "running" ? cell.text : cell.setting;
    button.style.setProperty("--shade", `${(8 + 50 * shade(found?.value, low, high)).toFixed(0)}%`);
    kit.write(
      value,
      failed
        ? "✕"
        : cell.state === "done"
          ? words(metric, found?.value)
          : cell.state === "running"
            ? found
              ? words(metric, found.value)
              : "…"
            : "·",
    );
    kit.write(
      detail,
      failed
        ? "failed"
        : cell.state === "done"
          ? interval(metric, found)
          : cell.state === "running"
            ? (/^\d+ of \d+ runs/.exec(cell.text)?.[0] ?? "starting").replace("runs", found ? "runs so far" : "runs")
            : "",
    );
    button.classList.toggle(
      "is-slower",
      metric === "speedup" && found !== undefined && found !== null && found.value < 1,
    );
  });
  return { low, high };
}

function build(el, key, rows, columns) {
  const state = { key, cells: [] },
    table = h("table", {}),
    word = (text) => `${text}`.replaceAll("_", " "),
    whole = (text) => text.replaceAll(" ", "\u00a0"); // narrow screens break the corner cell between its axes
  const head = h(
    "tr",
    {},
    h(
      "th",
      { scope: "col" },
      whole(`${word(rows.name)} ↓`) + (columns.name ? ` ${whole(`${word(columns.name)} →`)}` : ""),
    ),
    ...columns.values.map((value) => h("th", { scope: "col" }, `${value}`)),
  );
  const body = h(
    "tbody",
    {},
    ...rows.values.map((row, i) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, `${row}`),
        ...columns.values.map((_, j) => {
          const value = h("b"),
            detail = h("small"),
            button = h(
              "button",
              { type: "button", className: "wb-sweepcell", tabIndex: state.cells.length ? -1 : 0 },
              value,
              detail,
            );
          state.cells.push({ button, value, detail, place: columns.name ? `${i},${j}` : `${i}` });
          return h("td", {}, button);
        }),
      ),
    ),
  );
  table.append(h("thead", {}, head), body);
  table.addEventListener("click", (event) => {
    const button = event.target.closest(".wb-sweepcell");
    if (!button?.dataset.id) return;
    focus(state, button);
    kit.emit(el, "wb:cell", { id: button.dataset.id });
  });
  table.addEventListener("keydown", (event) => {
    const at = state.cells.findIndex(({ button }) => button === event.target),
      wide = columns.values.length;
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at - wide,
      ArrowDown: at + wide,
      Home: 0,
      End: state.cells.length - 1,
    }[event.key];
    if (at < 0 || to === undefined || !state.cells[to]) return;
    event.preventDefault();
    focus(state, state.cells[to].button);
    state.cells[to].button.focus();
  });
  el.replaceChildren(table);
  return state;
}

function focus(state, button) {
  for (const cell of state.cells) cell.button.tabIndex = cell.button === button ? 0 : -1;
}

/** Return the horizontal axis of a chart and the place of each value: numbers are at their value, names at equal
 *  distances with half a place on either side.
 *  @param {string} title  @param {(number|string)[]} values  of the sweep's axis, in order
 *  @returns {{places: number[], x: import("../shared/linechart.js").Axis}} */
export function axisOf(title, values) {
  const numeric = values.every((value) => typeof value === "number");
  const places = values.map((value, i) => (numeric ? Number(value) : i)), gap = numeric ? 0 : 0.5;
  const ticks = places.map((at, i) => ({ at, text: `${values[i]}` }));
  const words = (at) => `${title} ${values[places.indexOf(at)]}`;
  return { places, x: { from: Math.min(...places) - gap, to: Math.max(...places) + gap, ticks, title, words } };
}
