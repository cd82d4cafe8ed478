/** Keep the rounds of a run by index, whatever order they arrive in, and say what is missing. No DOM. */

const TERMINAL = new Set(["finished", "cancelled", "error"]);

/** Reasons of a run that did not come to its end: see `workbench.trace.events.STOPPED`. */
const STOPPED = new Set(["cancelled", "lease", "limit", "memory"]);

/** An empty record of one run. `channel` is the name the page gave it before the backend answered with an id; `from`
 *  says where its numbers come from ("live", "recorded", "imported"), `origin` what it branched off. */
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

/** Put a message into the record.
 *  @param {object} run record from `newRun`, changed in place
 *  @param {{run?: string, state?: string, message?: string, seq?: number, header?: object, rounds?: object[],
 *           footer?: object, warnings?: string[], error?: {message: string, remedy: string}}} message  what `Run.since`
 *           returned
 *  @returns {number|null} index of the first round that is missing, or null when none is */
export function apply(run, message) {
  if (message.run) run.id = message.run;
  // A slower answer must not bring an ended run back to life.
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

/** Without a draft there is no bonus: traces of earlier versions called plain decoding that. */
function named(round) {
  if (round.bonus_kind !== "bonus" || round.nodes.status.length) return round;
  return {
    ...round,
    bonus_kind: "plain",
    emitted: round.emitted.map((e) => (e.kind === "bonus" ? { ...e, kind: "plain" } : e)),
  };
}

/** A record of a finished trace. `notes` are said with its warnings. */
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

/** The trace of a record, as exports write it. */
export function toTrace(run) {
  return {
    header: run.header,
    rounds: visible(run),
    footer: run.footer ?? { reason: "", text: "", seconds: 0, error: "", warnings: run.warnings },
    ...(run.attribution && { attribution: run.attribution }),
  };
}

/** Number of rounds from 0 on without a hole. */
export function complete(run) {
  let n = run.whole ?? 0;
  while (run.rounds[n] !== undefined) n += 1;
  run.whole = n;
  return n;
}

/** The rounds that can be drawn: the unbroken beginning. */
export function visible(run) {
  const n = complete(run);
  return n === run.rounds.length ? run.rounds : run.rounds.slice(0, n);
}

/** True when no more rounds will come. */
export function isOver(run) {
  return TERMINAL.has(run.state);
}

/** True while the run holds the engine: from the press of Run to its end. A recording holds nothing. */
export function isActive(run) {
  return run !== null && run.from === "live" && !isOver(run);
}
