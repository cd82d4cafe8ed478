/** Boards of the methods page: each method's promise with its evidence, and each paper's claim with the measurement
 *  made here. Both are generated; failures are shown as prominently as successes. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as combinations from "./combinations.js";
import * as find from "./find.js";

const SIGNS = {
  shown: "✓",
  broken: "✕",
  unproven: "?",
  "no promise": "–",
  "reproduced in size": "✓",
  "reproduced in direction": "↗",
  inconclusive: "≈",
  contradicted: "✕",
  "by construction": "=",
  "answers not kept": "⊘",
  "not measurable here": "–",
  "not measured yet": "?",
};
const three = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : v.toPrecision(3));

/** Format a goodness-of-fit test. Pure. */
export function testWords(test) {
  const distance = test.verdict === "measured" ? `, total variation ${test.total_variation.toFixed(3)}` : "";
  const lowest = test.tests > 1 ? `, the lowest p of ${test.tests} settings` : "";
  return `${test.name}: χ² ${test.statistic.toFixed(1)} (${test.freedom} degrees of freedom), p = ${test.p_value.toPrecision(2)}${lowest}, ${test.runs} runs${distance}`;
}

/** Format the paper's figure. Pure. */
export function paperFigure({ low, high, neutral }) {
  if (low === null || high === null) return `more than ${neutral}; the paper gives no number`;
  return low === high ? `${low}` : `${low}–${high}`;
}

/** Format the measured figure with its interval. Pure. */
export function hereFigure(measured) {
  if (!measured) return "–";
  const interval = ({ value, low, high }, more = "") => `${three(value)} (${three(low)}–${three(high)}${more})`;
  const answers = measured.answers ? `; share of right answers kept ${interval(measured.answers)}` : "";
  return interval(measured, `, n = ${measured.n}`) + answers;
}

/** Return the number of rows of each kind as text. Pure. */
export function tally(rows, key) {
  const counts = new Map();
  for (const row of rows) counts.set(row[key], (counts.get(row[key]) ?? 0) + 1);
  return [...counts].map(([word, n]) => `${n} ${word}`).join(", ");
}

/** Verdicts on claims in the order in which they are counted, as `workbench.bench.claims.VERDICTS` has them. */
export const VERDICTS = [
  "reproduced in size",
  "reproduced in direction",
  "inconclusive",
  "contradicted",
  "by construction",
  "answers not kept",
  "not measured yet",
  "not measurable here",
];

/** Count the rows per verdict for each target of the claims board: [target, counts]. Pure. */
export function countsOf(rows) {
  const targets = rows.length ? columns(rows[0]).map((column, i) => [i ? column.target : "bundled models", i]) : [];
  return targets.map(([target, i]) => [
    target,
    VERDICTS.map((verdict) => rows.filter((row) => columns(row)[i].verdict === verdict).length),
  ]);
}

/** Ids and titles of the boards, for the table of contents. */
export const PLACES = [
  ["combinations", "Combinations"],
  ["exactness", "Exactness"],
  ["claims", "Claims"],
];

/** Insert the boards before the definitions of the figures. @param {any} page  @param {HTMLElement} body */
export async function add(page, body) {
  const found = await page.boards;
  if (!found) return;
  const boards = [matrix(found.combinations), exactness(found.exactness), claims(found.claims)];
  boards.forEach((board) => body.insertBefore(board, body.querySelector("#figures")));
  for (const row of found.exactness) addStanding(body, row, h);
}

/** Show a method's standing on the exactness board next to the promise on its card. */
function addStanding(body, row, h) {
  const promise = [...body.querySelectorAll(".wb-method")]
    .find((x) => x.dataset.method === row.method)
    ?.querySelector(".wb-promised");
  promise?.after(" ", standingBadge(row.standing, h));
}

function standingBadge(word, h) {
  const badge = h("span", { className: "wb-standing" }, `${SIGNS[word] ?? ""} ${word}`);
  badge.dataset.standing = word;
  return badge;
}

function board(id, title, about, head, rows, before = []) {
  const scroll = h(
    "div",
    { className: "wb-scroll", tabIndex: 0 },
    h(
      "table",
      { className: "wb-board" },
      h("thead", {}, h("tr", {}, ...head.map((word) => h("th", { scope: "col" }, word)))),
      h("tbody", {}, ...rows),
    ),
  );
  // narrow screens stack the cells
  for (const row of rows) [...row.children].forEach((cell, i) => (cell.dataset.head = head[i]));
  kit.set(scroll, { role: "region", "aria-label": title });
  return find.fold({ id }, heading(title, about), [...before, scroll]);
}

const heading = (title, about) => [h("h2", {}, title), h("p", { className: "wb-about" }, about)];

