/** Texts of the Live view: status, errors, screen-reader announcements. No DOM. */

import { grouped } from "../shared/alerts.js";
import { count } from "../shared/figures.js";

/** Describe the state of a run in one line.
 *  @param {{run: object|null, figures: object, pinned: boolean, measuring: object|null, lost?: number, slow?: string,
 *    over?: boolean, paced?: (...known: any) => string}} page `lost`: seconds without an answer, 0 if connected;
 *    `slow`: playback speed of a recording; `paced`: note on a paced run, unless it is `over` */
export function status({ run, figures, pinned, measuring, lost = 0, slow = "", over = false, paced = () => "" }) {
  if (lost) return `reconnecting: no answer for ${Math.round(lost)} s`;
  if (measuring) return `measuring the baseline: ${measuring.tokens} of ${measuring.of} tokens`;
  if (!run) return "";
  const of = run.header?.max_new_tokens ? ` of ${run.header.max_new_tokens}` : "";
  const tail = `${run.pace && !over ? ` · ${paced(run.pace)}` : ""}${pinned ? " · pinned" : ""}`;
  const say = {
    finished: ended(run),
    cancelled: run.footer ? ended(run) : "cancelled",
    error: "ended with an error",
    starting: "starting",
    queued: place(run.queue),
    loading: "loading the models",
    prefill: "prefill",
  };
  const counted = figures.tokens ? `${figures.tokens}${of} tokens` : "";
  return [slow ? `played at ${slow}` : (say[run.state] ?? run.state), counted].filter(Boolean).join(" · ") + tail;
}

const REASONS = {
  eos: "finished: end-of-sequence token",
  length: "finished: max tokens reached",
  "stop-string": "finished: stop string",
  "stop-token": "finished: stop token",
  cancelled: "cancelled",
  error: "ended with an error",
  limit: "stopped: server's time limit reached",
  lease: "stopped: the page of the run was closed",
  memory: "stopped: the trace exceeded the memory limit",
};

function ended(run) {
  const reason = run.footer?.reason ?? "";
  return REASONS[reason] ?? (reason ? `stopped: ${reason}` : run.footer ? "ended" : "truncated: the trace has no footer");
}

function place(queue) {
  return queue ? `queued: position ${queue.position} of ${queue.of}` : "queued";
}

/** Return the text of the empty token card. */
export function waiting(run, ready = true) {
  if (!ready) return "The backend is starting …";
  if (!run) return "Press Run. The tokens appear here, grouped by round of draft and verify.";
  const words = {
    starting: "Starting …",
    queued: run.queue
      ? `Queued: position ${run.queue.position} of ${run.queue.of}.`
      : "Queued: the engine is busy with another run.",
    loading: run.loading ? loading(run.loading) : "Loading the models …",
    prefill: "Prefill of the prompt …",
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

/** Return the progress of loading; null if unknown. @returns {{done: number, total: number|null}|null} */
export function progress(run) {
  return run && run.state === "loading" && run.loading
    ? { done: run.loading.done, total: run.loading.total || null }
    : null;
}

const INACTIVE = /^Speculation is inactive/, SELF_CHECK = /^(Speculation is inactive|Almost nothing is accepted)/;
/** Acceptance rate below which the engine's self-check warns: `workbench/engine/run_checks.py`. */
const TOO_LOW = 0.02;

/** Return all messages that stay visible: errors with their remedy, then warnings. */
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
      outdatedWarning(message, where, rounds) ?? {
        kind: INACTIVE.test(message) ? "error" : "warning",
        message,
        remedy: "",
        rounds: where,
      },
    );
  return grouped(out);
}

/** Turn a self-check warning of the engine into a note if later rounds contradict it; null: it still holds. Pure.
 *  @param {number[]} where  rounds with the warning, counted from 1 */
function outdatedWarning(message, where, rounds) {
  if (!SELF_CHECK.test(message) || !where.length) return null;
  const last = Math.max(...where), since = rounds.slice(last).map(count);
  const total = (name) => since.reduce((sum, c) => sum + c[name], 0), [accepted, tested] = [total("accepted"), total("tested")];
  if (!tested || accepted / tested < TOO_LOW) return null;
  const remedy = `In later rounds ${accepted} of ${tested} tested tokens were accepted.`;
  return { kind: "note", message: `Up to round ${last}: ${message}`, remedy };
}

const FROM = { live: "LIVE", recorded: "RECORDED", imported: "IMPORTED" };

/** Return the badge of a run: origin (live, recorded, imported), model and hardware. For a run from elsewhere also its
 *  method, because the form may show another. */
export function badge(run, device) {
  if (!run?.header) return [FROM[run?.from ?? "live"], device].filter(Boolean).join(" · ");
  const { target, method, device: recorded, dtype, hardware } = run.header;
  const on =
    run.from === "live" && device ? device : [recorded?.toUpperCase(), dtype, hardware].filter(Boolean).join(" · ");
  return [FROM[run.from], run.from === "live" ? "" : method, target, on].filter(Boolean).join(" · ");
}

/** Return the note under the buttons about the last change. */
export function changeNote(marks, active) {
  const last = marks.at(-1);
  if (last) return `${last.text} was applied at round ${last.index + 1}; the target's KV cache was kept.`;
  return active ? "Changes take effect at the next round." : "";
}

/** Return the summary for the screen reader's live region. */
export function announcement(figures, over) {
  const rate =
    figures.acceptance_rate === null
      ? ""
      : `, ${Math.round(100 * figures.acceptance_rate)} percent of tested drafts accepted`;
  return `${over ? "Ended. " : ""}${figures.tokens} tokens in ${figures.rounds} rounds${rate}`;
}
