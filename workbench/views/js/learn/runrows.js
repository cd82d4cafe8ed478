/** Rows of the table of runs: columns, search, order, groups, CSV. Pure. */

import * as exports from "../shared/exports.js";

/** @typedef {{name: string, title: string, kind: "text"|"number", of?: (row: any) => any, digits?: number,
 *    percent?: boolean, hidden?: boolean}} Column  `of`: value of a row; null if it has none */

const tags = (row) => row.tags.join(", ");

/** @type {Column[]} */
export const COLUMNS = [
  { name: "name", title: "run", kind: "text" },
  { name: "source", title: "source", kind: "text", hidden: true },
  { name: "method", title: "method", kind: "text" },
  { name: "target", title: "target", kind: "text" },
  { name: "drafter", title: "draft model", kind: "text", hidden: true },
  { name: "tau", title: "τ", kind: "number", digits: 2 },
  { name: "acceptance_rate", title: "acceptance", kind: "number", percent: true },
  { name: "speedup", title: "speed-up", kind: "number", digits: 2, of: (row) => row.speedup?.value ?? null },
  { name: "tokens_per_second", title: "tokens/s", kind: "number", digits: 1 },
  { name: "rounds", title: "rounds", kind: "number" },
  { name: "tokens", title: "tokens", kind: "number" },
  { name: "temperature", title: "temperature", kind: "number", hidden: true },
  { name: "max_new_tokens", title: "max. tokens", kind: "number", hidden: true },
  { name: "seed", title: "seed", kind: "text", hidden: true },
  { name: "device", title: "device", kind: "text", hidden: true },
  { name: "dtype", title: "number format", kind: "text", hidden: true },
  { name: "prompt", title: "prompt", kind: "text" },
  { name: "created", title: "date", kind: "text" },
  { name: "tags", title: "tags", kind: "text", of: tags },
  { name: "note", title: "note", kind: "text", hidden: true },
];
export const NUMBERS = COLUMNS.filter((column) => column.kind === "number");
/** Columns by which selected runs may be grouped; "name": each run is a group. */
export const GROUPED = ["method", "drafter", "tags", "temperature", "source", "name"];
const CONDITION = /^([^\s<>=!]+)(>=|<=|!=|=|>|<)(-?[\d.]+)$/;
const TESTS = {
  ">=": (a, b) => a >= b, "<=": (a, b) => a <= b, "!=": (a, b) => a !== b, "=": (a, b) => a === b, ">": (a, b) => a > b,
  "<": (a, b) => a < b,
};

/** Return the column with a name. */
export const column = (name) => COLUMNS.find((each) => each.name === name);

/** Return the value of a row in a column; null if it has none. @param {any} row  @param {Column} column */
export const value = (row, { name, of }) => (of ? of(row) : (row[name] ?? null));

/** Format a value of a row for the table. @param {any} row  @param {Column} column */
export function text(row, column) {
  const found = value(row, column);
  if (found === null || found === "") return "–";
  if (column.name === "created") return `${found}`.slice(0, 16).replace("T", " ");
  if (column.name === "speedup") {
    const { low, high, n } = row.speedup;
    return `${found.toFixed(2)}× ${low === null ? `(n = ${n})` : `[${low.toFixed(2)}–${high.toFixed(2)}]`}`;
  }
  if (column.percent) return `${Math.round(100 * found)} %`;
  return column.digits === undefined ? `${found}` : found.toFixed(column.digits);
}

/** Return whether a row matches a search: words in any text column, #tags, and conditions such as tau>=2. A condition
 *  on an unknown column matches nothing. @param {any} row  @param {string} query */
export function matches(row, query) {
  const texts = COLUMNS.filter((each) => each.kind === "text").map((each) => value(row, each) ?? "");
  const words = texts.join(" ").toLowerCase();
  return query.toLowerCase().split(/\s+/).filter(Boolean).every((part) => {
    const condition = CONDITION.exec(part);
    if (condition) {
      const of = NUMBERS.find((each) => each.name === condition[1] || each.title === condition[1]);
      const found = of && value(row, of);
      return (found ?? null) !== null && TESTS[condition[2]](found, Number(condition[3]));
    }
    return part.startsWith("#") && part.length > 1 ? row.tags.some((tag) => tag.toLowerCase() === part.slice(1)) : words.includes(part);
  });
}

