/** Sentences of the Live view: what state it is in, what went wrong, what a screen reader hears. No DOM. */

import { count } from "../shared/figures.js";

/** One line about where the run is.
 *  @param {{run: object|null, figures: object, pinned: boolean, measuring: object|null, lost?: number, slow?: string,
 *    over?: boolean, paced?: (...known: any) => string}} page `lost`: seconds without an answer, 0 when all is well;
 *    `slow`: at what speed a recording is played; `paced`: what a run that is held back says, unless it is `over` */
export function status({ run, figures, pinned, measuring, lost = 0, slow = "", over = false, paced = () => "" }) {
  if (lost) return `reconnecting: no answer for ${Math.round(lost)} s`;
  if (measuring) return `measuring the baseline: ${measuring.tokens} of ${measuring.of} tokens`;
  if (!run) return "";
  const of = run.header?.max_new_tokens ? ` of ${run.header.max_new_tokens}` : "";
  const tail = `${run.pace && !over ? ` · ${paced(run.pace)}` : ""}${pinned ? " · pinned" : ""}`;
  const say = {
    finished: ended(run),
    cancelled: run.footer ? ended(run) : "stopped by you",
    error: "ended by an error",
    starting: "starting",
    queued: place(run.queue),
    loading: "loading the models",
    prefill: "reading the prompt",
  };
  const counted = figures.tokens ? `${figures.tokens}${of} tokens` : "";
  return [slow ? `played at ${slow}` : (say[run.state] ?? run.state), counted].filter(Boolean).join(" · ") + tail;
}

const REASONS = {
  eos: "finished: end of text",
  length: "finished: max tokens reached",
  "stop-string": "finished: stop string",
  "stop-token": "finished: stop token",
  cancelled: "stopped by you",
  error: "ended by an error",
  limit: "stopped by a limit of this server",
  lease: "stopped: the page that followed it was closed",
  memory: "stopped: its trace filled the memory",
};

function ended(run) {
  const reason = run.footer?.reason ?? "";
  return REASONS[reason] ?? (reason ? `stopped: ${reason}` : run.footer ? "ended" : "truncated: the trace has no end");
}

function place(queue) {
  return queue ? `queued: ${queue.position} of ${queue.of} in line` : "queued";
}

/** What the empty stage says. */
export function waiting(run, ready = true) {
  if (!ready) return "The backend is starting …";
  if (!run) return "Press Run: the text appears here, one group for each round of draft and verify.";
  const words = {
    starting: "Asking the backend …",
    queued: run.queue
      ? `Queued: number ${run.queue.position} of ${run.queue.of} in line.`
      : "Queued: another run holds the engine.",
    loading: run.loading ? loading(run.loading) : "Loading the models …",
    prefill: "The target reads the prompt …",
    paused: "Paused before the first round: press Step.",
    error: "No tokens: see the message above.",
    cancelled: "Stopped before the first round.",
  };
  return [words[run.state] ?? "Waiting for the first round …", run.loading ? "" : run.message]
    .filter(Boolean)
    .join(" ");
}

function loading({ stage, done, total }) {
  const mb = (bytes) => (bytes / 1e6).toFixed(1);
  return `${stage.replace(/^./, (c) => c.toUpperCase())}${total ? `: ${mb(done)} of ${mb(total)} MB` : done ? `: ${mb(done)} MB` : ""} …`;
}

/** How far a wait has come, for a bar; null when nobody can say. @returns {{done: number, total: number|null}|null} */
export function progress(run) {
  return run && run.state === "loading" && run.loading
    ? { done: run.loading.done, total: run.loading.total || null }
    : null;
}

const INACTIVE = /^Speculation is inactive/, SELF_CHECK = /^(Speculation is inactive|Almost nothing is accepted)/;
/** Acceptance rate below which the engine's self-check speaks: `workbench/engine/selfcheck.py`. */
const TOO_LOW = 0.02;

