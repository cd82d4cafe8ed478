/** Common parts of Compare and Sweep, the pages of long measurements: catalogue, example, the job and its messages. */

import * as alerts from "./alerts.js";
import * as controller from "./controller.js";
import * as exports from "./exports.js";
import * as form from "./form.js";
import * as kit from "./kit.js";

/** The backend sends a message twice per second while it measures. */
const SILENCE_MS = 5000;
const LOADING_MS = 3000;

/** Return the state of a page before anything is measured. */
function newState() {
  return { catalogue: null, choice: null, job: null, channel: null, from: "live", lastMessageAt: 0, silent: 0 };
}

/** Build the page of a measurement in `el`: the panel from catalogue and address, and a recorded example.
 *  @param {any} el  @param {any} view  as `controller.open` takes it, with `choices`: the module with `fromQuery` and
 *    `toQuery`; `loadCatalogue(page)`: of another target; `adopt(page, made)`: show a recorded example if nothing else
 *    is shown; `onJob(page, message)`: a message of the job; `arrived(page)`: the panel is complete */
export async function open(el, { state, choices, adopt, onJob, arrived, ...view }) {
  const load = view.loadCatalogue ?? loadCatalogue;
  const page = await controller.open(el, {
    ...view,
    state: { ...newState(), ...state },
    main: "measure",
    query: ({ choice, catalogue }) => choices.toQuery(choice, catalogue),
    tick: watch,
    onMessage: (page, message) => onMessage(page, message, onJob),
    wire: (page, on, click) => {
      on("wb:choose", (change) => choose(page, change, load));
      view.wire(page, on, click);
    },
    arrive: async (page) => {
      example(page, adopt);
      const catalogue = await alerts.ask(page, "catalogue");
      if (catalogue) {
        Object.assign(page, { catalogue, plotly: catalogue.plotly });
        const { choice, problems } = choices.fromQuery(page.host.address.read(), catalogue, form.clamp);
        page.choice = choice;
        if (problems.length) page.errors.push(alerts.ignored(problems));
        if (choice.target !== catalogue.chosen.target) await load(page);
      }
    },
    stepped: (page) => stepped(page, choices, load),
  });
  page.every(LOADING_MS, () => controller.isOpen(page) && pollLoading(page));
  arrived(page);
  return page;
}

/** Change the panel's settings, and write them to the address. */
export function choose(page, change, load = loadCatalogue) {
  const target = "target" in change && change.target !== page.choice.target;
  Object.assign(page.choice, change);
  page.touched = true;
  page.host.address.write(page.query());
  page.draw();
  if (target) load(page);
}

/** React to a step back or forth in the browser's history: load the settings of the address. If it has none, or a
 *  measurement is running, write the panel's settings to it. */
async function stepped(page, choices, load) {
  const { host, catalogue } = page, query = host.address.read();
  if (!catalogue) return;
  if (page.channel || new URLSearchParams(query).size < 2) return choose(page, {}, load);
  page.choice = choices.fromQuery(query, catalogue, form.clamp).choice;
  if (page.choice.target !== catalogue.chosen.target) await load(page);
  page.draw();
}

/** Show a recorded example if nothing was measured yet; it needs no backend. A link with settings shows none, because
 *  the example has other settings. */
async function example(page, adopt) {
  if (new URLSearchParams(page.host.address.read()).size > 1) return;
  const found = await page.host.call("example", {}).catch(() => null);
  if (!found?.made || !Object.keys(found.made).length || page.channel) return;
  page.plotly ??= found.plotly;
  adopt(page, found.made);
  page.draw();
}

/** Apply a message of the page's job. */
function onMessage(page, message, onJob) {
  if (!page.channel || message.channel !== page.channel) return;
  Object.assign(page, { lastMessageAt: performance.now(), silent: 0 });
  page.job = message.job ?? page.job;
  if (message.error) {
    page.errors.push({ ...message.error, kind: "error" });
    page.channel = null;
    page.parts.live.textContent = message.error.message;
  }
  onJob(page, message);
  page.draw();
}

/** Return a unique name for the channel of a job's messages. */
export function newChannel(kind) {
  return `${kind}-${Math.random().toString(36).slice(2, 10)}`;
}

/** Start a job with a request; its messages arrive on the page's own channel. @param {object} state  of the page */
export function start(page, kind, request, state) {
  const channel = newChannel(kind);
  Object.assign(page, { job: null, from: "live", lastMessageAt: performance.now() }, state, { channel });
  page.host.decode({ ...request, channel });
  page.parts.live.textContent = "Measuring";
}

/** Stop the page's job; a backend that does not answer is given up. @param {string} what  name of the job
 *  @param {string} remedy */
export function stop(page, what, remedy) {
  if (page.silent) {
    Object.assign(page, { channel: null, silent: 0 });
    alerts.fail(page, { message: `The app did not answer, so the ${what} was stopped.`, remedy });
  } else if (page.channel && page.job) alerts.ask(page, "stop", { job: page.job });
}

/** Detect a silent backend: the app may have been stopped. */
function watch(page) {
  const quiet = page.channel && page.job ? performance.now() - page.lastMessageAt : 0,
    silent = quiet > SILENCE_MS ? Math.round(quiet / 1000) : 0;
  if (silent === page.silent) return;
  page.silent = silent;
  page.draw();
}

/** While a target is loading, poll its progress; the rest of the panel stays. */
export async function pollLoading(page) {
  if (!page.catalogue?.targets.some((t) => t.loading)) return;
  const found = await page.host.call("catalogue", { target: page.choice.target }).catch(() => null);
  if (!found?.targets) return;
  page.catalogue = { ...page.catalogue, targets: found.targets };
  page.draw();
}

/** Fetch the catalogue of the chosen target; an unknown target is reported and replaced. */
export async function loadCatalogue(page) {
  const found = await alerts.ask(page, "catalogue", { target: page.choice.target });
  if (!found) return null;
  if (found.problem) alerts.fail(page, found.problem);
  Object.assign(page, { catalogue: found, choice: { ...page.choice, target: found.chosen.target } });
  page.draw();
  return found;
}

/** Return an item of the Export menu: a table that the server makes of the job on the page.
 *  @param {string} kind  ending of the file  @param {string} about
 *  @param {(data: any, kind: string) => string} name */
export function tableItem(page, kind, text, about, name) {
  const make = () => exports.bytesOf(page.host, "table", { job: page.job, kind });
  return {
    kind,
    text,
    about,
    act: exports.file((data) => name(data, kind), "", make),
    off: () => (page.job ? "" : "available only for measurements made by this app"),
  };
}

/** Show a run in the Live view, which takes it when its tab opens. */
export async function openRun(page, request) {
  const trace = await alerts.ask(page, "trace", request);
  if (!trace) return;
  window.workbenchTrace = trace;
  page.host.go?.("live");
}

/** Draw the progress of a measurement. @param {any} page  @param {{text: string, note: string, done: number, total:
 *  number,
 *  label: string}} data */
export function progress({ parts }, { text, note, done, total, label }) {
  kit.write(parts.progressText, text.replace(/^./, (c) => c.toUpperCase()));
  kit.write(parts.progressNote, note);
  parts.progressBar.setAttribute("aria-label", label);
  if (total) {
    parts.progressBar.max = total;
    parts.progressBar.value = done;
  } else parts.progressBar.removeAttribute("value");
}

/** Format the remaining time; empty if unknown. Pure. */
export function remaining(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return ` · about ${seconds < 90 ? `${Math.max(1, Math.ceil(seconds))} s` : `${Math.ceil(seconds / 60)} min`} left`;
}
