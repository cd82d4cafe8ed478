/** First content of the page, and content other than a new run: recordings, trace files, the run before a reload. */

import * as kit from "../shared/kit.js";
import * as address from "../shared/address.js";
import * as alerts from "../shared/alerts.js";
import * as backend from "./backend.js";
import * as choices from "./choice.js";
import * as figures from "../shared/figures.js";
import * as form from "../shared/form.js";
import * as link from "./link.js";
import * as player from "./player.js";
import * as race from "./race.js";
import * as stage from "./stage.js";
import * as reload from "./reload.js";
import * as selection from "./selection.js";
import * as store from "../shared/store.js";
import * as traces from "./traces.js";
import * as view from "./view.js";

const EXAMPLE_SPEED = 0.1;
/** Duration of the example's race on the page, in seconds. */
const RACE_S = 5;
const RUN_NOT_FOUND = {
  message: "This app does not have the run of this link.",
  remedy: "Ask the sender for a link to the settings, or for the trace file.",
};
/** Delay before a change is written to the address, in ms: browsers limit how often an address may change. */
const SOON_MS = 250;
const READY_MS = 400;

/** Name of the recording that plays before the first run. */
export const EXAMPLE = "race";

/** Play the example while the backend is starting, if the page has nothing else to show.
 *  @param {Promise<any>} looked  ends when the backend has answered; one that is ready answers before `READY_MS` */
export function showExample(page, looked) {
  const { host } = page;
  page.earlier = reload.last(host); // fetched early: the backend drops a running run that no client follows
  if (host.call && !window.workbenchTrace && !host.address?.read() && !host.remember?.getItem("wb-run"))
    page.greeting = Promise.race([looked, new Promise((done) => setTimeout(done, READY_MS))]).then(() =>
      showRecording(page, EXAMPLE, null),
    );
}

/** Show the given trace, else what the address names, else this tab's run before a reload, else the example. */
export async function arrive(page, trace) {
  const { host } = page;
  if (trace) return show(page, store.fromTrace("given", trace, "recorded"));
  if (!page.catalogue) return;
  const query = host.address?.read() ?? "", earlier = await (page.earlier ?? reload.last(host));
  await loadModels(page, new URLSearchParams(query));
  const wanted = link.fromQuery(query, page.catalogue, form.clamp);
  const again = earlier && reload.namesRun(wanted, earlier, reload.reloaded());
  if (again) await restoreRun(page, earlier, wanted.pin);
  applySettings(page, wanted);
  page.embed ||= wanted.embed;
  page.shownView = wanted.view;
  if (again) return;
  if (wanted.run) await showLinkedRun(page, wanted);
  else if (wanted.recorded) await showRecording(page, wanted.recorded, wanted.pin, wanted);
  else if (wanted.settings) await loadSettings(page, wanted);
  else {
    await (page.greeting ?? showRecording(page, EXAMPLE, null));
    adoptExample(page);
  }
}

/** Load the settings of a link into the panel, and start the run if the link says so. */
async function loadSettings(page, wanted) {
  page.pendingPin = wanted.pin;
  if (wanted.starts && !page.embed && !reload.reloaded() && !wanted.problems.length)
    return backend.whenLoaded(page, () => backend.start(page, false));
  if (!page.embed && !reload.reloaded()) page.note = "Settings loaded from the link. Press Run to use them.";
}

/** Show the run of a link. If the backend no longer has it, decode it again from the settings in the link. */
async function showLinkedRun(page, wanted) {
  const answer = await page.host.call("fetch_trace", { run: wanted.run, from: 0 }).catch(() => null);
  if (answer && !answer.error) {
    const header = wanted.settings ? null : reload.currentHeader(answer);
    if (header) await adoptSettings(page, header);
    follow(page, wanted.run, wanted.pin, answer);
    return Object.assign(page.run, settingsKeys(page));
  }
  if (!wanted.settings) return page.errors.push(answer?.error ?? RUN_NOT_FOUND);
  await loadSettings(page, { ...wanted, starts: true });
  page.note = page.run
    ? "This app no longer has the run of this link, so it is decoded again."
    : "This app no longer has the run of this link. Press Run to decode it again.";
}

