/** What goes to the backend and what comes back: runs are started, followed, steered, and their gaps filled. */

import * as choices from "./choice.js";
import * as form from "../shared/form.js";
import * as pace from "./pace.js";
import * as store from "../shared/store.js";

const SILENCE_MS = 2000;
const GIVE_UP_MS = 60000;
const CHANGE_MS = 120;
const LOADING_MS = 2000;
const EMPTY = { message: "The prompt is empty.", remedy: "Type a prompt or choose a preset." };

/** Ask, and show the error if there is one. @returns {Promise<object|null>} */
export async function ask(page, name, payload) {
  try {
    const answer = await page.host.call(name, payload);
    if (!answer?.error) return answer;
    fail(page, answer.error);
  } catch {
    fail(page, {
      message: "The backend did not answer.",
      remedy: "Check that the app is still running, then reload the page.",
    });
  }
  return null;
}

/** Show an error until the next run. */
export function fail(page, error) {
  if (!page.errors.some((e) => e.message === error.message)) page.errors.push(error);
  page.draw();
}

/** Fetch what the panel is made from, for a target and a drafter. */
export async function look(page, target, drafter) {
  if (!page.host.call) return;
  const catalogue = await ask(page, "catalogue", { target, drafter, method: page.choice?.method ?? null });
  if (!catalogue) return;
  page.catalogue = catalogue;
  page.choice = page.choice ? choices.revise(page.choice, catalogue) : choices.first(catalogue);
  if (catalogue.problem) fail(page, catalogue.problem);
  clearTimeout(page.asksAgain);
  if (catalogue.targets.some((t) => t.loading))
    page.asksAgain = setTimeout(() => look(page, page.choice.target, page.choice.drafter), LOADING_MS);
  if (!store.isActive(page.run)) {
    const { target, lent, note } = choices.own(page.choice, catalogue), moves = target !== page.choice.target;
    if (note) page.note = note; // words may have been written while their target was on its way
    if (moves) Object.assign(page.choice, { target, lent });
    if (moves) return look(page, target, page.choice.drafter);
  }
  page.draw();
}

/** Ask again with whose heads methods draft: another tab may have promoted one since. Nothing else is touched. */
export async function heads(page) {
  const { target, drafter, method } = page.choice ?? {};
  const found = page.catalogue && (await page.host.call?.("catalogue", { target, drafter, method })?.catch?.(() => null));
  if (!found?.methods || !page.catalogue || page.choice.target !== target) return;
  const named = new Map(found.methods.map((one) => [one.name, one.head]));
  for (const one of page.catalogue.methods) one.head = named.get(one.name) ?? "";
  page.draw();
}

/** A message of the stream, or the answer that filled a gap. */
export function hear(page, message) {
  const run = [page.run, page.plain].find(
    (r) => r && (r.channel === message.channel || (r.id !== null && r.id === message.run)),
  );
  if (!run) return;
  run.heard = performance.now();
  page.lost = 0;
  const known = run.id !== null, missing = store.apply(run, message);
  if (!known && run.id !== null) {
    (run.after ?? []).splice(0).forEach((wish) => wish());
    if (run === page.run) page.host.remember?.setItem("wb-run", run.id);
  }
  if (missing !== null) fill(page, run, missing);
  if (run.id !== null) run.before = null; // it has begun
  else if (message.error && run === page.run && run.before) return giveBack(page, run, message.error);
  if (store.isOver(run) && !run.closed) {
    run.closed = true;
    page.ended(run);
  }
  (page.news ?? page.draw)();
}

/** The backend refused a run before it began: show the run of before again, with what was wrong. */
function giveBack(page, run, error) {
  Object.assign(page, { run: run.before.run, recorded: run.before.recorded, stepping: false, wantPlain: false });
  fail(page, error);
}

/** Fetch the rounds from an index on. While nobody answers, the page says that it reconnects, and asks again. */
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
    hear(page, { ...answer, channel: run.channel });
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
        remedy: "What had arrived is kept. Check that the app is running, then run again.",
      },
    });
  }
  page.draw();
}

