/** Roofline of a run: arithmetic per byte and rate of the target's passes, under the measured rates of the machine. The
 *  figures come from `workbench.bench.roofline`.
 *
 *  @typedef {{tokens: number, rounds: number, context: number, flops: number, n_bytes: number, seconds: number|null,
 *    intensity: number, limit: string, reached: number|null, roof: number}} Pass
 *  @typedef {{rates: {device: string, dtype: string, bytes_per_second: number, flops_per_second: number, ridge:
 *    number}, is_timed_here: boolean, plain: Pass, passes: Pass[]}} Roofline
 */

import * as kit from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as chart from "../shared/linechart.js";
import * as tables from "../shared/table.js";

const PREFIXES = ["", "k", "M", "G", "T", "P"];

// -- Pure ----------------------------------------------------------------------------------------------------------

/** Return a number with three digits and a unit with its prefix: "74.0 GFLOP/s". Pure. */
export function withUnit(value, unit) {
  const power = Math.max(0, Math.min(PREFIXES.length - 1, Math.floor(Math.log10(value || 1) / 3)));
  return `${Number((value / 1000 ** power).toPrecision(3))} ${PREFIXES[power]}${unit}`;
}

const intensity = (v) => `${Number(v.toPrecision(2))} FLOP/byte`;

/** Return the series of the chart; rates are logarithms to base 10. A pass without a time here lies on the roof. Pure.
 *  @param {Roofline} found  @param {number} from  @param {number} to  ends of the axis of intensity
 *  @returns {chart.Series[]} */
export function series({ rates, plain, passes }, from, to) {
  const roof = (x) => Math.log10(Math.min(rates.flops_per_second, x * rates.bytes_per_second));
  const point = (/** @type {Pass} */ p) => /** @type {chart.Point} */ ([p.intensity, Math.log10(p.reached ?? p.roof)]);
  return [
    { name: "roof", points: [from, rates.ridge, to].map((x) => [x, roof(x)]), colour: "ink", wide: 1.6 },
    {
      name: "target passes of this run",
      points: passes.filter((p) => p.tokens > 1).map(point),
      colour: "method-b",
      mark: "square",
      wide: 0,
    },
    { name: "plain pass, 1 token", points: [point(plain)], colour: "method-a", mark: "circle", wide: 0 },
  ];
}

/** Return a logarithmic axis over whole powers of ten around `values`; `scaled`: values are logarithms. Pure. */
export function powers(values, unit, scaled) {
  const logs = values.map((v) => (scaled ? v : Math.log10(v)));
  const low = Math.floor(Math.min(...logs)), high = Math.max(low + 1, Math.ceil(Math.max(...logs)));
  const of = (power) => (scaled ? power : 10 ** power);
  const text = (power) => (scaled ? withUnit(10 ** power, unit) : `${Number((10 ** power).toPrecision(1))}`);
  const ticks = Array.from({ length: high - low + 1 }, (_, i) => ({ at: of(low + i), text: text(low + i) }));
  return { from: of(low), to: of(high), ticks };
}

/** State in sentences whether memory or arithmetic limits the passes, and the rates that decide it. Pure.
 *  @param {Roofline} found */
export function words({ rates, is_timed_here: timed, plain, passes }) {
  const of = (limit) => passes.reduce((n, p) => n + (p.limit === limit ? p.rounds : 0), 0);
  const memory = of("memory"), all = memory + of("arithmetic");
  const both = memory === 0 || memory === all;
  const subject = all === 1 ? "The only target pass of this run is" : `All ${all} target passes of this run are`;
  const run = both
    ? `${subject} limited by ${memory ? "memory" : "arithmetic"}`
    : `${memory} of ${all} target passes of this run are limited by memory, ${all - memory} by arithmetic`;
  const sentences = [
    `${run}; a plain pass (1 token, ${intensity(plain.intensity)}) is limited by ${plain.limit}.`,
    `A large copy moves ${withUnit(rates.bytes_per_second, "B/s")} and a ${rates.dtype} matrix product reaches ${withUnit(rates.flops_per_second, "FLOP/s")} on this ${rates.device}, so the limit changes from memory to arithmetic at ${intensity(rates.ridge)}.`,
    "Every pass counts as a full forward pass of the target.",
  ];
  if (!timed) sentences.push("The run comes from a file, and its times may have been measured on another machine. So its passes are drawn on the roof, not at their measured speed.");
  else if ([plain, ...passes].some((p) => p.reached !== null && p.reached > p.roof))
    sentences.push("A pass can lie above the roof, because weights in the processor's caches are not read from memory.");
  return sentences.join(" ");
}

/** Return head and rows of the table. Pure. @param {Roofline} found */
export function table({ plain, passes }) {
  const rows = passes.some((p) => p.tokens === 1) ? passes : [plain, ...passes];
  return {
    head: ["tokens", "passes", "context", "FLOP", "bytes", "FLOP/byte", "limit", "median ms", "reached", "roof"],
    rows: rows.map((p) => [
      p.tokens,
      p.rounds || "computed",
      p.context,
      withUnit(p.flops, "FLOP"),
      withUnit(p.n_bytes, "B"),
      p.intensity.toFixed(2),
      p.limit,
      p.reached === null || p.seconds === null ? "–" : (1e3 * p.seconds).toFixed(2),
      p.reached === null ? "–" : withUnit(p.reached, "FLOP/s"),
      withUnit(p.roof, "FLOP/s"),
    ]),
  };
}

// -- Elements ------------------------------------------------------------------------------------------------------

/** Return the card. @param {any} build  of `frame.builder` */
export function build({ part, chart: charted }) {
  const legend = panel.legend([["wb-key-roof", "roof"], ["wb-key-passes", "target passes of this run"], ["wb-key-plainpass", "plain pass, 1 token"]]);
  const card = charted("roofline", "Roofline of the target's passes", legend, "wb-chart wb-roofline");
  card.append(part("rooflineWords", "p", { className: "wb-summary" }));
  card.insertBefore(part("rooflineUp", "p", { className: "wb-axisname" }, "FLOP/s, logarithmic"), card.children[1]);
  return card;
}

/** Draw the roofline, or the reason why there is none.
 *  @param {any} parts  @param {Roofline & {reason?: string}} found */
export function render(parts, found) {
  const tabled = !parts.rooflineTable.hidden, none = Boolean(found.reason);
  parts.rooflineUp.hidden = parts.roofline.hidden = tabled || none;
  parts.rooflineCard.querySelector(".wb-legend").hidden = none;
  kit.write(parts.rooflineWords, none ? `No roofline: ${found.reason}` : words(found));
  if (none) return void tables.render(parts.rooflineTable, { head: [], rows: [] });
  if (tabled) {
    kit.write(parts.rooflineTable.firstChild, words(found));
    return void tables.render(parts.rooflineTable, table(found));
  }
  const { rates, plain, passes } = found;
  const x = powers([plain, ...passes].map((p) => p.intensity).concat(rates.ridge / 2, 2 * rates.ridge), "", false);
  const lines = series(found, x.from, x.to);
  const rated = lines.flatMap((one) => one.points.map(([, y]) => y)).filter((y) => y !== null);
  chart.render(parts.roofline, {
    series: lines,
    x: { ...x, place: Math.log10, title: "FLOP per byte moved, logarithmic", words: intensity },
    y: { ...powers(rated, "FLOP/s", true), words: (v) => withUnit(10 ** v, "FLOP/s") },
    verticals: [{ at: rates.ridge, text: intensity(rates.ridge), colour: "overhead" }],
    summary: words(found),
  });
}
