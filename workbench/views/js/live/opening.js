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
/** After a change, so long until the address says it: typing is faster than a browser lets addresses change. */
const SOON_MS = 250;

/** The recording that plays before anything was run. */
export const EXAMPLE = "draft-tree";

/** Play the example while the backend is still starting, where nothing else is to be shown. */
export function greet(page) {
  const { host } = page;
  page.earlier = memory.last(host); // asked for early: a run that goes on is freed when nobody follows it
  if (host.call && !window.workbenchTrace && !host.address?.read() && !host.remember?.getItem("wb-run"))
    page.greeting = example(page, EXAMPLE, null);
}

/** A given trace, else what the address asks for, else the run of this tab before a reload, else the example. */
export async function arrive(page, trace) {
  const { host } = page;
  if (trace) return show(page, store.fromTrace("given", trace, "recorded"));
  if (!page.catalogue) return;
  const query = host.address?.read() ?? "", earlier = await (page.earlier ?? memory.last(host));
  await models(page, new URLSearchParams(query));
  const asked = link.fromQuery(query, page.catalogue, form.clamp);
  const again =
    !asked.run && !asked.recorded && earlier && (memory.reloaded() || memory.fits(asked, memory.inForce(earlier)));
  if (again) await recall(page, earlier, asked.pin);
  settle(page, asked);
  page.embed ||= asked.embed;
  page.shownView = asked.view;
  if (again) return;
  if (asked.run) follow(page, asked.run, asked.pin);
  else if (asked.recorded) await example(page, asked.recorded, asked.pin, asked);
  else {
    page.wish = asked.settings ? asked.pin : null;
    if (asked.settings && !page.embed && !memory.reloaded()) page.note = "From a link: press Run to decode it here.";
    const own = page.catalogue.methods.find((m) => m.name === asked.choice.method)?.head;
    if (!own || !asked.settings) await (page.greeting ?? introduce(page, asked.choice.method)); // of another head
  }
}

/** A recording of the method that an address names, so that the picture is of what the panel says; else the example. */
async function introduce(page, method) {
  if (method && method !== EXAMPLE) await example(page, method, null, null, true);
  if (!page.run) await example(page, EXAMPLE, null);
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

/** Show a run that somebody else started: asked after every second or so, and steered like one's own. */
export function follow(page, id, wanted = null) {
  page.run = Object.assign(store.newRun(`followed-${(page.channels += 1)}`), { id, heard: -Infinity });
  page.selection.pin = wanted;
  backend.watch(page); // all that was recorded until now
}

/** Show the run that this tab showed last, as far as it came, with its settings. It goes on if it has not ended. */
async function recall(page, answer, pin) {
  const header = memory.inForce(answer);
  if (header) await assume(page, header);
  page.run = Object.assign(backend.resume(page, answer), {
    key: choices.pairing(page.choice, page.catalogue, form.clamp),
  });
  if (store.isActive(page.run)) page.wish = pin; // its round may not be there yet
  else page.selection.pin = pin;
}

/** Take the settings of a run over, as far as they can be used here. */
async function assume(page, header) {
  const { catalogue } = page;
  if (header.target !== page.choice.target && catalogue.targets.some((t) => t.name === header.target))
    await backend.look(page, header.target, header.drafter);
  page.choice = choices.adopt(page.choice, header, page.catalogue);
}

/** Play a recording of the gallery, or show a kept run. @param {object|null} asked  of an address that names it: its
 *  settings go into the panel, but those that the address has of its own. @param {boolean} perhaps  whether nothing is
 *  said where there is none that this page can show */
async function example(page, name, wanted, asked = null, perhaps = false) {
  const answer = await page.host.call("recorded", { name }).catch(() => null);
  if (!answer?.header) {
    if (answer?.error && name !== EXAMPLE && !perhaps) page.errors.push(answer.error);
    return;
  }
  if (perhaps && answer.header.pictures?.length) return;
  if (answer.header.pictures?.length && page.host.go)
    return location.replace(address.write(`${page.host.base}/`, address.named("vision", name))); // drawn by its own tab
  if (page.run) return; // the visitor was faster
  page.recorded = name;
  if (asked) {
    await assume(page, memory.inForce(answer));
    settle(page, { ...asked, problems: [] });
  }
  play(page, answer, wanted, address.isKept(name));
}

/** Let a trace arrive round by round; with a pin, where motion is unwanted, or for a run of one's own, at once. */
function play(page, trace, wanted, whole) {
  const run = { ...store.newRun(`recorded-${(page.channels += 1)}`), from: "recorded", closed: true };
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

/** What embedding and the address say about the frame. */
export function dress(page) {
  const { el, parts, host } = page;
  el.classList.toggle("is-embedded", page.embed || !host.call);
  el.dataset.view = page.shownView ?? "";
  parts.copy.hidden = !host.address;
  parts.open.hidden = !host.address || page.embed;
  parts.runHere.hidden = !page.embed || !host.decode;
  if (page.shownView && !page.embed) page.actions.view({ tokens: 1, tree: 2, clock: 3, curves: 4 }[page.shownView]);
}