/** Called every second: a run that has been silent is asked after. */
export function watch(page) {
  for (const run of [page.run, page.plain]) {
    if (run?.id && store.isActive(run) && performance.now() - run.heard > SILENCE_MS)
      fill(page, run, store.complete(run));
  }
}

/** Start a run from what the panel holds. */
export function start(page, paused) {
  const { choice, catalogue } = page;
  if (!catalogue || store.isActive(page.run) || store.isActive(page.plain)) return;
  if (!choice.prompt_tokens && !choice.prompt?.trim())
    return fail(page, EMPTY); // the run that is shown stays
  const { run, recorded } = page, note = choices.foreign(choice, catalogue);
  page.fresh();
  page.note = note;
  page.run = newRun(page, "run");
  page.run.before = run?.rounds.length ? { run, recorded } : null;
  page.run.key = choices.pairing(choice, catalogue, form.clamp);
  page.run.asked = page.settings?.();
  page.run.origin = choice.prompt_tokens ? choice.origin : null;
  page.touched = true; // from now on the address says what runs
  page.host.decode({
    ...choices.request(choice, catalogue, page.run.channel, form.clamp, paused),
    pace: pace.rate(choice, catalogue),
    ...begins(page),
  });
  void heads(page);
  page.draw();
}

/** The file of a drafter's state that a new run begins with, once. */
function begins(page) {
  const data = page.begins;
  page.begins = null;
  return data === null ? {} : { memory: data }; // an empty file is refused like any broken one
}

/** Go on with a run that the backend knows: one that has not ended is followed and steered like one started here.
 *  @param {object} answer  of `fetch_trace`, from its first round on  @returns {object} its record */
export function resume(page, answer, kind = "run") {
  const run = newRun(page, kind);
  store.apply(run, answer);
  if (store.isOver(run)) return Object.assign(run, { closed: true, from: "recorded" });
  page.host.decode?.({ channel: run.channel, follow: run.id, from: store.complete(run) });
  return run;
}

/** Measure the baseline now, or after the run in progress. */
export function startPlain(page) {
  const { choice, catalogue } = page;
  if (!catalogue || store.isActive(page.plain)) return;
  if (store.isActive(page.run)) {
    page.wantPlain = !page.wantPlain;
    return page.draw();
  }
  page.wantPlain = false;
  page.plain = newRun(page, "plain");
  page.plainKey = choices.pairing(choice, catalogue, form.clamp);
  page.host.decode(choices.plainRequest(choice, catalogue, page.plain.channel, form.clamp));
  page.draw();
}

/** A record of a run under a name that no other has. */
export function newRun(page, kind) {
  const channel = `${kind}-${(page.channels += 1)}-${Math.random().toString(36).slice(2, 8)}`;
  return Object.assign(store.newRun(channel), { heard: performance.now() });
}

/** Pause, resume, step or cancel what is running. */
export function control(page, action) {
  const run = store.isActive(page.run) ? page.run : store.isActive(page.plain) ? page.plain : null;
  if (!run) return;
  if (action === "cancel" && run.id === null && performance.now() - run.heard > SILENCE_MS) letGo(page, run);
  send(run, () => ask(page, "control", { run: run.id, action }));
}

/** End a run of which nothing has been heard. Should the backend name it after all, it is stopped there, too. */
function letGo(page, run) {
  run.closed = true;
  store.apply(run, {
    error: {
      message: "The backend has said nothing of this run, and it was given up.",
      remedy: "Run again, with a shorter prompt if this one is very long.",
    },
  });
  page.ended(run);
  page.draw();
}

/** Change method, drafter or parameters of the run in progress; changes that come close together go as one. */
export function change(page, wanted) {
  const run = page.run;
  if (!store.isActive(run)) return;
  Object.assign(page.changes, wanted, { params: { ...page.changes.params, ...wanted.params } });
  run.asked = page.settings?.();
  clearTimeout(page.changing);
  page.changing = setTimeout(() => {
    const payload = page.changes;
    page.changes = {};
    if (store.isActive(run)) send(run, () => ask(page, "change", { run: run.id, ...payload }));
  }, CHANGE_MS);
}

/** Now, or as soon as the backend has given the run its id. */
function send(run, wish) {
  if (run.id === null) (run.after ??= []).push(wish);
  else wish();
}
