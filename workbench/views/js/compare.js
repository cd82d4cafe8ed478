/** The Compare view: lanes are measured alone on the device, then raced on one clock from what was recorded. Joins its
 *  panel and its drawings with a host; everything below is drawn from one comparison as plain data. */

const SCHEMA = 2;
const KEPT = "wb-compare-last";
const FORMS = ["text", "lane", "prompts", "repeats", "max_new_tokens", "seed", "target"];

/** Put the view into `el`. @param {{modules: Record<string, object>, host: object}} given */
export async function mount(el, { modules: m, host }) {
  const parts = m.comparestage.build(el, m, host);
  const page = {
    el, parts, m, host, catalogue: null, choice: null, made: null, job: null, channel: null, step: null, errors: [], note: "", pin: pinned(host), race: m.comparerace.newRace(),
    prompt: 0, shown: null, from: "live", asked: 0, heard: 0, silent: 0, touched: false,
  };
  await m.jobs.begin(page, { wire, hear, draw, look, fromQuery: m.comparechoice.fromQuery, adopt });
  recall(page);
  return page;
}

/** Ask again what there is, for another target. */
async function look(page) {
  const found = await page.m.jobs.look(page);
  if (!found) return;
  page.choice = page.m.comparechoice.revise(page.choice, found);
  page.draw();
}

function wire(page) {
  const { el, parts, m, host } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail, event)), click = (part, act) => parts[part].addEventListener("click", act);
  const choose = (change) => {
    Object.assign(page.choice, change);
    page.touched = true;
    host.address.write(m.comparechoice.toQuery(page.choice, page.catalogue));
    page.draw();
  };
  on("wb:redraw", page.draw);
  on("wb:picture", ({ scene }) => choose(m.comparechoice.take(page.choice, page.catalogue, scene, window.workbenchPicture?.())));
  on("wb:choose", (change) => {
    const target = "target" in change && change.target !== page.choice.target;
    choose(change);
    if (target) look(page);
  });
  on("wb:param", ({ name, value, note }, event) => {
    const lane = event.target.closest("[data-lane]");
    page.note = note;
    if (lane) {
      const lanes = page.choice.lanes.map((each, i) => (i === Number(lane.dataset.lane) ? { ...each, params: { ...each.params, [name]: value } } : each));
      choose({ lanes });
    } else choose({ sampling: { ...page.choice.sampling, [name]: value } });
  });
  on("wb:press", ({ button, lane }) => press(page, button, lane));
  click("play", () => press(page, "play"));
  click("theme", () => host.theme());
  m.copying.listen(el);
  click("copy", () => m.jobs.copyLink(page, m.comparechoice.toQuery(page.choice, page.catalogue)));
  click("open", () => parts.file.click());
  m.jobs.wireMenu(page, (kind) => save(page, kind));
  parts.file.addEventListener("change", () => open(page, parts.file.files[0]).finally(() => (parts.file.value = "")));
  parts.slider.addEventListener("input", () => m.comparerace.seek(page, Number(parts.slider.value) / 1000));
  parts.speed.addEventListener("change", () => (page.race.speed = Number(parts.speed.value)));
  parts.prompt.addEventListener("change", () => {
    page.prompt = Number(parts.prompt.value);
    m.comparerace.seek(page, 1);
  });
  parts.lane.addEventListener("change", () => {
    page.shown = parts.lane.value;
    page.draw();
  });
  el.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      press(page, "measure");
    } else if (parts.stage.contains(event.target) && !event.target.closest("button, select, input, a, textarea") && !event.ctrlKey && !event.metaKey) {
      const act = { " ": () => press(page, "play"), ArrowLeft: () => m.comparerace.nudge(page, -1), ArrowRight: () => m.comparerace.nudge(page, 1), Home: () => m.comparerace.seek(page, 0), End: () => m.comparerace.seek(page, 1) }[event.key];
      if (act) {
        event.preventDefault();
        act();
      }
    }
  });
}

function press(page, button, lane) {
  const { m, host } = page;
  if (button === "measure" && !measuring(page)) measure(page);
  else if (button === "stop" && page.silent) m.jobs.giveUp(page, "measurement", "Check that it is still running, then measure again.");
  else if (button === "stop" && measuring(page) && page.job) m.jobs.ask(page, "stop", { job: page.job });
  else if (button === "race" || button === "play") m.comparerace.toggle(page, button === "race");
  else if (button === "pin") {
    const at = page.made.lanes.find((each) => each.name === lane), was = page.pin?.key === m.comparetable.key(page.made, at);
    page.pin = was ? null : { key: m.comparetable.key(page.made, at), name: at.name, from: m.comparetable.where(page.made), figures: at.figures };
    host.remember?.[page.pin ? "setItem" : "removeItem"]("wb-compare-pin", JSON.stringify(page.pin));
    page.parts.live.textContent = page.pin ? `${at.name} is the reference: all figures show their difference to it` : "No reference";
  } else if (button === "live") m.jobs.openRun(page, { job: page.job, lane, prompt: page.prompt });
  page.draw();
}

