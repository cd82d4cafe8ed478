/** Messages to and from the backend: start, follow and control runs, and fetch missing rounds. */

import { ask, fail } from "../shared/alerts.js";
import * as prompthistory from "../shared/prompthistory.js";
import * as choices from "./choice.js";
import * as form from "../shared/form.js";
import * as pace from "./pace.js";
import * as reload from "./reload.js";
import * as store from "../shared/store.js";

const SILENCE_MS = 2000;
const GIVE_UP_MS = 60000;
const CHANGE_MS = 120;
const LOADING_MS = 2000;
const EMPTY = { message: "The prompt is empty.", remedy: "Type a prompt or choose a preset." };

/** Fetch the catalogue (the panel's choices) for a target and a drafter. If a later request was made meanwhile, the
 *  answer is dropped: it describes other models than those of the panel. */
export function loadCatalogue(page, target, drafter) {
  if (!page.host.call) return Promise.resolve();
  const loading = fetchCatalogue(page, target, drafter, () => page.loading === loading).finally(() => {
    if (page.loading === loading) page.loading = null;
  });
  page.loading = loading;
  return loading;
}

async function fetchCatalogue(page, target, drafter, isLatest) {
  const catalogue = await ask(page, "catalogue", { target, drafter, method: page.choice?.method ?? null });
  if (!isLatest()) return page.loading;
  if (!catalogue) return;
  page.catalogue = catalogue;
  page.choice = page.choice ? choices.revise(page.choice, catalogue) : choices.first(catalogue);
  if (catalogue.problem) fail(page, catalogue.problem);
  clearTimeout(page.asksAgain);
  if (catalogue.targets.some((t) => t.loading))
    page.asksAgain = setTimeout(() => loadCatalogue(page, page.choice.target, page.choice.drafter), LOADING_MS);
  if (!store.isActive(page.run)) {
    const { target, lent, note } = choices.targetForTyped(page.choice, catalogue);
    const moves = target !== page.choice.target;
    if (note) page.note = note; // the prompt may have been typed while its target was loading
    if (moves) Object.assign(page.choice, { target, lent });
    if (moves) return loadCatalogue(page, target, page.choice.drafter);
  }
  page.draw();
}

/** Refresh which head each method drafts with: another tab may have promoted one. Change nothing else. */
export async function heads(page) {
  const { target, drafter, method } = page.choice ?? {};
  const found = page.catalogue && (await page.host.call?.("catalogue", { target, drafter, method })?.catch?.(() => null));
  if (!found?.methods || !page.catalogue || page.choice.target !== target) return;
  const named = new Map(found.methods.map((one) => [one.name, one.head]));
  for (const one of page.catalogue.methods) one.head = named.get(one.name) ?? "";
  page.draw();
}

/** Apply a message of the event stream, or the answer to `fetch_trace`. */
export function onMessage(page, message) {
  const run = [page.run, page.plain, page.dropped].find(
    (r) => r && (r.channel === message.channel || (r.id !== null && r.id === message.run)),
  );
  if (!run) return;
  run.lastMessageAt = performance.now();
  page.lost = 0;
  const known = run.id !== null, missing = store.apply(run, message);
  if (!known && run.id !== null) {
    (run.after ?? []).splice(0).forEach((action) => action());
    if (run === page.run) reload.note(page.host, run);
  }
  if (missing !== null) fill(page, run, missing);
  if (run.id !== null) run.before = null; // the run has started
  else if (message.error && run === page.run && run.before) return restorePrevious(page, run, message.error);
  if (store.isOver(run) && !run.closed) {
    run.closed = true;
    page.ended(run);
  }
  (page.news ?? page.draw)();
}

/** Restore the previous run after the backend refused a new one, and show the error. */
function restorePrevious(page, run, error) {
  Object.assign(page, { run: run.before.run, recorded: run.before.recorded, stepping: false, wantPlain: false });
  fail(page, error);
}

/** Fetch the rounds from an index on. While the backend does not answer, the page shows "reconnecting" and retries. */
async function fill(page, run, from) {
  if (run.filling || run.id === null) return;
  run.filling = true;
  const answer = await page.host.call("fetch_trace", { run: run.id, from }).catch(() => null);
  run.filling = false;
  if (answer?.error) {
    page.lost = 0;
    run.closed = true;
    store.apply(run, { error: answer.error });
    return page.draw();
  }
  if (answer) {
    const before = store.complete(run), lost = page.lost;
    onMessage(page, { ...answer, channel: run.channel });
    const filled = store.complete(run) - before;
    if (lost && filled > 0)
      page.notices.push({
        kind: "note",
        message: `Reconnected: rounds ${before + 1}–${before + filled} were filled in.`,
        remedy: "",
      });
    return page.draw();
  }
  page.lost ||= performance.now();
  if (performance.now() - page.lost > GIVE_UP_MS) {
    page.lost = 0;
    run.closed = true;
    store.apply(run, {
      error: {
        message: "The backend did not answer for a minute.",
        remedy: "The rounds received so far are kept. Check that the app is running, then run again.",
      },
    });
  }
  page.draw();
}

/** Called every second: fetch the missing rounds of a run that sent no message for `SILENCE_MS`. */
export function watch(page) {
  for (const run of [page.run, page.plain]) {
    if (run?.id && store.isActive(run) && performance.now() - run.lastMessageAt > SILENCE_MS)
      fill(page, run, store.complete(run));
  }
}

/** Whether the catalogue is that of the chosen target. Until it arrives, draft model and method may be those of the
 *  previous target. */
