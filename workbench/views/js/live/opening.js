/** What is shown first, and what is shown instead of a run: recordings, traces from files, the run before a reload. */

import * as address from "../shared/address.js";
import * as backend from "./backend.js";
import * as choices from "./choice.js";
import * as form from "../shared/form.js";
import * as link from "./link.js";
import * as player from "./player.js";
import * as memory from "./recall.js";
import * as selection from "./selection.js";
import * as store from "../shared/store.js";
import * as traces from "./traces.js";

const EXAMPLE_SPEED = 0.1;
const GONE = {
  message: "The run of this link is not here.",
  remedy: "Ask for a link to its settings, or for its trace file.",
};
/** After a change, so long until the address says it: typing is faster than a browser lets addresses change. */
const SOON_MS = 250;
const READY_MS = 400;

/** The recording that plays before anything was run. */
export const EXAMPLE = "draft-tree";

/** Play the example while the backend is still starting, where nothing else is to be shown.
 *  @param {Promise<any>} looked  ends when the backend has answered; one that is ready answers before `READY_MS` */
export function greet(page, looked) {
  const { host } = page;
  page.earlier = memory.last(host); // asked for early: a run that goes on is freed when nobody follows it
  if (host.call && !window.workbenchTrace && !host.address?.read() && !host.remember?.getItem("wb-run"))
    page.greeting = Promise.race([looked, new Promise((done) => setTimeout(done, READY_MS))]).then(() =>
      example(page, EXAMPLE, null),
    );
}

/** A given trace, else what the address asks for, else the run of this tab before a reload, else the example. */
export async function arrive(page, trace) {
  const { host } = page;
  if (trace) return show(page, store.fromTrace("given", trace, "recorded"));
  if (!page.catalogue) return;
  const query = host.address?.read() ?? "", earlier = await (page.earlier ?? memory.last(host));
  await models(page, new URLSearchParams(query));
  const asked = link.fromQuery(query, page.catalogue, form.clamp);
  const again = earlier && memory.isAsked(asked, earlier, memory.reloaded());
  if (again) await recall(page, earlier, asked.pin);
  settle(page, asked);
  page.embed ||= asked.embed;
  page.shownView = asked.view;
  if (again) return;
  if (asked.run) await linked(page, asked);
  else if (asked.recorded) await example(page, asked.recorded, asked.pin, asked);
  else if (asked.settings) await fork(page, asked);
  else {
    await (page.greeting ?? example(page, EXAMPLE, null));
    welcome(page);
  }
}

/** Show the settings of a link beside an empty stage, and decode them at once where the link asks for that. */
async function fork(page, asked) {
  page.wish = asked.pin;
  if (asked.starts && !page.embed && !memory.reloaded() && !asked.problems.length) return backend.start(page, false);
  if (!page.embed && !memory.reloaded()) page.note = "From a link: press Run to decode it here.";
}

/** Show the run of a link. One that the backend no longer has is decoded again, where the link holds its settings. */
async function linked(page, asked) {
  const answer = await page.host.call("fetch_trace", { run: asked.run, from: 0 }).catch(() => null);
  if (answer && !answer.error) {
    const header = asked.settings ? null : memory.inForce(answer);
    if (header) await assume(page, header);
    follow(page, asked.run, asked.pin, answer);
    return Object.assign(page.run, keys(page));
  }
  if (!asked.settings) return page.errors.push(answer?.error ?? GONE);
  await fork(page, { ...asked, starts: true });
  page.note = page.run
    ? "The app no longer has the run of this link, so it decodes it again."
    : "The app no longer has the run of this link: press Run to decode it again.";
}

/** Give the panel the settings of the example that plays. An example of another target than the app's is taken away:
 *  the panel would name one run and the stage show another. */
function welcome(page) {
  if (page.recorded !== EXAMPLE || page.formed) return;
  const { header } = page.run;
  if (isOfApp(page, header))
    return (page.choice = { ...choices.adopt(page.choice, header, page.catalogue), fixed: page.choice.fixed });
  fresh(page);
  page.run = null;
}

