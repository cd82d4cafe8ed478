/** What the curves of a run say, for the charts and in words. Pure: plain data in, plain data out. */

const POLICY = "on-policy/position ", FORCED = "teacher-forced/position ", TESTED = "on-policy tested/position ", LOSS = "loss/";
export const TAU = "on-policy/tau";
export const SPEEDUP = "on-policy/speed-up";
/** Rounds that must have come to a position before what they say is drawn: one alone says 0 or 1. */
export const ENOUGH = 5;
/** Rounds from which on a share is known to a few in a hundred. */
const MANY = 100;
const percent = (v) => `${(100 * v).toFixed(0)} %`;

/** @typedef {[number, number][]} Points  step and value
 *  @typedef {Record<string, Points>} Curves  by TensorBoard's tag
 *  @typedef {{name: string, points: Points, style: number, dashed?: boolean, end?: string}} Series */

/** The last value of a curve; null where there is none. @param {Points|undefined} points */
export const last = (points) => points?.at(-1)?.[1] ?? null;

/** Positions of a draft of which a curve is there, rising. @param {Curves} curves */
export function positions(curves, group = POLICY) {
  return Object.keys(curves)
    .filter((tag) => tag.startsWith(group))
    .map((tag) => Number(tag.slice(group.length)))
    .sort((a, b) => a - b);
}

/** Acceptance at a position on policy, at the checkpoints at which `ENOUGH` rounds came to it. @param {Curves} curves
 *  @param {number} n @returns {Points} */
function accepted(curves, n) {
  const tested = new Map(curves[`${TESTED}${n}`] ?? []);
  return curves[`${POLICY}${n}`].filter(([step]) => (tested.get(step) ?? ENOUGH) >= ENOUGH);
}

/** Acceptance at each position of a draft, on policy. @param {Curves} curves @returns {Series[]} */
export function byPosition(curves) {
  return positions(curves)
    .map((n) => ({ name: `position ${n}`, points: accepted(curves, n), style: n - 1, end: `${n}` }))
    .filter((one) => one.points.length);
}

/** Teacher-forced beside on policy, at the first position and at the last that both have. @param {Curves} curves
 *  @returns {Series[]} */
export function beside(curves) {
  const both = positions(curves).filter((n) => curves[`${FORCED}${n}`] && accepted(curves, n).length),
    shown = [...new Set([both[0], both.at(-1)])].filter((n) => n !== undefined);
  return shown.flatMap((n, i) => [
    { name: `teacher-forced, position ${n}`, points: curves[`${FORCED}${n}`], style: i, dashed: true, end: `${n} forced` },
    { name: `on policy, position ${n}`, points: accepted(curves, n), style: i, end: `${n} on policy` },
  ]);
}

/** Why good figures on given text may be bad drafts, with this run's own; empty before both were measured.
 *  @param {Curves} curves */
export function parting(curves) {
  const forced = last(curves[`${FORCED}1`]), policy = last(curves[`${POLICY}1`]);
  if (forced === null || policy === null) return "";
  const n = last(curves[`${TESTED}1`]);
  const few = n !== null && n < MANY ? " So few rounds leave much to chance." : "";
  return (
    `Behind true text the head names the target's likeliest token at ${percent(forced)} of all places; ` +
    `of its drafts ${percent(policy)} are accepted at position 1${n === null ? "" : ` (${n} rounds)`}. ` +
    `${because(forced, policy)}${few} From position 2 on it reads its own guesses, of which one slip spoils the rest. ` +
    "No loss tells that: only acceptance on policy says what a head is worth."
  );
}

/** Why the two differ at position 1, as far as they do. */
function because(forced, policy) {
  if (policy < forced - 0.03)
    return "They part because a draft begins where the one before it ended, mostly at a token that the head had wrong: hard places are met more often than easy ones.";
  if (policy > forced + 0.03)
    return "On policy it is right more often: the prompts that it drafts for are easier than the held-out places, or it is chance.";
  return "There they agree, though a draft begins where the one before it ended, mostly at a token that the head had wrong.";
}

/** The losses of a run: of heads or steps of a draft, each its own. @param {Curves} curves @returns {Series[]} */
export function losses(curves) {
  return Object.keys(curves)
    .filter((tag) => tag.startsWith(LOSS))
    .map((tag, i) => ({ name: tag.slice(LOSS.length), points: curves[tag], style: i, end: tag.slice(LOSS.length) }));
}

/** One curve of several runs. @param {{id: string, head: string, target: string}[]} runs  newest first
 *  @param {Record<string, Curves>} curves  by run  @param {string} tag  `TAU` or `SPEEDUP` @returns {Series[]} */
export function ofRuns(runs, curves, tag) {
  return runs
    .filter((run) => curves[run.id]?.[tag])
    .map((run, i) => ({ name: title(run), points: curves[run.id][tag], style: i, end: title(run) }));
}

/** A run in a few words: its head, and the end of its id, which tells two of a kind apart. */
export const title = (run) => `${run.head} ${run.id.slice(-4)}`;

/** A chart as a table: a row a step, a column a curve. @param {Series[]} series */
export function table(series, digits = 3) {
  const steps = [...new Set(series.flatMap((s) => s.points.map(([step]) => step)))].sort((a, b) => a - b),
    at = series.map((s) => new Map(s.points));
  return {
    head: ["step", ...series.map((s) => s.name)],
    rows: steps.map((step) => [step, ...at.map((points) => points.get(step)?.toFixed(digits) ?? "–")]),
  };
}

/** A chart in a sentence, for those who do not see it. @param {string} what  @param {Series[]} series */
export function summary(what, series, digits = 2) {
  const said = series.filter((s) => s.points.length).map((s) => `${s.name} ${s.points[0][1].toFixed(digits)} to ${last(s.points)?.toFixed(digits)}`);
  return said.length ? `${what}: ${said.join("; ")}` : `${what}: nothing was measured yet`;
}
