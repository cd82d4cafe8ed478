/** The section "For researchers": calibration of the draft probability, acceptance by entropy and by kind of token, and
 *  the roofline (`roofline.js`). The figures come from `workbench.trace.acceptance_statistics` and
 *  `workbench.bench.roofline` through the host; they are computed while the section is open and no run is in progress.
 *
 *  @typedef {{group: string, tested: number, accepted: number, rate: number|null, low: number|null, high: number|null}}
 *    Count
 *  @typedef {Count & {start: number, end: number, drafted: number, mean_q: number|null, mean_p: number|null}} Bin
 *  @typedef {{calibration: Bin[], calibration_error: number|null, drafted: number, without_q: number,
 *    by_entropy: Count[], without_entropy: number, by_kind: Count[],
 *    roofline: any}} Statistics
 */

import * as alerts from "../shared/alerts.js";
import * as bars from "../shared/bars.js";
import * as axis from "../shared/axis.js";
import * as chart from "../shared/linechart.js";
import * as exports from "../shared/exports.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as preferences from "../shared/preferences.js";
import * as roofline from "./roofline.js";
import * as store from "../shared/store.js";
import * as tables from "../shared/table.js";

/** Name of the preference: whether the section is unfolded. */
export const OPEN = "wb-research";

const two = (v) => (v === null ? "–" : v.toFixed(2));
const tokens = (n) => `${n} drafted token${n === 1 ? "" : "s"}`;
const sum = (rows, key) => rows.reduce((total, row) => total + row[key], 0);

// -- Pure ----------------------------------------------------------------------------------------------------------

/** Return the lines of the calibration chart, at each bin's mean q. Pure. @param {Bin[]} bins
 *  @returns {chart.Series[]} */
export function calibrationSeries(bins) {
  const filled = bins.filter((bin) => bin.drafted);
  return [
    { name: "mean p = q", points: [[0, 0], [1, 1]], colour: "ink", dash: "2 3", wide: 1.3 },
    { name: "mean p", points: filled.map((bin) => [bin.mean_q, bin.mean_p]), colour: "method-a", mark: "circle" },
    {
      name: "acceptance rate",
      points: filled.filter((bin) => bin.tested).map((bin) => [bin.mean_q, bin.rate, bin.low, bin.high]),
      colour: "method-b",
      mark: "square",
      wide: 0,
    },
  ];
}

/** Describe the calibration in one or two sentences, or the reason why there is none. Pure. @param {Statistics} found
 *  */
export function calibrationWords({ drafted, without_q, calibration_error: error }) {
  if (!drafted) return "This run drafted no tokens.";
  if (without_q === drafted)
    return `The drafter is deterministic and gives no draft probability q (${tokens(drafted)}), so there is no calibration.`;
  const left = without_q ? ` ${tokens(without_q)} without a q ${without_q === 1 ? "is" : "are"} left out.` : "";
  return `Mean distance |mean p − mean q| over the bins, weighted by drafted tokens: ${two(error)} (${tokens(drafted - without_q)}).${left}`;
}

/** State the distribution of the entropy, and tests without one. Pure. @param {Statistics} found */
export function entropyWords({ by_entropy, without_entropy: missing }) {
  const tested = sum(by_entropy, "tested");
  if (!tested) return missing ? "This trace has no entropies." : "No drafted tokens were tested.";
  const left = missing ? ` ${missing} tested token${missing === 1 ? "" : "s"} without a recorded entropy ${missing === 1 ? "is" : "are"} left out.` : "";
  return `Entropy of the target's distribution at the drafted token's position, in nats.${left}`;
}

/** Return the cells of a row of acceptance. Pure. @param {Count} row */
export function cells({ group, tested, accepted, rate, low, high }) {
  return [group, `${accepted} / ${tested}`, two(rate), tested ? `${two(low)} – ${two(high)}` : "–"];
}

/** Return head and rows of the calibration's table. Pure. @param {Bin[]} bins */
export function calibrationTable(bins) {
  return {
    head: ["q", "drafted", "mean q", "mean p", "accepted / tested", "acceptance rate", "95 % interval"],
    rows: bins.map((bin) => [bin.group, bin.drafted, two(bin.mean_q), two(bin.mean_p), ...cells(bin).slice(1)]),
  };
}

/** Return all tables as CSV (`exports.csv`). Pure. @param {Statistics} found */
export function csv({ calibration, by_entropy, by_kind }) {
  const columns = ["group", "drafted", "mean_q", "mean_p", "tested", "accepted", "rate", "low", "high"];
  const named = { "draft probability q": calibration, "target entropy (nats)": by_entropy, "kind of token": by_kind };
  const lines = Object.entries(named).flatMap(([table, rows]) =>
    rows.map((row) => [table, ...columns.map((name) => row[name])]),
  );
  return exports.csv([["table", ...columns], ...lines]);
}