/** Whether a recording is of the target that the app was started with, as far as that is known. */
function isOfApp({ catalogue }, header) {
  return !catalogue || header.target === catalogue.chosen.target;
}

/** Say in the address what is shown. `page.describe` is its query. */
export function say(page) {
  if (!page.touched || !page.host.address || !page.catalogue) return;
  const query = page.describe();
  if (query !== page.said) page.host.address.write((page.said = query));
}

/** The same in a moment, once for all changes until then. */
export function saySoon(page) {
  if (page.touched && page.host.address) page.saying ??= setTimeout(() => ((page.saying = null), say(page)), SOON_MS);
}

/** The address changed under the page, by a step back or forth: the panel shows what it says, and it what the page
 *  shows. */
export async function stepped(page) {
  const { host } = page, query = host.address.read();
  page.said = null;
  if (page.catalogue && !store.isActive(page.run)) {
    await models(page, new URLSearchParams(query));
    const asked = link.fromQuery(query, page.catalogue, form.clamp);
    if (asked.recorded && asked.recorded !== page.recorded) {
      fresh(page);
      page.run = null;
      await example(page, asked.recorded, asked.pin, asked);
    } else settle(page, asked);
    if (asked.pin && page.run) page.selection.pin = asked.pin;
  }
  page.draw();
  say(page);
}

/** The panel for the models that an address names. */
async function models(page, query) {
  const { choice } = page, [target, drafter, method] = ["target", "drafter", "method"].map((name) => query.get(name));
  choice.fixed ||= ["target", "drafter", "prompt"].some((name) => query.has(name)); // a link says what was run
  if ((target ?? choice.target) === choice.target && (drafter ?? choice.drafter) === choice.drafter) return;
  Object.assign(choice, { ...(target && { target }), ...(drafter && { drafter }), ...(method && { method }) });
  await backend.look(page, target, drafter);
}

/** What an address asks for, in the panel; what it names wrongly is said. */
function settle(page, { choice, params, problems, settings }) {
  page.formed ||= settings;
  page.choice = choices.revise(
    { ...page.choice, ...choice, params: { ...page.choice.params, ...params } },
    page.catalogue,
  );
  if ("prompt" in choice)
    page.choice.preset = page.catalogue.presets.find((p) => p.prompt === choice.prompt)?.name ?? null;
  if (problems.length)
    page.notices.push({ kind: "note", message: "Left out of the link:", remedy: problems.join(" · ") });
}

/** Show a run that was started in another tab: the backend is asked for news every second or so, and the run is steered
 *  like one that was started here. @param {object|null} answer  of `fetch_trace`, from the first round on, if known */
export function follow(page, id, wanted = null, answer = null) {
  const run = Object.assign(store.newRun(`followed-${(page.channels += 1)}`), { id, heard: -Infinity });
  if (answer) store.apply(run, answer);
  page.run = Object.assign(run, { closed: store.isOver(run) });
  if (store.isActive(run)) page.wish = wanted; // its round may not be there yet
  else page.selection.pin = wanted;
  backend.watch(page); // all that was recorded until now
}

/** Show the run that this tab showed last, as far as it came, with its settings. It goes on if it has not ended. */
async function recall(page, answer, pin) {
  const header = memory.inForce(answer);
  if (header) await assume(page, header);
  page.run = Object.assign(backend.resume(page, answer), keys(page));
  if (store.isActive(page.run)) page.wish = pin; // its round may not be there yet
  else page.selection.pin = pin;
}

/** What a run keeps of the settings in the panel: what its baseline must share, and what its link says. */
function keys(page) {
  return { key: choices.pairing(page.choice, page.catalogue, form.clamp), asked: page.settings() };
}

/** Take the settings of a run over, as far as they can be used here. */
async function assume(page, header) {
  const { catalogue } = page;
  if (header.target !== page.choice.target && catalogue.targets.some((t) => t.name === header.target))
    await backend.look(page, header.target, header.drafter);
  page.choice = choices.adopt(page.choice, header, page.catalogue);
}

/** Play a recording of the gallery, or show a kept run. @param {object|null} asked  of an address that names it: its
 *  settings go into the panel, but those that the address has of its own. */
