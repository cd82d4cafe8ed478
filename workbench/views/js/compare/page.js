/** The Compare view: measure lanes one at a time on the device, then replay them as a race on one clock. Connects panel
 *  and drawings with a host; everything is drawn from one comparison as plain data. */

import * as prompthistory from "../shared/prompthistory.js";
import * as comparechoice from "./choice.js";
import * as comparelanes from "./lanes.js";
import * as comparelive from "./live.js";
import * as comparerace from "./race.js";
import * as comparestage from "./stage.js";
import * as comparetable from "./table.js";
import * as exports from "../shared/exports.js";
import * as form from "../shared/form.js";
import * as jobs from "../shared/jobs.js";
import * as roles from "../shared/roles.js";
import * as speedup from "../shared/speedup.js";

const SCHEMA = 3;
const STORAGE_KEY = "wb-compare-last";

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export function mount(el, { host }) {
  return jobs.open(el, {
    parts: comparestage.build(el, host),
    host,
    choices: comparechoice,
    state: {
      comparison: null,
      step: null,
      pin: pinned(host),
      race: comparerace.newRace(),
      prompt: 0,
      shown: null,
      touched: false,
    },
    draw,
    wire,
    press,
    keys: (page, { key }) =>
      ({
        " ": () => press(page, "play"),
        ArrowLeft: () => comparerace.nudge(page, -1),
        ArrowRight: () => comparerace.nudge(page, 1),
        Home: () => comparerace.seek(page, 0),
        End: () => comparerace.seek(page, 1),
      })[key],
    onJob,
    loadCatalogue,
    adopt,
    arrived: restore,
    open,
    exports: menu,
  });
}

/** Fetch the catalogue for another target. */
async function loadCatalogue(page) {
  const found = await jobs.loadCatalogue(page);
  if (!found) return;
  page.choice = comparechoice.revise(page.choice, found);
  page.draw();
}

function wire(page, on, click) {
  const { parts } = page, choose = (change) => jobs.choose(page, change, loadCatalogue);
  on("wb:picture", ({ scene }) =>
    choose(comparechoice.take(page.choice, page.catalogue, scene, window.workbenchPicture?.())),
  );
  on("wb:param", ({ name, value, note }, event) => {
    const lane = event.target.closest("[data-lane]");
    page.note = note;
    if (lane) {
      const lanes = page.choice.lanes.map((each, i) =>
        i === Number(lane.dataset.lane) ? { ...each, params: { ...each.params, [name]: value } } : each,
      );
      choose({ lanes });
    } else choose({ sampling: { ...page.choice.sampling, [name]: value } });
  });
  click("play", () => press(page, "play"));
  parts.slider.addEventListener("input", () => comparerace.seek(page, Number(parts.slider.value) / 1000));
  parts.speed.addEventListener("change", () => (page.race.speed = Number(parts.speed.value)));
  parts.prompt.addEventListener("change", () => {
    page.prompt = Number(parts.prompt.value);
    comparerace.seek(page, 1);
  });
  parts.lane.addEventListener("change", () => {
    page.shown = parts.lane.value;
    page.draw();
  });
}

function press(page, button, { lane = "" } = {}) {
  const { host } = page;
  if (button === "measure" && !measuring(page)) measure(page);
  else if (button === "stop") jobs.stop(page, "measurement", "Check that the app is still running, then measure again.");
  else if (button === "race" || button === "play") comparerace.toggle(page, button === "race");
  else if (button === "pin") {
    const at = page.comparison.lanes.find((each) => each.name === lane), key = comparetable.key(page.comparison, at);
    page.pin =
      page.pin?.key === key
        ? null
        : { key, name: at.name, from: comparetable.where(page.comparison), figures: at.figures };
    host.remember?.[page.pin ? "setItem" : "removeItem"]("wb-compare-pin", JSON.stringify(page.pin));
    page.parts.live.textContent = page.pin
      ? `${at.name} is the reference: all metrics show the difference from it`
      : "Reference removed";
  } else if (button === "live") jobs.openRun(page, { job: page.job, lane, prompt: page.prompt });
  page.draw();
}

export function measuring(page) {
  return page.channel !== null;
}

function pinned(host) {
  try {
    const pin = JSON.parse(host.remember?.getItem("wb-compare-pin") ?? "null");
    // a pin of schema 1 has medians and is dropped
    return typeof pin?.figures?.speedup?.value === "number" && typeof pin.name === "string" ? pin : null;
  } catch {
    return null;
  }
}

function measure(page) {
  const { choice, catalogue } = page, request = comparechoice.request(choice, catalogue, roles, form.clamp);
  const problem = comparechoice.problem(choice, catalogue);
  page.errors = problem ? [{ ...problem, kind: "error" }] : [];
  if (problem || !catalogue) return;
  for (const text of choice.pictures ? [] : comparechoice.ownTexts(choice)) prompthistory.remember(text);
  comparerace.stop(page);
  page.pictured = request.images[0];
  page.race.t = Infinity; // show complete runs until a race starts
  const asking = page.query();
  jobs.start(page, "compare", request, { asking, comparison: null, step: null, level: 0, prompt: 0, shown: null });
}

