/** The Sweep view: a grid of settings, measured cell by cell. Connects panel and drawings with a host; everything is
 *  drawn from the sweep as plain data, which grows with each message. */

import * as alerts from "../shared/alerts.js";
import * as copying from "../shared/copying.js";
import * as exports from "../shared/exports.js";
import * as form from "../shared/form.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import * as sweepchoice from "./choice.js";
import * as keptsweeps from "./keptsweeps.js";
import * as sweeppanel from "./panel.js";
import * as sweepstage from "./stage.js";

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export function mount(el, { host }) {
  return jobs.open(el, {
    parts: sweepstage.build(el, host),
    host,
    choices: sweepchoice,
    state: { sweep: null, cells: new Map(), kept: [], opened: null, metric: "speedup", chosen: null },
    draw,
    wire,
    press,
    onJob,
    adopt,
    arrived: list,
    exports: menu,
  });
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
  const found = await alerts.ask(page, "open", { id });
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

function wire(page, on, click) {
  const { parts } = page;
  on("wb:param", ({ name, value, note }) => {
    page.note = note;
    jobs.choose(page, { params: { ...page.choice.params, [name]: value } });
  });
  on("wb:kept", ({ id }) => open(page, id));
  on("wb:cell", ({ id }) => {
    page.chosen = id;
    page.draw();
  });
  click("openRun", () => jobs.openRun(page, { job: page.job, cell: page.chosen }));
  parts.metric.addEventListener("change", () => {
    page.metric = parts.metric.value;
    page.draw();
  });
  click("codeCopy", async () => {
    const done = await copying.put(page.sweep?.code ?? "");
    kit.write(parts.codeNote, done ? "copied" : "select the text of the command to copy it");
  });
}

function press(page, button) {
  if (button === "stop")
    jobs.stop(
      page,
      "sweep",
      "Check that the app is still running; finished cells are kept, and Measure continues with the rest.",
    );
  else if ((button === "measure" || button === "anew") && !page.channel) measure(page, button === "anew");
  page.draw();
}

function measure(page, anew) {
  const { choice, catalogue } = page, { problem } = sweepchoice.plan(choice, catalogue);
  page.errors = problem ? [{ kind: "error", message: problem, remedy: "Change the axis in the panel." }] : [];
  if (problem) return;
  const request = { ...sweepchoice.request(choice, catalogue, form.clamp), anew };
  jobs.start(page, "sweep", request, { opened: null, sweep: null, cells: new Map(), chosen: null });
}

function onJob(page, { sweep }) {
  if (!sweep) return;
  const before = page.sweep?.done ?? 0;
  merge(page, sweep);
  if (sweep.last) {
    page.channel = null;
    list(page);
  }
  if (sweep.last || sweep.done !== before)
    page.parts.live.textContent = `${sweep.done} of ${sweep.total} cells${sweep.last ? (sweep.complete ? ": the sweep is complete" : ": stopped, finished cells are kept") : ""}`;
}

/** Return the Export menu. */
function menu(page) {
  const name = ({ sweep }, ending, part = "") =>
    [`sweep_${Object.keys(sweep.axes).join("-")}`, exports.clean(part)].filter(Boolean).join("_") + `.${ending}`;
  const text = (sweep) => JSON.stringify({ ...sweep, cells: [...page.cells.values()] }, null, 1);
  return {
    title: "The sweep",
    nothing: "Nothing to export yet: press Measure.",
    data: () => (page.sweep?.sweep ? page.sweep : null),
    items: [
      jobs.tableItem(page, "csv", "CSV", "one row per cell", name),
      jobs.tableItem(page, "parquet", "Parquet", "one row per cell", name),
      {
        kind: "json",
        text: "JSON",
        about: "everything",
        act: exports.file((sweep) => name(sweep, "json"), "application/json", text),
      },
    ],
    stage: page.parts.stage,
    note: () => `${page.parts.badgeText.textContent} · Speculative Decoding Workbench`,
    name,
  };
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
