/** Key figures, counted from rounds. Same denominators as `workbench/trace/metrics.py`; a test compares both. */

const sum = (values) => values.reduce((a, b) => a + b, 0);
const ratio = (part, whole) => (whole && part !== null ? part / whole : null);

/** Signals of rounds under an approximate rule: see `workbench/decoders/draft_verify/tree_record.py`. */
const ACCEPTANCE_GAIN = "acceptance gain (ΔA)",
  DISTRIBUTION_ERROR = "distribution error (TV)",
  ERROR_BOUND = `${DISTRIBUTION_ERROR}, at most`;

/** Signal of a round that a pace or a pause delayed: `metrics.DELAY`. */
const DELAY = "delay before the round (s)";

/** Names of these signals in traces of earlier versions. */
const EARLIER_NAMES = { [ACCEPTANCE_GAIN]: "acceptance bought (ΔA)", [DELAY]: "held back before it (s)" };

/** Return whether a round was verified by a rule that does not preserve the target's distribution. */
export const isApproximate = (round) =>
  [ACCEPTANCE_GAIN, EARLIER_NAMES[ACCEPTANCE_GAIN]].some((name) => name in (round.signals ?? {}));

const counted = new WeakMap();

/** Count a round's nodes. Recorded rounds do not change, so the counts are cached. */
export function count(round) {
  if (!counted.has(round)) {
    const status = round.nodes.status;
    counted.set(round, {
      drafted: status.length,
      tested: status.filter((s) => s !== "discarded").length,
      accepted: round.path.length,
      emitted: round.emitted.length,
    });
  }
  return counted.get(round);
}

/** Return the seconds from the end of prefill to the end of a round; time between rounds is included. */
const ending = (round) => (round ? (round.started_s ?? 0) + round.seconds : 0);

/** Return all figures of consecutive rounds by name; null where a denominator is zero.
 *  @param {object[]} rounds  of a run, from its first on unless `since` says otherwise
 *  @param {object|null} [since]  the round before them: seconds count from its end */
export function summary(rounds, since = null) {
  const counts = rounds.map(count);
  const total = (name) => sum(counts.map((c) => c[name]));
  const seconds = rounds.length ? ending(rounds.at(-1)) - ending(since) : 0;
  const overhead = Math.max(0, seconds - sum(rounds.map((r) => r.draft_s + r.verify_s + (r.waited_s ?? 0))));
  const tokens = total("emitted");
  return {
    tokens,
    rounds: rounds.length,
    drafted: total("drafted"),
    tested: total("tested"),
    accepted: total("accepted"),
    tau: ratio(tokens, rounds.length),
    acceptance_rate: ratio(total("accepted"), total("tested")),
    draft_utilisation: ratio(total("accepted"), total("drafted")),
    seconds,
    tokens_per_second: ratio(tokens, seconds),
    draft_seconds: sum(rounds.map((r) => r.draft_s)),
    verify_seconds: sum(rounds.map((r) => r.verify_s)),
    overhead_seconds: overhead,
    waited_seconds: sum(rounds.map((r) => r.waited_s ?? 0)),
    overhead_share: ratio(overhead, seconds),
    target_forwards: sum(rounds.map((r) => r.target_forwards)),
    delayed_rounds: rounds.filter((r) => valueOf(r, DELAY) > 0).length,
    acceptance_gain: ratio(signal(rounds, ACCEPTANCE_GAIN), rounds.length),
    distribution_error: ratio(signal(rounds, DISTRIBUTION_ERROR, ERROR_BOUND), tokens),
    bounded: rounds.filter((r) => has(r, ERROR_BOUND)).length,
    unpriced: rounds.filter((r) => has(r, ACCEPTANCE_GAIN) && ![DISTRIBUTION_ERROR, ERROR_BOUND].some((n) => has(r, n)))
      .length,
  };
}

/** Sum signals over rounds; null if no round has any of them. */
function signal(rounds, ...names) {
  const values = rounds.flatMap((r) => names.filter((name) => has(r, name)).map((name) => valueOf(r, name)));
  return values.length ? sum(values) : null;
}

/** Return the value of a signal, also under its earlier name. */
const valueOf = (round, name) => round.signals?.[name] ?? round.signals?.[EARLIER_NAMES[name]];

const has = (round, name) => typeof valueOf(round, name) === "number";

/** Return the acceptance rate after each round, over the last `window` rounds and over all so far; null without tested
 *  drafts.
 *  @returns {{index: number, windowed: number|null, cumulative: number|null}[]} */
export function acceptanceOverTime(rounds, window = 8) {
  const points = [];
  let tested = 0, accepted = 0, testedRecent = 0, acceptedRecent = 0;
  const counts = rounds.map(count);
  counts.forEach((c, i) => {
    tested += c.tested;
    accepted += c.accepted;
    testedRecent += c.tested - (counts[i - window]?.tested ?? 0);
    acceptedRecent += c.accepted - (counts[i - window]?.accepted ?? 0);
    points.push({ index: i, windowed: ratio(acceptedRecent, testedRecent), cumulative: ratio(accepted, tested) });
  });
  return points;
}