async function example(page, name, wanted, asked = null) {
  const answer = await page.host.call("recorded", { name }).catch(() => null);
  if (!answer?.header) {
    if (answer?.error && name !== EXAMPLE) page.errors.push(answer.error);
    return;
  }
  if (!asked && !isOfApp(page, answer.header)) return;
  if (answer.header.pictures?.length && page.host.go)
    return location.replace(address.write(`${page.host.base}/`, address.named("vision", name))); // drawn by its own tab
  if (page.run) return; // the visitor was faster
  page.recorded = name;
  if (asked) {
    const header = memory.inForce(answer);
    await assume(page, header);
    settle(page, { ...asked, problems: [] });
    const others = memory.others(asked, header);
    if (others.length)
      page.note = `The settings differ from the recording's (${others.join(", ")}): press Run to decode with them.`;
  }
  play(page, answer, wanted, address.isKept(name));
}

/** Let a trace arrive round by round; with a pin, where motion is unwanted, or for a run of one's own, at once. */
function play(page, trace, wanted, whole) {
  const run = /** @type {any} */ ({
    ...store.newRun(`recorded-${(page.channels += 1)}`),
    from: "recorded",
    closed: true,
    baseline: trace.baseline ?? null,
  });
  store.apply(run, { header: trace.header, state: "running" });
  page.run = run;
  page.selection.pin = wanted;
  const arrive = (n) => {
    store.apply(run, { rounds: trace.rounds.slice(0, n), seq: n });
    if (n === trace.rounds.length) {
      store.apply(run, { footer: trace.footer, warnings: trace.footer.warnings, state: "finished" });
      page.feeding = null;
    }
    page.draw();
  };
  const still = whole || wanted !== null || matchMedia("(prefers-reduced-motion: reduce)").matches;
  page.feeding = { label: `${EXAMPLE_SPEED}× of its speed`, speed: EXAMPLE_SPEED, stop: () => {} };
  page.feeding.stop = player.feed({ rounds: trace.rounds, speed: EXAMPLE_SPEED, still, arrive });
  if (still) page.feeding = null;
}

/** Show a record that is complete. */
export function show(page, run) {
  fresh(page);
  page.run = Object.assign(run, { closed: true });
  page.draw();
}

/** The trace that another view left for this one; null when there is none. It is handed over once. */
export function handed() {
  const trace = window.workbenchTrace ?? null;
  window.workbenchTrace = null;
  return trace;
}

/** Show what another view handed over, unless a run is in progress here. */
export function take(page) {
  const trace = handed();
  if (!trace) return;
  if (store.isActive(page.run))
    backend.fail(page, { message: "A run is in progress.", remedy: "Stop it, then open the other one again." });
  else show(page, store.fromTrace(`handed-${(page.channels += 1)}`, trace, "recorded"));
}

/** Read a trace file that the visitor chose. */
export async function open(page, file) {
  if (!file) return;
  if (store.isActive(page.run))
    return backend.fail(page, { message: "A run is in progress.", remedy: "Stop it, then open the file." });
  try {
    if (file.size > traces.MAX_BYTES)
      throw new traces.TraceError(
        `The file has ${(file.size / 1e6).toFixed(0)} MB.`,
        `At most ${traces.MAX_BYTES / 2 ** 20} MiB can be opened.`,
      );
    const { trace, notes } = traces.read(await file.text(), page.catalogue?.schema ?? 1);
    show(page, store.fromTrace(`imported-${(page.channels += 1)}`, trace, "imported", notes));
  } catch (problem) {
    if (!problem.remedy) throw problem;
    backend.fail(page, { message: `${file.name}: ${problem.message}`, remedy: problem.remedy });
  }
}

/** The run that is shown was kept: from now on its address is the one of the page. */
export function kept(page, id) {
  if (store.isActive(page.run)) return;
  Object.assign(page, { recorded: id, formed: false, touched: true });
}

/** Before another run is shown: nothing of the last one stays selected, played or said. */
export function fresh(page) {
  page.feeding?.stop();
  player.stop(page);
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
