/** The Sweep view: a grid of settings, measured cell by cell. Connects panel and drawings with a host; everything is
 *  drawn from the sweep as plain data, which grows with each message. */

import * as exports from "../shared/exports.js";
import * as form from "../shared/form.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import * as sweepchoice from "./choice.js";
import * as keptsweeps from "./keptsweeps.js";
import * as sweeppanel from "./panel.js";
import * as sweepstage from "./stage.js";

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const parts = sweepstage.build(el, host);
  const page = {
    el,
    parts,
    host,
    catalogue: null,
    choice: null,
    sweep: null,
    cells: new Map(),
    job: null,
    from: "live",
    kept: [],
    opened: null,
    channel: null,
    errors: [],
    note: "",
    metric: "speedup",
    chosen: null,
    lastMessageAt: 0,
    silent: 0,
  };
  const { loadCatalogue } = jobs, { fromQuery } = sweepchoice;
  await jobs.begin(page, { wire, onMessage, draw, loadCatalogue, fromQuery, adopt });
  list(page);
  return page;
}

/** Show the recorded example if nothing else is shown. */
function adopt(page, sweep) {
  if (page.sweep) return;
  Object.assign(page, { from: "example", metrics: sweep.metrics, theory: sweep.theory });
  merge(page, sweep);
}

/** Merge a message or a kept sweep; cells are updated one by one. */
function merge(page, { cells, ...rest }) {
  page.sweep = { ...page.sweep, ...rest };
  for (const cell of cells) page.cells.set(cell.id, { ...cell, place: cell.at.join() });
}

/** Fetch the list of kept sweeps. */
async function list(page) {
  const found = await page.host.call("kept", {}).catch(() => null);
  page.kept = found?.kept ?? page.kept;
  page.draw();
}

/** Open a kept sweep, with its settings in the panel. */
async function open(page, id) {
  if (page.channel) return;
  page.errors = [];
  const found = await jobs.ask(page, "open", { id });
  if (!found) return;
  Object.assign(page, { job: found.job, from: "kept", sweep: null, cells: new Map(), chosen: null, opened: id });
  merge(page, found.sweep);
  const before = page.choice.target;
  page.choice = keptsweeps.choiceOf(found.sweep.sweep, page.choice);
  page.host.address.write(sweepchoice.toQuery(page.choice, page.catalogue));
  page.parts.stage.scrollIntoView?.({ block: "start" }); // the list is below what it opens
  page.parts.live.textContent = `Opened: ${found.sweep.done} of ${found.sweep.total} cells, measured ${found.sweep.date}`;
  page.draw();
  if (page.choice.target !== before) jobs.loadCatalogue(page);
}

function wire(page) {
  const { el, parts, host } = page,
    on = (name, act) => el.addEventListener(name, (event) => act(event.detail, event)),
    click = (part, act) => parts[part].addEventListener("click", act);
  const choose = (change) => {
    Object.assign(page.choice, change);
    host.address.write(sweepchoice.toQuery(page.choice, page.catalogue));
    page.draw();
  };
  on("wb:redraw", page.draw);
  on("wb:choose", (change) => {
    const target = "target" in change && change.target !== page.choice.target;
    choose(change);
    if (target) jobs.loadCatalogue(page);
  });
  on("wb:param", ({ name, value, note }) => {
    page.note = note;
    choose({ params: { ...page.choice.params, [name]: value } });
  });
  on("wb:press", ({ button }) => press(page, button));
  on("wb:kept", ({ id }) => open(page, id));
  on("wb:cell", ({ id }) => {
    page.chosen = id;
    page.draw();
  });
  click("theme", () => host.theme());
  click("copy", () => jobs.copyLink(page, sweepchoice.toQuery(page.choice, page.catalogue)));
  click("openRun", () => jobs.openRun(page, { job: page.job, cell: page.chosen }));
  jobs.wireMenu(page, (kind) => save(page, kind));
  parts.metric.addEventListener("change", () => {
    page.metric = parts.metric.value;
    page.draw();
  });
  parts.codeCopy.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(page.sweep?.code ?? "").then(() => true, () => false);
    kit.write(parts.codeNote, done ? "copied" : "select the text to copy it");
  });
  el.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "Enter") return;
    event.preventDefault();
    press(page, "measure");
  });
}

function press(page, button) {
  if (button === "stop" && page.silent)
    jobs.stopWaiting(
      page,
      "sweep",
      "Check that it is still running; finished cells are kept, and Measure continues with the rest.",
    );
  else if (button === "stop" && page.job && page.channel) jobs.ask(page, "stop", { job: page.job });
  else if ((button === "measure" || button === "anew") && !page.channel) measure(page, button === "anew");
  page.draw();
}

function measure(page, anew) {
  const { choice, catalogue } = page, { problem } = sweepchoice.plan(choice, catalogue);
  page.errors = problem ? [{ kind: "error", message: problem, remedy: "Change the axis in the panel." }] : [];
  if (problem) return;
  page.channel = jobs.channel("sweep");
  Object.assign(page, { job: null, from: "live", opened: null, sweep: null, cells: new Map(), chosen: null });
  page.host.decode({ ...sweepchoice.request(choice, catalogue, form.clamp), anew, channel: page.channel });
  page.parts.live.textContent = "Measuring";
}

function onMessage(page, message) {
  if (!page.channel || message.channel !== page.channel) return;
  Object.assign(page, { lastMessageAt: performance.now(), silent: 0 });
  page.job = message.job ?? page.job;
  if (message.error) {
    page.errors.push({ ...message.error, kind: "error" });
    page.channel = null;
    page.parts.live.textContent = message.error.message;
  }
  if (message.sweep) {
    const rest = message.sweep, before = page.sweep?.done ?? 0;
    merge(page, rest);
    if (rest.last) {
      page.channel = null;
      list(page);
    }
    if (rest.last || rest.done !== before)
      page.parts.live.textContent = `${rest.done} of ${rest.total} cells${rest.last ? (rest.complete ? ": the sweep is complete" : ": stopped, finished cells are kept") : ""}`;
  }
  page.draw();
}

function save(page, kind) {
  const { sweep, cells, job } = page, name = `sweep_${Object.keys(sweep.sweep.axes).join("-")}.${kind}`;
  if (kind === "json")
    exports.save(name, JSON.stringify({ ...sweep, cells: [...cells.values()] }, null, 1), "application/json");
  else jobs.saveTable(page, { job, kind }, name);
}

function draw(page) {
  if (page.catalogue && page.choice)
    sweeppanel.render(page.parts.side, {
      catalogue: page.catalogue,
      choice: page.choice,
      measuring: page.channel !== null,
      kept: page.from === "example" ? 0 : (page.sweep?.done ?? 0),
      note: page.note,
      draw: form.render,
    });
  sweepstage.draw(page);
}