/** Load the settings of the playing example into the panel. Remove an example of another target than the app's: the
 *  panel would describe one run and the page show another. */
function adoptExample(page) {
  if (page.recorded !== EXAMPLE || page.formed) return;
  const { header } = page.run;
  if (isOfApp(page, header))
    return (page.choice = { ...choices.adopt(page.choice, header, page.catalogue), fixed: page.choice.fixed });
  clearPage(page);
  page.run = null;
  page.plain = null;
  if (!page.race.playing) startRace(page);
}

/** Return whether a recording is of the target that the app was started with; true while that is not known. */
function isOfApp({ catalogue }, header) {
  return !catalogue || header.target === catalogue.chosen.target;
}

/** Write the current view into the address. `page.query` returns its query. */
export function writeAddress(page) {
  if (!page.touched || !page.host.address || !page.catalogue) return;
  const query = page.query();
  if (query !== page.writtenQuery) page.host.address.write((page.writtenQuery = query));
}

/** Write the address after `SOON_MS`, once for all changes until then. */
export function writeAddressSoon(page) {
  if (page.touched && page.host.address)
    page.addressTimer ??= setTimeout(() => ((page.addressTimer = null), writeAddress(page)), SOON_MS);
}

/** React to a step back or forth in the browser's history: load what the address names, then write the view back. */
export async function stepped(page) {
  const { host } = page, query = host.address.read();
  page.writtenQuery = null;
  if (page.catalogue && !store.isActive(page.run)) {
    await loadModels(page, new URLSearchParams(query));
    const wanted = link.fromQuery(query, page.catalogue, form.clamp);
    if (wanted.recorded && wanted.recorded !== page.recorded) {
      clearPage(page);
      page.run = null;
      await showRecording(page, wanted.recorded, wanted.pin, wanted);
    } else applySettings(page, wanted);
    if (wanted.pin && page.run) page.selection.pin = wanted.pin;
  }
  page.draw();
  writeAddress(page);
}

/** Load the panel of the models that an address names. */
async function loadModels(page, query) {
  const { choice } = page, [target, drafter, method] = ["target", "drafter", "method"].map((name) => query.get(name));
  choice.fixed ||= ["target", "drafter", "prompt"].some((name) => query.has(name)); // a link decides the models
  if ((target ?? choice.target) === choice.target && (drafter ?? choice.drafter) === choice.drafter) return;
  Object.assign(choice, { ...(target && { target }), ...(drafter && { drafter }), ...(method && { method }) });
  await backend.loadCatalogue(page, target, drafter);
}

/** Put the settings of an address into the panel; report invalid ones. */
function applySettings(page, { choice, params, problems, settings }) {
  page.formed ||= settings;
  page.choice = choices.revise(
    { ...page.choice, ...choice, params: { ...page.choice.params, ...params } },
    page.catalogue,
  );
  if ("prompt" in choice)
    page.choice.preset = page.catalogue.presets.find((p) => p.prompt === choice.prompt)?.name ?? null;
  if (problems.length)
    page.notices.push(alerts.ignored(problems));
}

/** Show a run that was started in another tab: poll the backend about once a second; the run can be controlled as
 *  usual. @param {object|null} answer  of `fetch_trace`, from round 0 on, if known */
export function follow(page, id, wanted = null, answer = null) {
  const run = Object.assign(store.newRun(`followed-${(page.channels += 1)}`), { id, lastMessageAt: -Infinity });
  if (answer) store.apply(run, answer);
  if (answer?.baseline) run.baseline = answer.baseline;
  page.run = Object.assign(run, { closed: store.isOver(run) });
  if (store.isActive(run)) page.pendingPin = wanted; // its round may not have arrived yet
  else page.selection.pin = wanted;
  backend.watch(page); // fetch all rounds so far
}