export function measuring(page) {
  return page.channel !== null;
}

function pinned(host) {
  try {
    const pin = JSON.parse(host.remember?.getItem("wb-compare-pin") ?? "null");
    return typeof pin?.figures?.speedup?.value === "number" && typeof pin.name === "string" ? pin : null; // a pin of schema 1 has medians
  } catch {
    return null;
  }
}

function measure(page) {
  const { m, choice, catalogue } = page, request = m.comparechoice.request(choice, catalogue, m.roles, m.form.clamp);
  const problem = m.comparechoice.problem(choice, catalogue);
  page.errors = problem ? [{ ...problem, kind: "error" }] : [];
  if (problem || !catalogue) return;
  m.comparerace.stop(page);
  page.channel = m.jobs.channel("compare");
  Object.assign(page, { asking: m.comparechoice.toQuery(choice, catalogue), made: null, job: null, step: null, from: "live", level: 0, asked: performance.now(), heard: performance.now(), prompt: 0, shown: null });
  page.pictured = request.images[0];
  page.race.t = Infinity; // what is there is shown whole, until it is raced
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
    if (message.step.comparison) page.made = page.m.comparelive.merge(page.made, message.step.comparison);
    if (message.step.comparison && (message.step.last || page.m.comparelive.level(page.made) > page.level)) keep(page);
    if (message.step.last) ended(page);
    else if (before && page.m.comparelive.level(page.made) > page.level) page.parts.live.textContent = page.m.comparetable.heard(message.step, page.m.speedup);
    page.level = page.m.comparelive.level(page.made);
  }
  page.draw();
}

/** Show the recorded example, where nothing else is shown. */
function adopt(page, made) {
  if (page.made || made.schema !== SCHEMA) return;
  Object.assign(page, { made, from: "example" });
  page.m.comparerace.seek(page, 1);
}

/** Keep what was measured for this browser tab: a reload, which follows when the app was started again, loses nothing. */
function keep(page) {
  try {
    page.host.remember?.setItem(KEPT, JSON.stringify({ query: page.asking, job: page.job, made: page.made }));
  } catch {
    page.host.remember?.removeItem(KEPT); // too large for the browser's store
  }
}

/** Show it again where the address asks for the same lanes and prompts. */
function recall(page) {
  const { m, host, choice, catalogue } = page;
  if (!catalogue || (page.made && page.from !== "example") || measuring(page)) return;
  try {
    const kept = JSON.parse(host.remember?.getItem(KEPT) ?? "null");
    if (kept?.made?.schema !== SCHEMA || kept.query !== m.comparechoice.toQuery(choice, catalogue)) return;
    Object.assign(page, { made: kept.made, job: kept.job, from: "live" });
    m.comparerace.seek(page, 1);
  } catch {
    host.remember?.removeItem(KEPT);
  }
}

function ended(page) {
  page.channel = null;
  page.parts.live.textContent = page.m.comparetable.heard(page.step, page.m.speedup);
  if (page.made?.lanes.some((lane) => lane.race?.[0])) page.m.comparerace.toggle(page, true);
}

function save(page, kind) {
  const { m, made, job } = page, name = `comparison_${(made?.machine.date ?? "").replace(/[^0-9]+/g, "-").replace(/-$/, "")}.${kind}`;
  if (kind === "json") m.exports.save(name, JSON.stringify(made, null, 1), "application/json");
  else m.jobs.saveTable(page, { job, kind }, name);
}

/** Show a comparison that was saved as JSON. */
export async function open(page, file) {
  const fail = (message, remedy) => page.errors.push({ kind: "error", message: `${file.name}: ${message}`, remedy });
  if (!file || measuring(page)) return;
  page.errors = [];
  try {
    const made = JSON.parse(await file.text());
    if (!Array.isArray(made?.lanes) || !made.settings || !made.prompts?.length || !made.lanes.every((lane) => lane.figures && typeof lane.name === "string")) fail("it is no comparison.", "Open a file that Export wrote as JSON, or workbench compare --out x.json.");
    else if (made.schema > SCHEMA) fail(`it has schema ${made.schema}; this workbench reads up to ${SCHEMA}.`, "Update the workbench to open it.");
    else {
      Object.assign(page, { made: made.schema < SCHEMA ? page.m.comparetable.renew(made, page.m.speedup) : made, job: null, step: null, from: "imported", prompt: 0, shown: null });
      page.m.comparerace.seek(page, 1);
    }
  } catch {
    fail("it is not JSON.", "Open a file that Export wrote as JSON.");
  }
  page.draw();
}

function draw(page) {
  if (!page.catalogue || !page.choice) return page.m.comparestage.draw(page);
  page.m.comparelanes.render(page.parts.side, { catalogue: page.catalogue, choice: page.choice, measuring: measuring(page), made: page.made, note: page.note, draw: page.m.form.render }, page.m);
  page.m.comparestage.draw(page);
}

export default { mount, open, measuring, FORMS };