/** Return the rows in the order of a column; rows without a value come last in both directions. Equal rows keep their
 *  order. @param {any[]} rows  @param {Column} column  @param {1|-1} direction */
export function sorted(rows, column, direction) {
  const compare = (a, b) => (column.kind === "number" ? a - b : `${a}`.localeCompare(`${b}`, "en", { numeric: true }));
  const isEmpty = (found) => found === null || found === "";
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a, column), value(b, column)];
    if (isEmpty(x) || isEmpty(y)) return Number(isEmpty(x)) - Number(isEmpty(y));
    return direction * compare(x, y);
  });
}

/** Group rows by a column, in order of appearance. @param {any[]} rows  @param {Column} column
 *  @returns {{name: string, rows: any[]}[]} */
export function groupsOf(rows, column) {
  const groups = new Map();
  for (const row of rows) groups.set(text(row, column), [...(groups.get(text(row, column)) ?? []), row]);
  return [...groups].map(([name, own]) => ({ name, rows: own }));
}

/** Return the two groups of a selection to compare, or why there are not two. Two selected runs are compared with each
 *  other, whatever they have in common. @param {any[]} rows  selected  @param {Column} column
 *  @returns {{first?: {name: string, rows: any[]}, second?: {name: string, rows: any[]}, why: string}} */
export function pair(rows, column) {
  const groups = rows.length === 2 ? groupsOf(rows, COLUMNS[0]) : groupsOf(rows, column);
  if (rows.length < 2) return { why: "Select two runs, or two groups of runs, to compare them." };
  const count = groups.length === 1 ? "one group" : `${groups.length} groups`;
  if (groups.length !== 2) return { why: `By ${column.title}, the selected runs form ${count}. Select runs of two groups.` };
  return { first: groups[0], second: groups[1], why: "" };
}

/** Describe the comparison of two groups, one line per figure, problem or note.
 *  @param {any} answer  of the server function `significance`  @param {string} first  @param {string} second */
export function comparisonLines({ problems, notes, prompts, figures }, first, second) {
  if (problems.length) return [`Not comparable. ${problems.join(" ")}`];
  const sample = (figure) => `n = ${figure.n}${figure.prompts !== undefined ? "" : figure.n === 1 ? " prompt" : " prompts"}`;
  const shared = prompts === 1 ? "one prompt" : `${prompts} prompts`;
  const lines = [`${first} compared with ${second}, on ${shared} that both ran.`];
  const { tau, acceptance_rate: rate, speed } = figures;
  const signed = (x, format) => `${x < 0 ? "−" : "+"}${format(Math.abs(x))}`;
  const difference = (title, figure, format) => {
    const range = figure.low === null ? "" : ` (${signed(figure.low, format)} to ${signed(figure.high, format)}, ${sample(figure)})`;
    return `${title}: ${signed(figure.value, format)}, ${figure.verdict}${range}.`;
  };
  if (tau) lines.push(difference("τ", tau, (x) => x.toFixed(2)));
  if (rate) lines.push(difference("Acceptance rate", rate, (x) => `${(100 * x).toFixed(1)} percentage points`));
  if (speed) {
    const range = speed.low === null ? "" : ` (${speed.low.toFixed(2)}–${speed.high.toFixed(2)}×, ${speed.basis})`;
    lines.push(`Speed: ${speed.value.toFixed(2)}×, ${speed.verdict}${range}.`);
  }
  return [...lines, ...notes];
}

/** Return rows as CSV (`exports.csv`): all columns, with the interval of the speed-up. @param {any[]} rows */
export function csv(rows) {
  const head = COLUMNS.flatMap(({ name }) => (name === "speedup" ? ["speedup", "speedup_low", "speedup_high", "speedup_n"] : [name]));
  const cells = (row) =>
    COLUMNS.flatMap((each) =>
      each.name === "speedup"
        ? ["value", "low", "high", "n"].map((part) => row.speedup?.[part])
        : [value(row, each)],
    );
  return exports.csv([head, ...rows.map(cells)]);
}
