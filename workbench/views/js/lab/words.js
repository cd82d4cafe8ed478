/** The words of the Lab. Pure. */

const STATES = {
  running: "training",
  done: "done",
  stopped: "stopped",
  failed: "failed",
  killed: "ended from outside",
  damaged: "cannot be read",
};

/** The state of a run in words. */
export const state = (name) => STATES[name] ?? name;

/** How a run was asked to be trained, in a line: two of a kind may differ in nothing else. @param {Record<string, any>}
 *  options */
export function asked(options) {
  const { minutes, steps, answer_tokens: tokens, loss, seed } = options;
  const length = steps ? `${steps.toLocaleString("en")} steps` : minutes ? time(60 * minutes) : "";
  const parts = [length, tokens ? `${tokens.toLocaleString("en")} tokens of answers` : "", loss ?? "", seed ? `seed ${seed}` : ""];
  return parts.filter(Boolean).join(" · ");
}

/** A stretch of time in words. @param {number|null|undefined} seconds */
export function time(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds >= 7200) return `${Math.round(seconds / 360) / 10} h`;
  const minutes = seconds / 60;
  return `${minutes < 10 ? Math.round(2 * minutes) / 2 : Math.round(minutes)} min`;
}

/** How far a run is. @param {any} run  with `progress`, `memory`, `state`, `created`  @param {number} today  as
 *  `Date.now` */
export function progress({ progress: at, memory, state: now, created = "" }, today = Date.now()) {
  if (now !== "running") return { text: "", note: "", done: 0, total: 1 };
  const since = (today - Date.parse(created)) / 1000, begun = since > 0 ? `: ${time(since)} so far` : "";
  const left = at.left_s === null ? "" : ` · about ${time(at.left_s)} left of this stage`;
  const evaluating = at.evaluating_s >= 1 ? ` · drafting on policy took ${time(at.evaluating_s)}, counted apart` : "";
  return {
    text: at.stage
      ? `stage ${at.stage} of ${at.of}: ${at.name}${left}`
      : `its process loads PyTorch and the target${begun}; 10 to 30 s are usual`,
    note: `${megabytes(memory)} of memory, low priority${evaluating}`,
    done: at.done ?? 0,
    total: at.done === null ? 0 : 1,
  };
}

/** Bytes in words. */
export const megabytes = (bytes) => `${Math.round(bytes / 2 ** 20).toLocaleString("en")} MB`;

/** What a run with these settings takes, as far as that can be said before it. @param {Record<string, any>} values
 *  @param {{head: string, target: string, rate: number|null}} known  `rate`: answer tokens a second, measured in an
 *    earlier run */
export function estimate(values, { rate }) {
  const tokens = values.answer_tokens.toLocaleString("en"),
    training = values.steps ? `${values.steps.toLocaleString("en")} steps of training` : `${time(60 * values.minutes)} of training`;
  const writing = rate ? values.answer_tokens / rate : null;
  const total =
    writing === null
      ? `${training}, after the target has written ${tokens} tokens of answers at a speed not known here yet`
      : values.steps
        ? `about ${time(writing)} to ${time(2 * writing)} to write ${tokens} tokens of answers (${Math.round(rate)} a second here, measured) and to read them, then ${training}`
        : `about ${time(writing + 60 * values.minutes)} to ${time(2 * writing + 60 * values.minutes)}: ${training} after ${tokens} tokens of answers (${Math.round(rate)} a second here, measured) are written and read`;
  return `Takes ${total}. Answers are shared by all runs that ask for the same.`;
}

/** What can be done with a run, with the reason why not. @param {any} run  @param {{busy: string|null, swaps: boolean}}
 *  at  `busy`: id of the run that trains */
export function deeds(run, { busy, swaps }) {
  const running = run.state === "running", none = "choose a run first";
  const other = busy && busy !== run.id ? "another run is being trained: wait for it, or stop it" : "";
  const never = { done: "it has done all its steps", damaged: "what was asked of it cannot be read" }[run.state];
  return {
    stop: run.stopping ? "it ends behind its step" : running ? "" : "it does not train now",
    resume: running ? "it trains already" : (never ?? other),
    promote: !swaps ? "this backend takes no heads up" : run.drafts ? "" : "there is no checkpoint yet",
    forget: running ? "stop it first" : "",
    none,
  };
}

/** What a promotion came to. @param {any} found  @param {string} method  title of the method that drafts with it */
export function promoted({ step, switched }, method) {
  const rest =
    switched === 1
      ? "One generation that goes on drafts with it from its next round on."
      : switched
        ? `${switched} generations that go on draft with it from their next rounds on.`
        : "Generations that begin from now on draft with it.";
  return `The head of step ${step} is promoted: ${method} drafts with it in this app. ${rest}`;
}