const isLoaded = ({ choice, catalogue }) => !catalogue || catalogue.chosen.target === choice.target;

/** Call `start` now, or after a change of the target once the new target's catalogue has arrived. Until then a second
 *  call has no effect; after an error, which is on the page, nothing starts.
 *  @param {any} page  @param {() => void} start */
export async function whenLoaded(page, start) {
  if (isLoaded(page)) return start();
  if (page.startsLater) return;
  page.startsLater = true;
  page.note = `The run starts once the settings of ${page.choice.target} are loaded.`;
  page.draw();
  await (page.loading ?? loadCatalogue(page, page.choice.target, page.choice.drafter));
  Object.assign(page, { startsLater: false, note: "" });
  if (isLoaded(page)) start();
  else page.draw();
}

/** Start a run with the settings of the panel. */
export function start(page, paused) {
  const { choice, catalogue } = page;
  if (!catalogue || store.isActive(page.run)) return;
  if (store.isActive(page.plain)) {
    if (!page.plain.automatic) return;
    cancelPlain(page); // the reader's run comes first
  }
  if (!choice.prompt_tokens && !choice.prompt?.trim())
    return fail(page, EMPTY); // keep the run on display
  const { run, recorded } = page, note = choices.scriptWarning(choice, catalogue);
  page.clear();
  page.note = note;
  page.run = newRun(page, "run");
  page.run.before = run?.rounds.length ? { run, recorded } : null;
  page.run.key = choices.pairing(choice, catalogue, form.clamp);
  page.run.settingsQuery = page.settings?.();
  page.run.asked = choice.prompt_tokens ? null : choice.prompt;
  if (!choice.prompt_tokens && !choice.preset) prompthistory.remember(choice.prompt);
  page.run.origin = choice.prompt_tokens ? choice.origin : null;
  page.touched = true; // from now on the address describes this run
  page.host.decode({
    ...choices.request(choice, catalogue, page.run.channel, form.clamp, paused),
    pace: pace.rate(choice, catalogue),
    ...takeStartState(page),
  });
  void heads(page);
  page.draw();
}

/** Return the saved drafter state that the new run starts from; it is used once. */
function takeStartState(page) {
  const data = page.begins;
  page.begins = null;
  return data === null ? {} : { memory: data }; // an empty file is sent too: the backend refuses it with an error
}

/** Continue a run that the backend knows. A run that has not ended is followed and can be controlled.
 *  @param {object} answer  of `fetch_trace`, from round 0 on  @returns {object} its record */
export function resume(page, answer, kind = "run") {
  const run = newRun(page, kind);
  store.apply(run, answer);
  if (answer.baseline) run.baseline = answer.baseline;
  if (store.isOver(run)) return Object.assign(run, { closed: true, from: "recorded" });
  page.host.decode?.({ channel: run.channel, follow: run.id, from: store.complete(run) });
  return run;
}

/** End an automatic baseline: its result is dropped. */
function cancelPlain(page) {
  const { plain } = page;
  send(plain, () => ask(page, "control", { run: plain.id, action: "cancel" }));
  Object.assign(page, { plain: null, plainKey: "", dropped: plain });
}

/** Measure the baseline now, or after the run in progress ends. @param {boolean} [automatic]  not at the reader's
 *  request: the next run ends it */
export function startPlain(page, automatic = false) {
  const { choice, catalogue } = page;
  if (!catalogue || store.isActive(page.plain)) return;
  if (store.isActive(page.run)) {
    page.wantPlain = !page.wantPlain;
    return page.draw();
  }
  page.wantPlain = false;
  page.plain = Object.assign(newRun(page, "plain"), { automatic });
  page.plainKey = choices.pairing(choice, catalogue, form.clamp);
  page.host.decode(choices.plainRequest(choice, catalogue, page.plain.channel, form.clamp));
  page.draw();
}

/** Return an empty run record on a new, unique channel. */
export function newRun(page, kind) {
  const channel = `${kind}-${(page.channels += 1)}-${Math.random().toString(36).slice(2, 8)}`;
  return Object.assign(store.newRun(channel), { lastMessageAt: performance.now() });
}

/** Pause, resume, step or cancel the run in progress. */
export function control(page, action) {
  const run = store.isActive(page.run) ? page.run : store.isActive(page.plain) ? page.plain : null;
  if (!run) return;
  if (action === "cancel" && run.id === null && performance.now() - run.lastMessageAt > SILENCE_MS) endSilentRun(page, run);
  send(run, () => ask(page, "control", { run: run.id, action }));
}

/** End a run that sent no message. If the backend names it later, it is cancelled there too. */
function endSilentRun(page, run) {
  run.closed = true;
  store.apply(run, {
    error: {
      message: "The backend did not answer for this run; the run was cancelled.",
      remedy: "Run again; if the prompt is very long, shorten it.",
    },
  });
  page.ended(run);
  page.draw();
}

/** Change method, drafter or parameters of the run in progress; changes within `CHANGE_MS` go as one message. */
export function change(page, wanted) {
  const run = page.run;
  if (!store.isActive(run)) return;
  Object.assign(page.changes, wanted, { params: { ...page.changes.params, ...wanted.params } });
  run.settingsQuery = page.settings?.();
  clearTimeout(page.changing);
  page.changing = setTimeout(() => {
    const payload = page.changes;
    page.changes = {};
    if (store.isActive(run)) send(run, () => ask(page, "change", { run: run.id, ...payload }));
  }, CHANGE_MS);
}

/** Send now, or as soon as the backend has given the run its id. */
function send(run, action) {
  if (run.id === null) (run.after ??= []).push(action);
  else action();
}
