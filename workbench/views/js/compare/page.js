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
const KEPT = "wb-compare-last";

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const parts = comparestage.build(el, host);
  const page = {
    el,
    parts,
    host,
    catalogue: null,
    choice: null,
    made: null,
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
    asked: 0,
    heard: 0,
    silent: 0,
    touched: false,
  };
  await jobs.begin(page, { wire, hear, draw, look, fromQuery: comparechoice.fromQuery, adopt });
  recall(page);
  return page;
}

/** Fetch the catalogue for another target. */
async function look(page) {
  const found = await jobs.look(page);
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
    if (target) look(page);
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
    jobs.giveUp(page, "measurement", "Check that it is still running, then measure again.");
  else if (button === "stop" && measuring(page) && page.job) jobs.ask(page, "stop", { job: page.job });
  else if (button === "race" || button === "play") comparerace.toggle(page, button === "race");
  else if (button === "pin") {
    const at = page.made.lanes.find((each) => each.name === lane),
      was = page.pin?.key === comparetable.key(page.made, at);
    page.pin = was
      ? null
      : {
          key: comparetable.key(page.made, at),
          name: at.name,
          from: comparetable.where(page.made),
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
    made: null,
    job: null,
    step: null,
    from: "live",
    level: 0,
    asked: performance.now(),
    heard: performance.now(),
    prompt: 0,
    shown: null,
  });
  page.pictured = request.images[0];
  page.race.t = Infinity; // show complete runs until a race starts
  page.host.decode({ ...request, channel: page.channel });
  page.parts.live.textContent = "Measuring";
}

function hear(page, message) {
  if (!page.channel || message.channel !== page.channel) return;
  Object.assign(page, { heard: performance.now(), silent: 0 });
  page.job = message.job ?? page.job;
  if (message.error) {
    page.errors.push({ ...message.error, kind: "error" });
    page.channel = null;
    page.parts.live.textContent = message.error.message;
  }
  if (message.step) {
    const before = page.step;
    page.step = message.step;
    if (message.step.comparison) page.made = comparelive.merge(page.made, message.step.comparison);
    if (message.step.comparison && (message.step.last || comparelive.level(page.made) > page.level)) keep(page);
    if (message.step.last) ended(page);
    else if (before && comparelive.level(page.made) > page.level)
      page.parts.live.textContent = comparetable.heard(message.step, speedup);
    page.level = comparelive.level(page.made);
  }
  page.draw();
}

/** Convert a comparison of an older schema to the current figures. */
function current(made) {
  return made.schema < SCHEMA ? comparetable.renew(made, speedup) : made;
}

/** Show the recorded example if nothing else is shown. */
function adopt(page, made) {
  if (page.made || made.schema > SCHEMA) return;
  Object.assign(page, { made: current(made), from: "example" });
  comparerace.seek(page, 1);
}

/** Store the measured comparison for this browser tab, so that a reload (needed after the app was restarted) loses
 *  nothing. */
function keep(page) {
  try {
    page.host.remember?.setItem(KEPT, JSON.stringify({ query: page.asking, job: page.job, made: page.made }));
  } catch {
    page.host.remember?.removeItem(KEPT); // too large for the browser's storage
  }
}

/** Restore the stored comparison if the address names the same lanes and prompts. */
function recall(page) {
  const { host, choice, catalogue } = page;
  if (!catalogue || (page.made && page.from !== "example") || measuring(page)) return;
  try {
    const kept = JSON.parse(host.remember?.getItem(KEPT) ?? "null");
    if (kept?.made?.schema !== SCHEMA || kept.query !== comparechoice.toQuery(choice, catalogue)) return;
    Object.assign(page, { made: kept.made, job: kept.job, from: "live" });
    comparerace.seek(page, 1);
  } catch {
    host.remember?.removeItem(KEPT);
  }
}

function ended(page) {
  page.channel = null;
  page.parts.live.textContent = comparetable.heard(page.step, speedup);
  if (page.made?.lanes.some((lane) => lane.race?.[0])) comparerace.toggle(page, true);
}

function save(page, kind) {
  const { made, job } = page,
    name = `comparison_${(made?.machine.date ?? "").replace(/[^0-9]+/g, "-").replace(/-$/, "")}.${kind}`;
  if (kind === "json") exports.save(name, JSON.stringify(made, null, 1), "application/json");
  else jobs.saveTable(page, { job, kind }, name);
}

/** Open a comparison saved as JSON. */
export async function open(page, file) {
  const fail = (message, remedy) => page.errors.push({ kind: "error", message: `${file.name}: ${message}`, remedy });
  if (!file || measuring(page)) return;
  page.errors = [];
  try {
    const made = JSON.parse(await file.text());
    if (
      !Array.isArray(made?.lanes) ||
      !made.settings ||
      !made.prompts?.length ||
      !made.lanes.every((lane) => lane.figures && typeof lane.name === "string")
    )
      fail("not a comparison.", "Open a JSON file written by Export or by workbench compare --out x.json.");
    else if (made.schema > SCHEMA)
      fail(`schema ${made.schema} is newer than ${SCHEMA}.`, "Update the workbench to open it.");
    else {
      Object.assign(page, {
        made: current(made),
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
    made: page.made,
    note: page.note,
    draw: form.render,
  });
  comparestage.draw(page);
}
