/** Curves of a training run, for charts and in words. Pure: plain data in, plain data out. */

import * as chart from "../shared/linechart.js";

const POLICY = "on-policy/position ", FORCED = "teacher-forced/position ", TESTED = "on-policy tested/position ", LOSS = "loss/";
export const TAU = "on-policy/tau";
export const SPEEDUP = "on-policy/speed-up";
/** Rounds that a position needs before its acceptance rate is drawn: a single round gives 0 or 1. */
export const ENOUGH = 5;
/** Rounds from which on an acceptance rate is known to a few percent. */
const MANY = 100;
const percent = (v) => `${(100 * v).toFixed(0)} %`;

/** @typedef {[number, number][]} Points  step and value
 *  @typedef {Record<string, Points>} Curves  by TensorBoard's tag
 *  @typedef {{name: string, points: Points, style: number, dashed?: boolean, end?: string}} Series */

/** Return the last value of a curve; null if there is none. @param {Points|undefined} points */
export const last = (points) => points?.at(-1)?.[1] ?? null;

/** Return the draft positions that have a curve, ascending. @param {Curves} curves */
export function positions(curves, group = POLICY) {
  return Object.keys(curves)
    .filter((tag) => tag.startsWith(group))
    .map((tag) => Number(tag.slice(group.length)))
    .sort((a, b) => a - b);
}

/** Return the acceptance rate on policy at a position, at checkpoints with at least `ENOUGH` rounds. @param {Curves}
 *  curves
 *  @param {number} n @returns {Points} */
function accepted(curves, n) {
  const tested = new Map(curves[`${TESTED}${n}`] ?? []);
  return curves[`${POLICY}${n}`].filter(([step]) => (tested.get(step) ?? ENOUGH) >= ENOUGH);
}

/** Return the acceptance rates at each position of a draft, on policy. @param {Curves} curves @returns {Series[]} */
export function byPosition(curves) {
  return positions(curves)
    .map((n) => ({ name: `position ${n}`, points: accepted(curves, n), style: n - 1, end: `${n}` }))
    .filter((one) => one.points.length);
}

/** Return teacher-forced and on-policy acceptance, at the first position and at the last that both have. @param
 *  {Curves} curves
 *  @returns {Series[]} */
export function forcedAndOnPolicy(curves) {
  const both = positions(curves).filter((n) => curves[`${FORCED}${n}`] && accepted(curves, n).length),
    shown = [...new Set([both[0], both.at(-1)])].filter((n) => n !== undefined);
  return shown.flatMap((n, i) => [
    { name: `teacher-forced, position ${n}`, points: curves[`${FORCED}${n}`], style: i, dashed: true, end: `${n} forced` },
    { name: `on policy, position ${n}`, points: accepted(curves, n), style: i, end: `${n} on policy` },
  ]);
}

/** Explain why a good teacher-forced accuracy can give bad drafts, with this run's figures; empty before both are
 *  measured.
 *  @param {Curves} curves */
export function explainDifference(curves) {
  const forced = last(curves[`${FORCED}1`]), policy = last(curves[`${POLICY}1`]);
  if (forced === null || policy === null) return "";
  const n = last(curves[`${TESTED}1`]);
  const rounds = n === null ? "" : ` (${n} rounds)`;
  const few = n !== null && n < MANY ? " With so few rounds the estimate is uncertain." : "";
  return (
    `After true text the head predicts the target's most likely token at ${percent(forced)} of all positions; ` +
    `on policy, ${percent(policy)} of its drafts are accepted at position 1${rounds}. ` +
    `${differenceReason(forced, policy)}${few} From position 2 on, the head's input is its own drafts, so one error affects all later positions. ` +
    "The loss does not show this effect; only the acceptance rate on policy does."
  );
}

/** Explain the difference at position 1. */
function differenceReason(forced, policy) {
  if (policy < forced - 0.03)
    return "The two rates differ because a draft starts where the previous one ended, mostly at a token that the head got wrong, so hard positions are more frequent.";
  if (policy > forced + 0.03)
    return "The head is right more often on policy: the prompts of that evaluation are easier than the held-out text, or the difference is random.";
  return "The two rates agree here, although a draft starts where the previous one ended, mostly at a token that the head got wrong.";
}

/** Return the losses of a run, one curve per head or draft step. @param {Curves} curves @returns {Series[]} */
export function losses(curves) {
  return Object.keys(curves)
    .filter((tag) => tag.startsWith(LOSS))
    .map((tag, i) => ({ name: tag.slice(LOSS.length), points: curves[tag], style: i, end: tag.slice(LOSS.length) }));
}

/** Return the same curve of several runs. @param {{id: string, head: string, target: string}[]} runs  newest first
 *  @param {Record<string, Curves>} curves  by run  @param {string} tag  `TAU` or `SPEEDUP` @returns {Series[]} */
export function seriesOfRuns(runs, curves, tag) {
  return runs
    .filter((run) => curves[run.id]?.[tag])
    .map((run, i) => ({ name: title(run), points: curves[run.id][tag], style: i, end: title(run) }));
}

/** Return a short name of a run: its head, and the end of its id. */
export const title = (run) => `${run.head} ${run.id.slice(-4)}`;

/** Return the lines and axes of a chart. Teacher-forced lines are dashed; a mark is hollow when its colour repeats, or
 *  when the line has a solid counterpart.
 *  @param {Series[]} series  @param {{top?: number|null, from?: number, digits: number}} options  `top` and `from`:
 *    ends of the vertical axis */
export function chartOf(series, { top = null, from = 0, digits }) {
  const points = series.flatMap((s) => s.points), steps = points.map(([step]) => step);
  const values = points.map(([, v]) => v);
  const end = Math.max(1, ...steps), start = Math.min(end - 1, ...steps);
  const ticks = [
    { at: start, text: `step ${start}`, anchor: "start" },
    { at: end, text: `${end}`, anchor: "end" },
  ];
  const lines = series.map(({ style, dashed = false, ...rest }) => {
    const { colour, mark, hollow } = chart.look(style);
    return { ...rest, colour, mark, hollow: dashed !== hollow, dash: dashed ? "6 4" : "", wide: dashed ? 1.6 : 2 };
  });
  return {
    series: lines,
    x: { from: start, to: end, ticks: steps.length ? ticks : [], words: (step) => `step ${step}` },
    y: chart.levels(chart.quarters(values, top, from), digits),
  };
}

/** Return a chart as a table: one row per step, one column per curve. @param {Series[]} series */
export function table(series, digits = 3) {
  const steps = [...new Set(series.flatMap((s) => s.points.map(([step]) => step)))].sort((a, b) => a - b),
    at = series.map((s) => new Map(s.points));
  return {
    head: ["step", ...series.map((s) => s.name)],
    rows: steps.map((step) => [step, ...at.map((points) => points.get(step)?.toFixed(digits) ?? "–")]),
  };
}

/** Describe a chart in one sentence. @param {string} what  @param {Series[]} series */
export function summary(what, series, digits = 2) {
  const ranges = series.filter((s) => s.points.length).map((s) => `${s.name} ${s.points[0][1].toFixed(digits)} to ${last(s.points)?.toFixed(digits)}`);
  return ranges.length ? `${what}: ${ranges.join("; ")}` : `${what}: not measured yet`;
}