/** Return what the section shows: "hidden", "none" (no run), "running" (a run or a baseline is in progress, which the
 *  computation would slow) or "ready". Pure. */
export function stateOf({ run, plain = null, pairs = null, feeding, host }) {
  if (!host.call) return "hidden";
  if (!run?.header || !store.visible(run).length) return store.isActive(run) ? "running" : "none";
  return store.isActive(run) || store.isActive(plain) || feeding || pairs?.channel ? "running" : "ready";
}

// -- Elements ------------------------------------------------------------------------------------------------------

/** Return the section, folded as the reader left it. @param {any} build  of `frame.builder` */
export function build({ parts, part, card, chart: charted, tool }) {
  const strips = (name, title) =>
    card(name, title, null, part(`${name}Rows`, "table", { className: "wb-strips" }), part(`${name}Words`, "p", { className: "wb-summary" }));
  const calibration = charted(
    "calibration",
    "Calibration of the draft probability",
    panel.legend([["wb-key-meanp", "mean p"], ["wb-key-acceptance", "acceptance rate, 95 % interval"], ["wb-key-diagonal", "mean p = q"]]),
    "wb-chart wb-calibration",
  );
  calibration.insertBefore(part("calibrationUp", "p", { className: "wb-axisname" }, "mean p, acceptance rate"), parts.calibration);
  calibration.append(
    part("calibrationCounts", "div", { className: "wb-chart is-lowest is-parts wb-calibrationcounts" }),
    part("calibrationWords", "p", { className: "wb-summary" }),
  );
  const section = part(
    "research",
    "details",
    { className: "wb-research", open: preferences.isOn(OPEN, false) },
    h("summary", {}, "For researchers"),
    h(
      "div",
      { className: "wb-researchhead" },
      part("researchStatus", "p", { className: "wb-summary" }),
      tool("researchNow", "Compute now", "Compute the statistics of the rounds so far"),
      tool("researchCsv", "CSV", "Save all tables of this section as a CSV file"),
    ),
    part(
      "researchBody",
      "div",
      { className: "wb-researchgrid", hidden: true },
      calibration,
      h("div", {}, strips("byEntropy", "Acceptance rate by entropy"), strips("byKind", "Acceptance rate by kind of token")),
      roofline.build({ part, chart: charted }),
    ),
  );
  parts.researchStatus.setAttribute("role", "status");
  return section;
}

/** Connect the section with its page. */
export function listen(page) {
  const { parts } = page;
  page.research = { run: null, rounds: 0, plain: 0, partial: false, found: null, error: "", request: 0, now: false };
  parts.research.addEventListener("toggle", () => {
    preferences.set(OPEN, parts.research.open);
    page.draw();
  });
  parts.researchNow.addEventListener("click", () => {
    page.research.now = true;
    page.draw();
  });
  parts.researchCsv.addEventListener("click", () => {
    const { found, run } = page.research;
    exports.save(exports.fileName(run.header, "csv", "statistics"), csv(found), "text/csv");
  });
}

/** Draw the section; ask for the statistics if they are due. A new run discards the pending answer. */
export function update(page) {
  const { parts, run, research: own } = page, state = stateOf(page);
  parts.research.hidden = state === "hidden";
  if (own.run !== run) Object.assign(own, { run, rounds: 0, found: null, error: "", request: own.request + 1, now: false });
  if (state === "hidden" || !parts.research.open) return;
  const n = run ? store.visible(run).length : 0, plain = page.view?.plainRounds?.length ?? 0;
  const partial = state === "running", due = own.rounds !== n || own.plain !== plain || own.partial;
  if (n && (partial ? own.now : due)) compute(page, { rounds: n, plain, partial });
  parts.researchNow.hidden = state !== "running" || !n;
  parts.researchCsv.hidden = !own.found;
  parts.researchBody.hidden = !own.found;
  kit.write(parts.researchStatus, own.error || statusWords(state, own));
  if (own.found) draw(parts, own.found);
}

/** Describe the state in a sentence. Pure. @param {string} state  of `stateOf`
 *  @param {{found: object|null, rounds: number}} own */
export function statusWords(state, { found, rounds }) {
  if (state === "none") return "No run yet. Start one, or open a trace.";
  if (state === "running" && !found) return "The statistics are computed when all runs have ended.";
  if (!found) return "Computing …";
  const first = state === "running" ? `The first ${rounds} rounds of this run` : "This run";
  return `${first}. The intervals treat the tests of drafted tokens as independent, and say nothing about other prompts.`;
}