function matrix(found) {
  const about =
    "Drafters by verifiers. Choose a cell to see the methods that combine the two, their policies and " +
    "tree builders, their promise, and the evidence of the exactness board. Combinations that would not preserve the target's distribution show the reason.";
  const parts = combinations.build(found, (word) => standingBadge(word, h));
  const section = find.fold({ id: "combinations" }, heading("Combinations of drafters and verifiers", about), parts);
  section.querySelector("details").open = true;
  return section;
}

function exactness(rows) {
  const cell = (...content) => h("td", {}, ...content);
  const line = (row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, row.title, h("small", {}, row.promise)),
      cell(standingBadge(row.standing, h)),
      cell(
        row.greedy ? `${row.greedy.equal} of ${row.greedy.tried} texts equal` : "–",
        row.greedy
          ? h(
              "small",
              {},
              `${row.greedy.prompts} prompts, also with extreme parameter values, on ${row.target}, ${row.greedy.families} model families`,
            )
          : "",
      ),
      cell(...(row.distributions.length ? row.distributions.map((test) => h("small", {}, testWords(test))) : [row.lacks || "–"])),
      cell(row.date ? `${row.date}, ${row.commit}` : "–", h("small", {}, h("code", {}, row.command))),
    );
  const about = `The promise of each method and its evidence: greedy text compared token for token with Hugging Face's generate in float64, sampled tokens with the target's exact joint distribution. ${tally(rows, "standing")}. A method without evidence is unproven.`;
  return board(
    "exactness",
    "Exactness board",
    about,
    ["method, promise", "standing", "greedy", "sampling", "date of the test, and command to reproduce it"],
    rows.map(line),
  );
}

/** Return the columns of a claim: the bundled models first, then other targets. Pure. */
export function columns(row) {
  return [row, ...row.elsewhere];
}

/** Return the lines under the verdict of a column: missing requirements, and the reason of a failure. Pure. */
export function columnLines(row, column) {
  const lacks = row.lacks ? `lacks ${row.lacks}` : column.lacking;
  return [lacks, column.why && `Why: ${column.why}`].filter(Boolean);
}

/** Return the lines that say how the figure of a column was measured. Pure. */
export function measuredLines(row, column) {
  const measured = column.date
    ? `${column.date}, ${column.commit}; ${column.machine}${row.timed ? `; system load ${column.load}` : ""}`
    : "";
  return [column.measured?.setting, measured].filter(Boolean);
}

function countsTable(rows) {
  const head = ["target", ...VERDICTS].map((word) => h("th", { scope: "col" }, word));
  const lines = countsOf(rows).map(([target, counts]) =>
    h("tr", {}, h("th", { scope: "row" }, target), ...counts.map((n) => h("td", {}, `${n}`))),
  );
  const table = h("table", { className: "wb-counts" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines));
  return h("div", { className: "wb-scroll" }, table);
}

function claims(rows) {
  const cell = (...content) => h("td", {}, ...content);
  const measured = (row) => (column) =>
    cell(
      standingBadge(column.verdict, h),
      column.measured ? h("div", {}, hereFigure(column.measured)) : "",
      ...columnLines(row, column).map((line) => h("small", {}, line)),
      column.measured
        ? h(
            "details",
            {},
            h("summary", {}, "How the board was measured"),
            ...measuredLines(row, column).map((line) => h("small", {}, line)),
          )
        : "",
    );
  const line = (row) => h("tr", {},
    h("th", { scope: "row" }, row.method, h("small", {}, row.quantity),
      row.by_construction ? h("small", {}, `By construction: ${row.by_construction}`) : ""),
    cell(paperFigure(row), h("small", {}, row.setting), h("small", {}, row.source)),
    ...columns(row).map(measured(row)),
    cell(h("code", {}, row.command), row.timed ? h("small", {}, "measures time: run it on an idle machine") : ""));
  const about =
    "Each paper's claim, compared with the measurement made here. The verdict is computed: reproduced in size if the value is at " +
    "most 25 % outside the paper's range, in direction if the whole 95 % interval lies on the paper's side of “no change”, contradicted if it " +
    "lies on the other side, inconclusive if it contains both. By construction: the value follows from the method, so it gets no " +
    "verdict. Answers not kept: an approximate rule loses more than 5 % of the right answers, so its gain gets no verdict.";
  const heads = rows.length ? rows[0].elsewhere.map((column) => `on ${column.target}`) : [];
  return board(
    "claims",
    "Claims board",
    about,
    ["method, quantity", "paper", "on the bundled models", ...heads, "command"],
    rows.map(line),
    [countsTable(rows)],
  );
}