/** Return the tokens per second after each round, over the last `window` rounds and over all so far.
 *  @returns {{index: number, windowed: number|null, cumulative: number|null}[]} */
export function speedOverTime(rounds, window = 8) {
  let tokens = 0, tokensRecent = 0;
  return rounds.map((r, index) => {
    const old = rounds[index - window], seconds = ending(r);
    tokens += r.emitted.length;
    tokensRecent += r.emitted.length - (old?.emitted.length ?? 0);
    return { index, windowed: ratio(tokensRecent, seconds - ending(old)), cumulative: ratio(tokens, seconds) };
  });
}

/** Return per depth: rounds that tested a node there, rounds that accepted one, the quotient and its 95 % Wilson
 *  interval. */
export function acceptanceByDepth(rounds) {
  const tried = new Map(), kept = new Map();
  for (const { nodes } of rounds) {
    const at = { tried: new Set(), kept: new Set() };
    nodes.depth.forEach((d, i) => {
      if (nodes.status[i] !== "discarded") at.tried.add(d);
      if (nodes.status[i] === "accepted") at.kept.add(d);
    });
    for (const d of at.tried) tried.set(d, (tried.get(d) ?? 0) + 1);
    for (const d of at.kept) kept.set(d, (kept.get(d) ?? 0) + 1);
  }
  return [...tried.keys()].sort((a, b) => a - b).map((depth) => {
    const tested = tried.get(depth), accepted = kept.get(depth) ?? 0;
    return { depth, tested, accepted, rate: accepted / tested, ...wilson(accepted, tested) };
  });
}

/** Count rounds by number of accepted drafts, and those that ended with a bonus token. */
export function histogram(rounds) {
  const bars = [];
  for (const round of rounds) {
    const n = round.path.length;
    while (bars.length <= n) bars.push({ accepted: bars.length, rounds: 0, bonus: 0 });
    bars[n].rounds += 1;
    if (round.bonus_kind === "bonus") bars[n].bonus += 1;
  }
  return bars;
}

/** Return the first change during the run that invalidates the baseline, or null.
 *  @param {string[]} names  settings that plain decoding also has (the sampling settings) */
export function baselineBreak(rounds, names) {
  for (const r of rounds) {
    const found = r.changes.find((c) => names.includes(c.name));
    if (found) return { index: r.index, text: changeText(found) };
  }
  return null;
}

/** Colour slots of a run's methods, in the order of their first rounds: see `palette.json`. */
const SLOTS = ["a", "b", "c", "d"];

/** Return the ranges of consecutive rounds drafted by one method. Pure.
 *  @param {(method: string) => string} [title]  name of a method for readers
 *  @returns {{method: string, name: string, from: number, to: number, slot: string}[]} `to` is the last round; one
 *    method has one slot of colour wherever it comes back */
export function methodSegments(rounds, title = (method) => method) {
  const out = [], slots = new Map();
  rounds.forEach(({ method }, i) => {
    if (out.at(-1)?.method === method) return void (out.at(-1).to = i);
    if (!slots.has(method)) slots.set(method, SLOTS[slots.size % SLOTS.length]);
    out.push({ method, name: title(method), from: i, to: i, slot: slots.get(method) });
  });
  return out;
}

/** Return the figures of each segment; its seconds count from the end of the previous round. All segments add up to
 *  the figures of the whole run. Pure. */
export function segmentFigures(rounds, segments) {
  return segments.map((each) => ({
    ...each,
    figures: summary(rounds.slice(each.from, each.to + 1), rounds[each.from - 1]),
  }));
}

/** Return the setting changes as marks on a time axis: [{index, text}]. */
export function changeMarks(rounds) {
  return marks(rounds, changeTexts);
}

/** Return the marks without method changes, for charts with method bands. */
export function settingMarks(rounds) {
  return marks(rounds, (changes) => changeTexts(changes, false)).filter((mark) => mark.text !== "");
}

function marks(rounds, texts) {
  return rounds
    .filter((r) => r.changes.length > 0)
    .map((r) => ({ index: r.index, text: texts(r.changes).join(", ") }));
}

/** Describe changes. Parameters that come or go with a new method are left out. */
function changeTexts(changes, naming = true) {
  const method = changes.some((c) => c.name === "method"),
    said = method ? changes.filter((c) => c.name === "method" || (c.before !== null && c.after !== null)) : changes;
  return said.filter((c) => naming || c.name !== "method").map(changeText);
}

function changeText({ name, before, after }) {
  const show = (v) => (typeof v === "number" && !Number.isInteger(v) ? v.toFixed(2) : `${v ?? "–"}`);
  if (name === "pictures") return `images ${after}`; // "changed for the drafter only"
  return name === "method" ? `${show(before)} → ${show(after)}` : `${name} ${show(before)} → ${show(after)}`;
}

/** Return the 95 % Wilson score interval of k successes in n trials. */
export function wilson(k, n) {
  const z = 1.96, centre = (k + (z * z) / 2) / (n + z * z);
  const half = (z / (n + z * z)) * Math.sqrt((k * (n - k)) / n + (z * z) / 4);
  return { low: Math.max(0, centre - half), high: Math.min(1, centre + half) };
}
