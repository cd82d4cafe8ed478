/** Texts of the Lab. Pure. */

const STATES = {
  running: "training",
  done: "done",
  stopped: "stopped",
  failed: "failed",
  killed: "killed",
  damaged: "unreadable",
};

/** Name the state of a run. */
export const state = (name) => STATES[name] ?? name;

/** Summarise a run's training settings in one line. @param {Record<string, any>}
 *  options */
export function settingsLine(options) {
  const { minutes, steps, answer_tokens: tokens, loss, seed } = options;
  const length = steps ? `${steps.toLocaleString("en")} steps` : minutes ? time(60 * minutes) : "";
  const parts = [length, tokens ? `${tokens.toLocaleString("en")} answer tokens` : "", loss ?? "", seed ? `seed ${seed}` : ""];
  return parts.filter(Boolean).join(" · ");
}

/** Return the run that the page shows: the open one, or the recorded training while the app has no run of its own.
 *  @param {{opened: any, runs: any[], recorded: any}} page */
export const shownRun = ({ opened, runs, recorded }) => opened ?? (runs.length ? null : recorded);

/** Describe the recorded training. @param {any} run */
export function recordedNote({ head, target, created, hardware, options }) {
  const length = settingsLine(options);
  return `RECORDED training: ${head} for ${target}, ${`${created}`.slice(0, 10)}, on ${hardware || "an unknown machine"}; ${length}. Press Train to train a head of your own, whose curves then replace it.`;
}

/** Format a duration. @param {number|null|undefined} seconds */
export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds >= 7200) return `${Math.round(seconds / 360) / 10} h`;
  const minutes = seconds / 60;
  return `${minutes < 10 ? Math.round(2 * minutes) / 2 : Math.round(minutes)} min`;
}

/** Return the progress of a run. @param {any} run  with `progress`, `memory`, `state`, `created`  @param {number} today
 *  as
 *  `Date.now` */
export function progress({ progress: at, memory, state: now, created = "" }, today = Date.now()) {
  if (now !== "running") return { text: "", note: "", done: 0, total: 1 };
  const since = (today - Date.parse(created)) / 1000, begun = since > 0 ? `: ${time(since)} so far` : "";
  const left = at.left_s === null ? "" : ` · about ${time(at.left_s)} left in this stage`;
  const evaluating = at.evaluating_s >= 1 ? ` · evaluation on policy took ${time(at.evaluating_s)}, not included` : "";
  return {
    text: at.stage
      ? `stage ${at.stage} of ${at.of}: ${at.name}${left}`
      : `loading PyTorch and the target${begun}; this usually takes 10 to 30 s`,
    note: `${megabytes(memory)} memory, low priority${evaluating}`,
    done: at.done ?? 0,
    total: at.done === null ? 0 : 1,
  };
}

/** Format bytes as megabytes. */
export const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20).toLocaleString("en")} MB`;

/** Estimate the duration of a run with these settings. @param {Record<string, any>} values
 *  @param {{head: string, target: string, rate: number|null}} known  `rate`: answer tokens a second, measured in an
 *    earlier run */
export function estimate(values, { rate }) {
  const tokens = values.answer_tokens.toLocaleString("en"),
    training = values.steps ? `${values.steps.toLocaleString("en")} steps of training` : `${time(60 * values.minutes)} of training`;
  const writing = rate ? values.answer_tokens / rate : null;
  const total =
    writing === null
      ? `${training}, after the target has generated ${tokens} answer tokens at a speed not yet measured here`
      : values.steps
        ? `about ${time(writing)} to ${time(2 * writing)} to generate and process ${tokens} answer tokens (measured here: ${Math.round(rate)} per second), then ${training}`
        : `about ${time(writing + 60 * values.minutes)} to ${time(2 * writing + 60 * values.minutes)}: ${training} after generating and processing ${tokens} answer tokens (measured here: ${Math.round(rate)} per second)`;
  return `Takes ${total}. Runs with the same answer settings share their answers.`;
}

/** Return the actions on a run, each with the reason why it is not possible. @param {any} run  @param {{busy:
 *  string|null, swaps: boolean}}
 *  at  `busy`: id of the run that trains */
export function actions(run, { busy, swaps }) {
  const running = run.state === "running", none = "choose a run first";
  const other = busy && busy !== run.id ? "another run is training: wait until it ends, or stop it" : "";
  const never = { done: "all steps of this run are done", damaged: "the settings of this run cannot be read" }[run.state];
  return {
    stop: run.stopping ? "this run stops after the current step" : running ? "" : "this run is not training",
    resume: running ? "this run is already training" : (never ?? other),
    promote: !swaps ? "this backend cannot load new heads" : run.drafts ? "" : "this run has no checkpoint yet",
    forget: running ? "stop this run first" : "",
    none,
  };
}

/** Describe the result of a promotion. @param {any} found  @param {string} method  title of the method that uses it */
export function promotionNote({ step, switched }, method) {
  const rest =
    switched === 1
      ? "One run in progress uses the head from its next round on."
      : switched
        ? `${switched} runs in progress use the head from their next rounds on.`
        : "New runs use the head.";
  return `The head of step ${step} is promoted: ${method} now uses it in this app. ${rest}`;
}
