/** The Sweep view: a grid of settings that is measured cell by cell. Joins its panel and its drawings with a host;
 *  everything is drawn from the sweep as plain data, which grows message by message. */

/** Put the view into `el`. @param {{modules: Record<string, object>, host: object}} given */
export async function mount(el, { modules: m, host }) {
  const parts = m.sweepstage.build(el, m, host);
  const page = { el, parts, m, host, catalogue: null, choice: null, sweep: null, cells: new Map(), job: null, channel: null, errors: [], note: "", metric: "speedup", chosen: null, heard: 0, silent: 0 };
  return m.jobs.begin(page, { wire, hear, draw, look: m.jobs.look, fromQuery: m.sweepchoice.fromQuery });
}

function wire(page) {
  const { el, parts, m, host } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail, event)), click = (part, act) => parts[part].addEventListener("click", act);
  const choose = (change) => {
    Object.assign(page.choice, change);
    host.address.write(m.sweepchoice.toQuery(page.choice, page.catalogue));
    page.draw();
  };
  on("wb:redraw", page.draw);
  on("wb:choose", (change) => {
    const target = "target" in change && change.target !== page.choice.target;
    choose(change);
    if (target) m.jobs.look(page);
  });
  on("wb:param", ({ name, value, note }) => {
    page.note = note;
    choose({ params: { ...page.choice.params, [name]: value } });
  });
  on("wb:press", ({ button }) => press(page, button));
  on("wb:cell", ({ id }) => {
    page.chosen = id;
    page.draw();
  });
  click("theme", () => host.theme());
  click("copy", () => m.jobs.copyLink(page, m.sweepchoice.toQuery(page.choice, page.catalogue)));
  click("openRun", () => m.jobs.openRun(page, { job: page.job, cell: page.chosen }));
  m.jobs.wireMenu(page, (kind) => save(page, kind));
  parts.metric.addEventListener("change", () => {
    page.metric = parts.metric.value;
    page.draw();
  });
  parts.codeCopy.addEventListener("click", async () => {
    const done = await navigator.clipboard?.writeText(page.sweep?.code ?? "").then(() => true, () => false);
    m.kit.write(parts.codeNote, done ? "copied" : "select the text to copy it");
  });
  el.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "Enter") return;
    event.preventDefault();
    press(page, "measure");
  });
}

function press(page, button) {
  if (button === "stop" && page.silent) page.m.jobs.giveUp(page, "sweep", "Check that it is still running; finished cells are kept, and Measure goes on from them.");
  else if (button === "stop" && page.job && page.channel) page.m.jobs.ask(page, "stop", { job: page.job });
  else if ((button === "measure" || button === "anew") && !page.channel) measure(page, button === "anew");
  page.draw();
}

function measure(page, anew) {
  const { m, choice, catalogue } = page, { problem } = m.sweepchoice.plan(choice, catalogue);
  page.errors = problem ? [{ kind: "error", message: problem, remedy: "Change the axis in the panel." }] : [];
  if (problem) return;
  page.channel = m.jobs.channel("sweep");
  Object.assign(page, { job: null, sweep: null, cells: new Map(), chosen: null });
  page.host.decode({ ...m.sweepchoice.request(choice, catalogue, m.form.clamp), anew, channel: page.channel });
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
  if (message.sweep) {
    const { cells, ...rest } = message.sweep, before = page.sweep?.done ?? 0;
    page.sweep = { ...page.sweep, ...rest };
    for (const cell of cells) page.cells.set(cell.id, { ...cell, place: cell.at.join() });
    if (rest.last) page.channel = null;
    if (rest.last || rest.done !== before) page.parts.live.textContent = `${rest.done} of ${rest.total} cells${rest.last ? (rest.complete ? ": the sweep is complete" : ": stopped, finished cells are kept") : ""}`;
  }
  page.draw();
}

function save(page, kind) {
  const { m, sweep, cells, job } = page, name = `sweep_${Object.keys(sweep.sweep.axes).join("-")}.${kind}`;
  if (kind === "json") m.exports.save(name, JSON.stringify({ ...sweep, cells: [...cells.values()] }, null, 1), "application/json");
  else m.jobs.saveTable(page, { job, kind }, name);
}

function draw(page) {
  if (page.catalogue && page.choice) page.m.sweeppanel.render(page.parts.side, { catalogue: page.catalogue, choice: page.choice, measuring: page.channel !== null, kept: page.sweep?.done ?? 0, note: page.note, draw: page.m.form.render }, page.m);
  page.m.sweepstage.draw(page);
}

export default { mount };
