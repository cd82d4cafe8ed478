/** The Compare view: measure lanes one at a time on the device, then replay them as a race on one clock. Connects panel
 *  and drawings with a host; everything is drawn from one comparison as plain data. */

import * as comparechoice from "./choice.js";
import * as comparelanes from "./lanes.js";
import * as comparelive from "./live.js";
import * as comparerace from "./race.js";
import * as comparestage from "./stage.js";
import * as comparetable from "./table.js";
import * as copying from "../shared/copying.js";
import * as exports from "../shared/exports.js";
import * as form from "../shared/form.js";
import * as jobs from "../shared/jobs.js";
import * as roles from "../shared/roles.js";
import * as speedup from "../shared/speedup.js";

const SCHEMA = 3;
const STORAGE_KEY = "wb-compare-last";

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const parts = comparestage.build(el, host);
  const page = {
    el,
    parts,
    host,
    catalogue: null,
    choice: null,
    comparison: null,
    job: null,
    channel: null,
    step: null,
    errors: [],
    note: "",
    pin: pinned(host),
    race: comparerace.newRace(),
    prompt: 0,
    shown: null,
    from: "live",
    lastMessageAt: 0,
    silent: 0,
    touched: false,
  };
  await jobs.begin(page, { wire, onMessage, draw, loadCatalogue, fromQuery: comparechoice.fromQuery, adopt });
  restore(page);
  return page;
}

/** Fetch the catalogue for another target. */
async function loadCatalogue(page) {
  const found = await jobs.loadCatalogue(page);
  if (!found) return;
  page.choice = comparechoice.revise(page.choice, found);
  page.draw();
}

function wire(page) {
  const { el, parts, host } = page,
    on = (name, act) => el.addEventListener(name, (event) => act(event.detail, event)),
    click = (part, act) => parts[part].addEventListener("click", act);
  const choose = (change) => {
    Object.assign(page.choice, change);
    page.touched = true;
    host.address.write(comparechoice.toQuery(page.choice, page.catalogue));
    page.draw();
  };
  on("wb:redraw", page.draw);
  on("wb:picture", ({ scene }) =>
    choose(comparechoice.take(page.choice, page.catalogue, scene, window.workbenchPicture?.())),
  );
  on("wb:choose", (change) => {
    const target = "target" in change && change.target !== page.choice.target;
    choose(change);
    if (target) loadCatalogue(page);
  });
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
  on("wb:press", ({ button, lane }) => press(page, button, lane));
  click("play", () => press(page, "play"));
  click("theme", () => host.theme());
  copying.listen(el);
  click("copy", () => jobs.copyLink(page, comparechoice.toQuery(page.choice, page.catalogue)));
  click("open", () => parts.file.click());
  jobs.wireMenu(page, (kind) => save(page, kind));
  parts.file.addEventListener("change", () => open(page, parts.file.files[0]).finally(() => (parts.file.value = "")));
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
  el.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      press(page, "measure");
    } else if (
      parts.stage.contains(event.target) &&
      !event.target.closest("button, select, input, a, textarea") &&
      !event.ctrlKey &&
      !event.metaKey
    ) {
      const act = {
        " ": () => press(page, "play"),
        ArrowLeft: () => comparerace.nudge(page, -1),
        ArrowRight: () => comparerace.nudge(page, 1),
        Home: () => comparerace.seek(page, 0),
        End: () => comparerace.seek(page, 1),
      }[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    }
  });
}

function press(page, button, lane) {
  const { host } = page;
  if (button === "measure" && !measuring(page)) measure(page);
  else if (button === "stop" && page.silent)
    jobs.stopWaiting(page, "measurement", "Check that it is still running, then measure again.");
  else if (button === "stop" && measuring(page) && page.job) jobs.ask(page, "stop", { job: page.job });
  else if (button === "race" || button === "play") comparerace.toggle(page, button === "race");
  else if (button === "pin") {
    const at = page.comparison.lanes.find((each) => each.name === lane),
      was = page.pin?.key === comparetable.key(page.comparison, at);
    page.pin = was
      ? null
      : {
          key: comparetable.key(page.comparison, at),
          name: at.name,
          from: comparetable.where(page.comparison),
          figures: at.figures,
        };
    host.remember?.[page.pin ? "setItem" : "removeItem"]("wb-compare-pin", JSON.stringify(page.pin));
    page.parts.live.textContent = page.pin
      ? `${at.name} is the reference: all figures show the difference from it`
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
  comparerace.stop(page);
  page.channel = jobs.channel("compare");
  Object.assign(page, {
    asking: comparechoice.toQuery(choice, catalogue),
    comparison: null,
    job: null,
    step: null,
    from: "live",
    level: 0,
    lastMessageAt: performance.now(),
    prompt: 0,
    shown: null,
  });
  page.pictured = request.images[0];
  page.race.t = Infinity; // show complete runs until a race starts
  page.host.decode({ ...request, channel: page.channel });
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
  if (message.step) {
    const before = page.step;
    page.step = message.step;
    if (message.step.comparison) page.comparison = comparelive.merge(page.comparison, message.step.comparison);
    if (message.step.comparison && (message.step.last || comparelive.level(page.comparison) > page.level)) store(page);
    if (message.step.last) ended(page);
    else if (before && comparelive.level(page.comparison) > page.level)
      page.parts.live.textContent = comparetable.announcement(message.step, speedup);
    page.level = comparelive.level(page.comparison);
  }
  page.draw();
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

function save(page, kind) {
  const { comparison, job } = page,
    name = `comparison_${(comparison?.machine.date ?? "").replace(/[^0-9]+/g, "-").replace(/-$/, "")}.${kind}`;
  if (kind === "json") exports.save(name, JSON.stringify(comparison, null, 1), "application/json");
  else jobs.saveTable(page, { job, kind }, name);
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
