/** Store of a run's rounds by index, in whatever order they arrive; reports missing rounds. No DOM. */

const TERMINAL = new Set(["finished", "cancelled", "error"]);

/** Footer reasons of a run that was stopped: see `workbench.trace.events.ABORT_REASONS`. */
const STOPPED = new Set(["cancelled", "lease", "limit", "memory"]);

/** Return an empty record of a run. `channel` is its name until the backend answers with an id; `from` is the origin of
 *  its numbers ("live", "recorded", "imported"), `origin` the run it branched from. */
export function newRun(channel) {
  return {
    channel,
    id: null,
    state: "starting",
    message: "",
    header: null,
    rounds: [],
    seq: 0,
    footer: null,
    warnings: [],
    error: null,
    queue: null,
    loading: null,
    pace: 0,
    origin: null,
    from: "live",
  };
}

/** Apply a message to the record.
 *  @param {object} run record from `newRun`, changed in place
 *  @param {{run?: string, state?: string, message?: string, seq?: number, header?: object, rounds?: object[],
 *           footer?: object, warnings?: string[], error?: {message: string, remedy: string}}} message  what `Run.since`
 *           returned
 *  @returns {number|null} index of the first round that is missing, or null when none is */
export function apply(run, message) {
  if (message.run) run.id = message.run;
  // A late answer must not reactivate an ended run.
  if (message.state && !(isOver(run) && !TERMINAL.has(message.state))) {
    run.state = message.state;
    run.message = message.message ?? "";
  }
  for (const name of ["queue", "loading", "pace"]) if (name in message) run[name] = message[name];
  if (message.header) run.header = message.header;
  if (message.warnings) run.warnings = message.warnings;
  if (message.footer) run.footer = message.footer;
  if (message.error) {
    run.error = message.error;
    run.state = "error";
  }
  for (const round of message.rounds ?? []) {
    if (run.rounds[round.index] === undefined) run.rounds[round.index] = named(round);
  }
  run.seq = Math.max(run.seq, message.seq ?? 0, run.rounds.length);
  const have = complete(run);
  return have < run.seq ? have : null;
}

/** Rename the bonus of a round without a draft to "plain": traces of earlier versions called it bonus. */
function named(round) {
  if (round.bonus_kind !== "bonus" || round.nodes.status.length) return round;
  return {
    ...round,
    bonus_kind: "plain",
    emitted: round.emitted.map((e) => (e.kind === "bonus" ? { ...e, kind: "plain" } : e)),
  };
}

/** Return a record of a finished trace. `notes` are added to its warnings. */
export function fromTrace(channel, { header, rounds, footer, attribution = null }, from, notes = []) {
  const run = { ...newRun(channel), from, attribution };
  const ended = footer?.reason === "error" ? "error" : STOPPED.has(footer?.reason) ? "cancelled" : "finished";
  apply(run, {
    header,
    rounds,
    footer,
    state: ended,
    warnings: [...(footer?.warnings ?? []), ...notes],
    seq: rounds.length,
  });
  return run;
}

/** Return the trace of a record, for export. */
export function toTrace(run) {
  return {
    header: run.header,
    rounds: visible(run),
    footer: run.footer ?? { reason: "", text: "", seconds: 0, error: "", warnings: run.warnings },
    ...(run.attribution && { attribution: run.attribution }),
  };
}

/** Return the number of rounds from 0 on without a gap. */
export function complete(run) {
  let n = run.whole ?? 0;
  while (run.rounds[n] !== undefined) n += 1;
  run.whole = n;
  return n;
}

/** Return the rounds that can be drawn: those before the first gap. */
export function visible(run) {
  const n = complete(run);
  return n === run.rounds.length ? run.rounds : run.rounds.slice(0, n);
}

/** Return whether the run has ended. */
export function isOver(run) {
  return TERMINAL.has(run.state);
}

/** Return whether the run occupies the engine: from Run to its end. A recording does not. */
export function isActive(run) {
  return run !== null && run.from === "live" && !isOver(run);
}

// -- Tokens that a round itself emitted. A verifier of whole steps also commits tokens of earlier rounds, which have no
// node.

/** Return the token that the target added in a round; undefined if it is tentative or missing. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function ownToken({ emitted, bonus_kind, placed }) {
  return !bonus_kind && placed?.length ? undefined : emitted.findLast((e) => e.node === null);
}

/** Return the tokens of the round itself. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function roundTokens(round) {
  const own = ownToken(round);
  return round.emitted.filter((e) => e.node !== null || e === own);
}