function onJob(page, { step }) {
  if (!step) return;
  const before = page.step;
  page.step = step;
  if (step.comparison) page.comparison = comparelive.merge(page.comparison, step.comparison);
  const level = comparelive.level(page.comparison), grew = level > page.level;
  if (step.comparison && (step.last || grew)) store(page);
  if (step.last) ended(page);
  else if (before && grew) page.parts.live.textContent = comparetable.announcement(step, speedup);
  page.level = level;
}

/** Convert a comparison of an older schema to the current figures. */
function current(comparison) {
  return comparison.schema < SCHEMA ? comparetable.recompute(comparison, speedup) : comparison;
}

/** Show the recorded example if nothing else is shown. */
function adopt(page, comparison) {
  if (page.comparison || comparison.schema > SCHEMA) return;
  Object.assign(page, { comparison: current(comparison), from: "example" });
  comparerace.seek(page, 1);
}

/** Store the measured comparison for this browser tab, so that a reload (needed after the app was restarted) loses
 *  nothing. */
function store({ host, asking, job, comparison }) {
  try {
    host.remember?.setItem(STORAGE_KEY, JSON.stringify({ query: asking, job, comparison }));
  } catch {
    host.remember?.removeItem(STORAGE_KEY); // too large for the browser's storage
  }
}

/** Restore the stored comparison if the address names the same lanes and prompts. */
function restore(page) {
  const { host, choice, catalogue } = page;
  if (!catalogue || (page.comparison && page.from !== "example") || measuring(page)) return;
  try {
    const stored = JSON.parse(host.remember?.getItem(STORAGE_KEY) ?? "null");
    if (stored?.comparison?.schema !== SCHEMA || stored.query !== comparechoice.toQuery(choice, catalogue)) return;
    Object.assign(page, { comparison: stored.comparison, job: stored.job, from: "live" });
    comparerace.seek(page, 1);
  } catch {
    host.remember?.removeItem(STORAGE_KEY);
  }
}

function ended(page) {
  page.channel = null;
  page.parts.live.textContent = comparetable.announcement(page.step, speedup);
  if (page.comparison?.lanes.some((lane) => lane.race?.[0])) comparerace.toggle(page, true);
}

/** Return the Export menu. */
function menu(page) {
  const name = ({ machine }, ending, part = "") =>
    [`comparison_${(machine.date ?? "").replace(/[^0-9]+/g, "-").replace(/-$/, "")}`, exports.clean(part)]
      .filter(Boolean)
      .join("_") + `.${ending}`;
  const text = (comparison) => JSON.stringify(comparison, null, 1);
  return {
    title: "The comparison",
    nothing: "Nothing to export yet: press Measure.",
    data: () => page.comparison,
    items: [
      {
        kind: "json",
        text: "JSON",
        about: "a file that this page can open again",
        act: exports.file((comparison) => name(comparison, "json"), "application/json", text),
      },
      jobs.tableItem(page, "csv", "CSV", "one row per run", name),
      jobs.tableItem(page, "parquet", "Parquet", "one row per run", name),
    ],
    stage: page.parts.stage,
    note: () => `${page.parts.badgeText.textContent} · Speculative Decoding Workbench`,
    name,
  };
}

/** Open a comparison saved as JSON. */
export async function open(page, file) {
  const fail = (message, remedy) => page.errors.push({ kind: "error", message: `${file.name}: ${message}`, remedy });
  if (!file || measuring(page)) return;
  page.errors = [];
  try {
    const comparison = JSON.parse(await file.text());
    if (
      !Array.isArray(comparison?.lanes) ||
      !comparison.settings ||
      !comparison.prompts?.length ||
      !comparison.lanes.every((lane) => lane.figures && typeof lane.name === "string")
    )
      fail("not a comparison.", "Open a JSON file written by Export or by workbench compare --out x.json.");
    else if (comparison.schema > SCHEMA)
      fail(`schema ${comparison.schema} is newer than ${SCHEMA}.`, "Update the workbench to open it.");
    else {
      Object.assign(page, {
        comparison: current(comparison),
        job: null,
        step: null,
        from: "imported",
        prompt: 0,
        shown: null,
      });
      comparerace.seek(page, 1);
    }
  } catch {
    fail("not valid JSON.", "Open a JSON file written by Export.");
  }
  page.draw();
}

function draw(page) {
  if (!page.catalogue || !page.choice) return comparestage.draw(page);
  comparelanes.render(page.parts.side, {
    catalogue: page.catalogue,
    choice: page.choice,
    measuring: measuring(page),
    comparison: page.comparison,
    note: page.note,
    draw: form.render,
  });
  comparestage.draw(page);
}
