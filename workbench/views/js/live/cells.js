/** Tables among the signals of a round: signals named "name [row, column]" are cells of one table, whichever drafter
 *  reports them. */

import * as kit from "../shared/kit.js";

const CELL = /^(.+) \[([^,\]]+), ([^,\]]+)\]$/;

/** Return whether a signal is a cell of a table rather than a single figure. Pure. */
export const isCell = (name) => CELL.test(name);

/** Return the tables of a round; rows and columns keep the order of the signals. Pure.
 *  @param {{signals?: Record<string, number|null>}|null} round
 *  @returns {{name: string, rows: string[], columns: string[], values: (number|null)[][]}[]} */
export function tables(round) {
  const found = new Map();
  for (const [signal, value] of Object.entries(round?.signals ?? {})) {
    const [, name, row, column] = CELL.exec(signal) ?? [];
    if (name === undefined) continue;
    if (!found.has(name)) found.set(name, { name, rows: [], columns: [], values: [] });
    const table = found.get(name);
    for (const [list, one] of [[table.rows, row], [table.columns, column]]) if (!list.includes(one)) list.push(one);
    (table.values[table.rows.indexOf(row)] ??= [])[table.columns.indexOf(column)] = value;
  }
  return [...found.values()].map((table) => ({
    ...table,
    values: table.rows.map((_, i) => table.columns.map((_, j) => table.values[i][j] ?? null)),
  }));
}

/** Return the shade of each cell in [0, 1]: the table's minimum is 0, its maximum 1, an unknown value 0. Pure.
 *  @param {(number|null)[][]} values */
export function shares(values) {
  const known = values.flat().filter((v) => v !== null), low = Math.min(...known), high = Math.max(...known);
  const share = (v) => (v === null ? 0 : high > low ? (v - low) / (high - low) : Number(v > 0));
  return values.map((row) => row.map(share));
}

const figure = (v) => (v === null ? "–" : Number.isInteger(v) ? `${v}` : v.toPrecision(3));

/** Describe a table row by row. Pure. */
export const words = ({ name, rows, values }) =>
  `${name}: ${rows.map((row, i) => `${row} ${values[i].map(figure).join(" ")}`).join("; ")}`;

/** Return one element for each table of a round. */
export const elements = (round) => tables(round).map(drawn);

function drawn(table) {
  const { name, rows, columns, values } = table, dark = shares(values);
  const of = (className, text) => kit.h("span", { className }, text);
  const many = columns.length > 16, shown = columns.map((c, i) => (many && i % 5 && i + 1 < columns.length ? "" : c));
  const grid = kit.h("div", { className: "wb-cells" }, of("", ""), ...shown.map((c) => of("wb-cellname", c)));
  kit.set(grid, { role: "img", "aria-label": words(table) });
  grid.style.gridTemplateColumns = `max-content repeat(${columns.length}, minmax(0, 26px))`;
  rows.forEach((row, i) => {
    grid.append(of("wb-cellrow", row));
    columns.forEach((column, j) => {
      const cell = kit.h("i", { className: `wb-cell${dark[i][j] === 1 ? " is-most" : ""}` });
      cell.title = `${row}, ${column}: ${figure(values[i][j])}`;
      cell.style.setProperty("--wb-share", dark[i][j].toFixed(3));
      grid.append(cell);
    });
  });
  return kit.h("div", {}, of("wb-probewords", name), grid);
}