/** Everything that must be said and stay said: errors with their remedy, then warnings. */
export function alerts(errors, run, rounds) {
  const out = errors.map((e) => ({ kind: "error", message: e.message, remedy: e.remedy ?? "" }));
  if (run?.error) out.push({ kind: "error", message: run.error.message, remedy: run.error.remedy ?? "" });
  else if (run?.footer?.error) out.push({ kind: "error", message: run.footer.error, remedy: "" });
  else if (run?.state === "error")
    out.push({ kind: "error", message: run.message || "The run ended with an error.", remedy: "" });
  const at = new Map();
  for (const message of [...(run?.warnings ?? []), ...(run?.footer?.warnings ?? [])]) at.set(message, []);
  for (const r of rounds) for (const note of r.notes) at.set(note, [...(at.get(note) ?? []), r.index + 1]);
  for (const [message, where] of at)
    out.push(
      outdated(message, where, rounds) ?? {
        kind: INACTIVE.test(message) ? "error" : "warning",
        message,
        remedy: "",
        rounds: where,
      },
    );
  return grouped(out);
}

/** A self-check of the engine that later rounds have overtaken, with what they accepted; null: it holds. Pure.
 *  @param {number[]} where  the rounds that said it, counted from 1 */
function outdated(message, where, rounds) {
  if (!SELF_CHECK.test(message) || !where.length) return null;
  const last = Math.max(...where), since = rounds.slice(last).map(count);
  const total = (name) => since.reduce((sum, c) => sum + c[name], 0), [accepted, tested] = [total("accepted"), total("tested")];
  if (!tested || accepted / tested < TOO_LOW) return null;
  const remedy = `In the rounds after it ${accepted} of ${tested} tested tokens were accepted.`;
  return { kind: "note", message: `Up to round ${last}: ${message}`, remedy };
}

const MOST_NAMED = 6;

/** What differs in numbers alone is said once, as it was said last, with how often and in which rounds. Pure.
 *  @param {{kind: string, message: string, remedy: string, rounds?: number[], times?: number}[]} list
 *  @returns {{kind: string, message: string, remedy: string, times: number, rounds: number[]}[]} */
export function grouped(list) {
  const groups = new Map();
  for (const { kind, message, remedy, rounds = [], times = Math.max(1, rounds.length) } of list) {
    const key = `${kind} ${message.replace(/\d+([.,]\d+)*/g, "#")}`, known = groups.get(key);
    groups.set(key, {
      kind,
      message,
      remedy: remedy || (known?.remedy ?? ""),
      times: times + (known?.times ?? 0),
      rounds: [...(known?.rounds ?? []), ...rounds].sort((a, b) => a - b),
    });
  }
  return [...groups.values()];
}

/** The rounds that an alert concerns, in words; empty where it concerns none in particular. */
export function where(rounds) {
  const named = [...new Set(rounds)], more = named.length - MOST_NAMED;
  if (!named.length) return "";
  return `(round${named.length > 1 ? "s" : ""} ${named.slice(0, MOST_NAMED).join(", ")}${more > 0 ? ` and ${more} more` : ""})`;
}

const FROM = { live: "LIVE", recorded: "RECORDED", imported: "IMPORTED" };

/** The badge: where the numbers come from, and on what they were made. What was not run here also names its method: the
 *  form beside it may show another. */
export function badge(run, device) {
  if (!run?.header) return [FROM[run?.from ?? "live"], device].filter(Boolean).join(" · ");
  const { target, method, device: made, dtype, hardware } = run.header;
  const on =
    run.from === "live" && device ? device : [made?.toUpperCase(), dtype, hardware].filter(Boolean).join(" · ");
  return [FROM[run.from], run.from === "live" ? "" : method, target, on].filter(Boolean).join(" · ");
}

/** What came of the last changes, for the note under the buttons. */
export function changeNote(marks, active) {
  const last = marks.at(-1);
  if (last) return `${last.text} was applied at round ${last.index + 1}; the target's cache was kept.`;
  return active ? "Changes take effect at the next round." : "";
}

/** A summary for the live region. */
export function heard(figures, over) {
  const rate =
    figures.acceptance_rate === null
      ? ""
      : `, ${Math.round(100 * figures.acceptance_rate)} per cent of tested drafts accepted`;
  return `${over ? "Ended. " : ""}${figures.tokens} tokens in ${figures.rounds} rounds${rate}`;
}