/** Show the run that this tab showed last, with its settings. Continue it if it has not ended. */
async function restoreRun(page, answer, pin) {
  const header = reload.currentHeader(answer);
  if (header) await adoptSettings(page, header);
  page.choice.prompt = reload.typedPrompt(page.host, answer.run) ?? page.choice.prompt;
  page.run = Object.assign(backend.resume(page, answer), settingsKeys(page));
  if (store.isActive(page.run)) page.pendingPin = pin; // its round may not have arrived yet
  else page.selection.pin = pin;
}

/** Return a run's copy of the settings: the settings that its baseline must share, and the settings of its link. */
function settingsKeys(page) {
  return { key: choices.pairing(page.choice, page.catalogue, form.clamp), settingsQuery: page.settings() };
}

/** Adopt the settings of a run as far as this app offers them. */
async function adoptSettings(page, header) {
  const { catalogue } = page;
  if (header.target !== page.choice.target && catalogue.targets.some((t) => t.name === header.target))
    await backend.loadCatalogue(page, header.target, header.drafter);
  page.choice = choices.adopt(page.choice, header, page.catalogue);
}

/** Play a recording of the gallery, or show a kept run. @param {object|null} parsed  parsed address that names it: the
 *  recording's settings go into the panel, then the settings of the address. */
async function showRecording(page, name, wanted, parsed = null) {
  const answer = await page.host.call("recorded", { name }).catch(() => null);
  if (!answer?.header) {
    if (answer?.error && name !== EXAMPLE) page.errors.push(answer.error);
    return;
  }
  if (name === EXAMPLE && answer.plain) page.example = answer; // its race is shown while there is no run
  if (!parsed && !isOfApp(page, answer.header)) return startRace(page);
  if (answer.header.pictures?.length && page.host.go)
    return location.replace(address.write(`${page.host.base}/`, address.named("vision", name))); // the Vision tab draws it
  if (page.run) return; // the user started a run meanwhile
  page.recorded = name;
  if (parsed) {
    const header = reload.currentHeader(answer);
    await adoptSettings(page, header);
    applySettings(page, { ...parsed, problems: [] });
    const others = reload.others(parsed, header);
    if (others.length)
      page.note = `The settings differ from the recording's (${others.join(", ")}): press Run to decode with them.`;
  }
  play(page, answer, wanted, address.isKept(name));
}

/** Show the example while there is no run, also if it is of another target than the app's.
 *  @returns {boolean} whether it is shown now; `returnExample` ends that */
export function borrowExample(page) {
  if (page.run || !page.example) return false;
  page.recorded = EXAMPLE;
  play(page, page.example, null, true);
  return true;
}

/** Remove the example that `borrowExample` shows, unless it was replaced. */
export function returnExample(page) {
  if (page.recorded !== EXAMPLE || !page.run || isOfApp(page, page.run.header)) return;
  clearPage(page);
  Object.assign(page, { run: null, plain: null });
  page.draw();
}

/** Let a trace arrive round by round; show it at once with a pin, with reduced motion, or if it is a kept run. */
function play(page, trace, wanted, whole) {
  const run = /** @type {any} */ ({
    ...store.newRun(`recorded-${(page.channels += 1)}`),
    from: "recorded",
    closed: true,
    baseline: trace.baseline ?? null,
    raced: trace.plain ? trace.rounds : null, // the race runs on its own clock, ahead of the text
  });
  store.apply(run, { header: trace.header, state: "running" });
  page.run = run;
  page.selection.pin = wanted;
  if (trace.plain) {
    page.plain = { ...store.fromTrace(`plain-${run.channel}`, trace.plain, "recorded"), closed: true };
    page.plainKey = run.key = run.channel; // recorded with the same settings
  }
  const arrive = (n) => {
    store.apply(run, { rounds: trace.rounds.slice(0, n), seq: n });
    if (n === trace.rounds.length) {
      store.apply(run, { footer: trace.footer, warnings: trace.footer.warnings, state: "finished" });
      page.feeding = null;
      if (trace.plain) showCorrection(page, run);
    }
    page.draw();
  };
  const speed = trace.plain ? Math.min(1, figures.summary(page.plain.rounds).seconds / RACE_S) : EXAMPLE_SPEED;
  const still = whole || wanted !== null || kit.prefersStill();
  page.feeding = { label: `${speed.toPrecision(2)}× speed`, speed, stop: () => {} };
  page.feeding.stop = player.feed({ rounds: trace.rounds, speed, still, arrive });
  if (still) page.feeding = null;
  else if (trace.plain) startRace(page, speed);
}