/** Ask for the statistics. Those of a `partial` run have no roofline, whose measurement would slow the run. */
async function compute(page, { rounds, plain, partial }) {
  const own = page.research, request = (own.request += 1);
  Object.assign(own, { rounds, plain, partial, now: false });
  const answer = await alerts.call(page.host, "research", {
    trace: store.toTrace(page.run),
    plain: plain ? store.toTrace(page.plain) : null,
    live: page.run.from === "live",
    rates: !partial,
  });
  if (own.request !== request) return; // a new run has begun
  if (answer.error) own.error = `${answer.error.message} ${answer.error.remedy ?? ""}`;
  else Object.assign(own, { found: answer, error: "" });
  page.draw();
}

/** Draw the tables and charts of a run. @param {any} parts  @param {Statistics} found */
function draw(parts, found) {
  const words = calibrationWords(found), bins = found.calibration, drawn = found.drafted > found.without_q;
  const summary = drawn
    ? `Mean target probability by draft probability: ${bins.filter((b) => b.drafted).map((b) => `q ${two(b.mean_q)}: p ${two(b.mean_p)}, accepted ${b.accepted} of ${b.tested}`).join("; ")}. ${words}`
    : words;
  const tabled = !parts.calibrationTable.hidden;
  for (const name of ["calibrationUp", "calibration", "calibrationCounts"]) parts[name].hidden = tabled || !drawn;
  kit.write(parts.calibrationWords, words);
  parts.calibrationCard.querySelector(".wb-legend").hidden = !drawn;
  parts.researchBody.classList.toggle("is-without-q", !drawn);
  if (tabled) {
    kit.write(parts.calibrationTable.firstChild, summary);
    tables.render(parts.calibrationTable, calibrationTable(bins));
  } else if (drawn) drawCalibration(parts, bins, summary);
  roofline.render(parts, found.roofline);
  strip(parts, "byEntropy", "nats", found.by_entropy, entropyWords(found));
  strip(parts, "byKind", "kind", found.by_kind, found.by_kind.length ? "Acceptance rate by kind of the drafted token; the counts of all rows add up to the whole run." : "No drafted tokens were tested.");
}

function drawCalibration(parts, bins, summary) {
  const quarters = [0, 0.25, 0.5, 0.75, 1];
  chart.render(parts.calibration, {
    series: calibrationSeries(bins),
    x: {
      from: 0,
      to: 1,
      ticks: quarters.map((at) => ({ at, text: at.toFixed(2) })),
      title: "draft probability q (mean of each bin)",
      words: (q) => `q ${two(q)}`,
    },
    y: chart.levels(quarters, 2, two),
    summary,
  });
  const most = Math.max(1, ...bins.map((bin) => bin.drafted));
  bars.render(parts.calibrationCounts, {
    bars: bins.map((bin) => ({ label: bin.start.toFixed(1), value: bin.drafted, text: `${bin.tested}`, part: bin.tested })),
    max: most,
    ticks: axis.countTicks(most),
    digits: 0,
    axis: "q from",
    up: "number of drafted tokens per bin (coloured part: tested)",
    summary: `Drafted tokens per bin: ${bins.map((bin) => `${bin.group}: ${bin.drafted}, ${bin.tested} tested`).join("; ")}`,
  });
}

/** Draw rows of acceptance as a table with a strip: the interval, and a mark at the rate. */
function strip(parts, name, unit, rows, words) {
  const table = parts[`${name}Rows`];
  table.hidden = !rows.some((row) => row.tested);
  kit.write(parts[`${name}Words`], words);
  const head = table.tHead ?? table.createTHead().insertRow().closest("thead");
  const titles = [unit, "accepted / tested", "rate", "95 % interval", "0 – 1"];
  kit.resize(head.rows[0], titles.length, () => h("th", { scope: "col" }));
  titles.forEach((text, i) => kit.write(head.rows[0].children[i], text));
  const body = table.tBodies[0] ?? table.createTBody();
  kit.resize(body, rows.length, () =>
    h("tr", {}, h("th", { scope: "row" }), h("td"), h("td"), h("td"), h("td", {}, h("span", { className: "wb-strip" }, h("i"), h("b")))),
  );
  rows.forEach((row, i) => {
    const tr = body.rows[i], [span, mark] = tr.lastChild.firstChild.children;
    cells(row).forEach((text, k) => kit.write(tr.children[k], text));
    tr.lastChild.firstChild.hidden = !row.tested;
    tr.lastChild.setAttribute("aria-hidden", "true");
    if (!row.tested) return;
    Object.assign(span.style, { left: `${100 * row.low}%`, width: `${100 * (row.high - row.low)}%` });
    mark.style.left = `${100 * row.rate}%`;
  });
}
