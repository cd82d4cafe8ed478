/** Sentences of the Live view: what state it is in, what went wrong, what a screen reader hears. No DOM. */

/** One line about where the run is. @param {{run: object|null, plain: object|null, figures: object, selection: object}} page */
export function status({ run, plain, figures, pinned, measuring }) {
  if (measuring) return `measuring the baseline: ${measuring.tokens} of ${measuring.of} tokens`;
  if (!run) return "";
  const of = run.header?.max_new_tokens ? ` of ${run.header.max_new_tokens}` : "";
  const tail = pinned ? " · pinned" : "";
  const say = { finished: ended(run), cancelled: "stopped", error: "ended by an error", starting: "starting", queued: "queued", loading: "loading the models", prefill: "reading the prompt" };
  const counted = figures.tokens ? `${figures.tokens}${of} tokens` : "";
  return [say[run.state] ?? run.state, counted].filter(Boolean).join(" · ") + tail;
}

function ended(run) {
  const reasons = { eos: "finished: end of text", length: "finished: max tokens reached", "stop-string": "finished: stop string", cancelled: "stopped", error: "ended by an error" };
  return reasons[run.footer?.reason] ?? "finished";
}

/** What the empty stage says. */
export function waiting(run, ready = true) {
  if (!ready) return "The backend is starting …";
  if (!run) return "Press Run: the text appears here, one group for each round of draft and verify.";
  const words = {
    starting: "Asking the backend …", queued: "Queued: another run holds the engine.", loading: "Loading the models …",
    prefill: "The target reads the prompt …", paused: "Paused before the first round: press Step.", error: "No tokens: see the message above.",
    cancelled: "Stopped before the first round.",
  };
  return [words[run.state] ?? "Waiting for the first round …", run.message].filter(Boolean).join(" ");
}

/** Everything that must be said and stay said: errors with their remedy, then warnings. */
export function alerts(errors, run, rounds) {
  const out = errors.map((e) => ({ kind: "error", message: e.message, remedy: e.remedy ?? "" }));
  if (run?.error) out.push({ kind: "error", message: run.error.message, remedy: run.error.remedy ?? "" });
  else if (run?.footer?.error) out.push({ kind: "error", message: run.footer.error, remedy: "" });
  else if (run?.state === "error") out.push({ kind: "error", message: run.message || "The run ended with an error.", remedy: "" });
  for (const message of new Set([...(run?.warnings ?? []), ...(run?.footer?.warnings ?? [])])) out.push({ kind: "warning", message, remedy: "" });
  const noted = new Map();
  for (const r of rounds) for (const note of r.notes) noted.set(note, [...(noted.get(note) ?? []), r.index + 1]);
  for (const [note, at] of [...noted].slice(0, 4)) {
    const where = at.length === 1 ? `round ${at[0]}` : `${at.length} rounds, first ${at[0]}`;
    out.push({ kind: "warning", message: note, remedy: `(${where})` });
  }
  return out;
}

/** The badge: where the numbers come from. */
export function badge(run, live, device) {
  const made = run?.header ? [run.header.target, run.header.device === device ? "" : "", device || `${run.header.device} · ${run.header.dtype}`] : [device];
  return [live ? "LIVE" : "RECORDED", ...made].filter(Boolean).join(" · ");
}

/** What came of the last changes, for the note under the buttons. */
export function changeNote(marks, active) {
  const last = marks.at(-1);
  if (last) return `${last.text} was applied at round ${last.index + 1}; the target's cache was kept.`;
  return active ? "Changes take effect at the next round." : "";
}

/** A summary for the live region. */
export function heard(figures, over) {
  const rate = figures.acceptance_rate === null ? "" : `, ${Math.round(100 * figures.acceptance_rate)} per cent of tested drafts accepted`;
  return `${over ? "Ended. " : ""}${figures.tokens} tokens in ${figures.rounds} rounds${rate}`;
}