/** Select the largest round with a corrected token, unless the reader selected another: it shows all outcomes of a
 *  test. */
function showCorrection(page, run) {
  const { selection: now } = page, tested = (round) => figures.count(round).tested;
  if (page.run !== run || now.pin || now.hover) return;
  const corrected = run.rounds.filter((round) => round.bonus_kind === "corrected").sort((a, b) => tested(b) - tested(a));
  if (corrected.length) page.selection.pin = { round: corrected[0].index };
}

/** Replay the race, or skip to its end. */
export function toggleRace(page) {
  if (page.race.playing) race.stop(page, () => drawRace(page));
  else startRace(page);
}

function startRace(page, speed = null) {
  race.start(page, () => race.of(view.of(page, performance.now()), ""), () => drawRace(page), speed);
}

const drawRace = (page) => page.view && stage.drawRace(page.parts, page.view);

/** Show a complete run record. */
export function show(page, run) {
  clearPage(page);
  page.run = Object.assign(run, { closed: true });
  page.draw();
}

/** Take the trace that another view left for this one; null if there is none. */
export function handedTrace() {
  const trace = window.workbenchTrace ?? null;
  window.workbenchTrace = null;
  return trace;
}

/** Show the trace of another view, unless a run is in progress. */
export function takeHandedTrace(page) {
  const trace = handedTrace();
  if (!trace) return;
  if (store.isActive(page.run))
    alerts.fail(page, { message: "A run is in progress.", remedy: "Stop the run, then open the trace again." });
  else show(page, store.fromTrace(`handed-${(page.channels += 1)}`, trace, "recorded"));
}

/** Open a trace file that the user chose. */
export async function open(page, file) {
  if (!file) return;
  if (store.isActive(page.run))
    return alerts.fail(page, { message: "A run is in progress.", remedy: "Stop the run, then open the file." });
  try {
    if (file.size > traces.MAX_BYTES)
      throw new traces.TraceError(
        `The file is ${(file.size / 1e6).toFixed(0)} MB.`,
        `Choose a file of at most ${traces.MAX_BYTES / 2 ** 20} MiB.`,
      );
    const { trace, notes } = traces.read(await file.text(), page.catalogue?.schema ?? 1);
    show(page, store.fromTrace(`imported-${(page.channels += 1)}`, trace, "imported", notes));
  } catch (problem) {
    if (!problem.remedy) throw problem;
    alerts.fail(page, { message: `${file.name}: ${problem.message}`, remedy: problem.remedy });
  }
}

/** The displayed run was saved as a kept run: use its address from now on. */
export function useKeptAddress(page, id) {
  if (store.isActive(page.run)) return;
  Object.assign(page, { recorded: id, formed: false, touched: true });
}

/** Clear selection, playback and messages before another run is shown. */
export function clearPage(page) {
  page.feeding?.stop();
  player.stop(page);
  if (page.race) race.halt(page.race); // Vision has none
  Object.assign(page, {
    errors: [],
    notices: [],
    selection: selection.newSelection(),
    brush: null,
    note: "",
    changes: {},
    recorded: null,
    feeding: null,
    lost: 0,
  });
}
