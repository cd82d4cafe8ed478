/** The Live view: joins the side panel, the drawings and a backend. The only module that knows the others exist,
 *  and it gets them as an argument, so that it can be hosted by a page or by a notebook.
 *
 *  @typedef {{call: (name: string, payload: object) => Promise<any>, decode: (request: object) => void,
 *             listen: (hear: (message: object) => void) => void, theme?: () => void, remember?: Storage}} Host
 *  `decode` starts a run whose messages arrive through `listen`; closing the page ends it. `call` is answered at once.
 */

const ANNOUNCE_MS = 5000;
const SILENCE_MS = 2000;

/** Put the view into `el`. @param {{modules: Record<string, object>, host: Host}} given */
export async function mount(el, { modules: m, host }) {
  const parts = m.stage.build(el);
  const page = {
    parts, m, host, catalogue: null, choice: null, run: null, plain: null, plainKey: "", runKey: "", errors: [], selection: m.selection.newSelection(),
    brush: null, ghosts: true, live: true, wantPlain: false, note: "", changes: {}, channels: 0, replay: null, scroll: false, heardAt: 0, stepping: false,
  };
  page.draw = paced(() => draw(page));
  host.listen((message) => hear(page, message));
  wire(page, el);
  m.keyboard.listen(page, actions(page));
  new ResizeObserver(page.draw).observe(parts.stage);
  setInterval(() => watch(page), 1000);
  page.draw();
  await look(page, null, null);
  await recall(page);
  page.draw();
  el.dataset.ready = "true";
  return page;
}

function paced(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

// -- The backend -------------------------------------------------------------------------------------------------

async function ask(page, name, payload) {
  try {
    const answer = await page.host.call(name, payload);
    if (!answer?.error) return answer;
    fail(page, answer.error);
  } catch {
    fail(page, { message: "The backend did not answer.", remedy: "Check that the app is still running, then reload the page." });
  }
  return null;
}

function fail(page, error) {
  if (!page.errors.some((e) => e.message === error.message)) page.errors.push(error);
  page.draw();
}

async function look(page, target, drafter) {
  const catalogue = await ask(page, "catalogue", { target, drafter });
  if (!catalogue) return;
  page.catalogue = catalogue;
  page.choice = page.choice ? page.m.choice.revise(page.choice, catalogue) : page.m.choice.first(catalogue);
  page.draw();
}

function hear(page, message) {
  const run = [page.run, page.plain].find((r) => r && (r.channel === message.channel || (r.id !== null && r.id === message.run)));
  if (!run) return;
  run.heard = performance.now();
  const known = run.id !== null, missing = page.m.store.apply(run, message);
  if (!known && run.id !== null) (run.after ?? []).splice(0).forEach((wish) => wish());
  if (run === page.run && run.id) page.host.remember?.setItem("wb-run", run.id);
  if (missing !== null) fill(page, run, missing);
  if (page.m.store.isOver(run)) over(page, run);
  page.draw();
}

async function fill(page, run, from) {
  if (run.filling || run.id === null) return;
  run.filling = true;
  const answer = await ask(page, "fetch_trace", { run: run.id, from });
  run.filling = false;
  if (answer) hear(page, { ...answer, channel: run.channel });
}

function watch(page) {
  for (const run of [page.run, page.plain]) {
    if (run?.id && page.m.store.isActive(run) && performance.now() - run.heard > SILENCE_MS) fill(page, run, page.m.store.complete(run));
  }
  announce(page, false);
  if (page.run && page.m.store.isActive(page.run) && !page.run.rounds.length) page.draw();
}

function over(page, run) {
  if (run.closed) return;
  run.closed = true;
  if (run === page.run) {
    announce(page, true);
    page.stepping = false;
    if (page.wantPlain) startPlain(page);
  }
}

/** After a reload: the run that this tab last showed, as far as it came. */
async function recall(page) {
  const id = page.host.remember?.getItem("wb-run");
  if (!id || !page.catalogue) return;
  const answer = await page.host.call("fetch_trace", { run: id, from: 0 }).catch(() => null);
  if (!answer || answer.error || !answer.header) return page.host.remember.removeItem("wb-run");
  page.run = Object.assign(page.m.store.newRun("recalled"), { heard: performance.now(), closed: true });
  page.m.store.apply(page.run, answer);
  page.live = false;
  const { header } = answer;
  page.choice = { ...page.choice, prompt: header.prompt, seed: header.seed, max_new_tokens: header.max_new_tokens, params: { ...header.params }, preset: page.catalogue.presets.find((p) => p.prompt === header.prompt)?.name ?? null };
  if (page.catalogue.methods.some((x) => x.name === header.method)) page.choice.method = header.method;
}

// -- What the visitor does ---------------------------------------------------------------------------------------

function start(page, paused) {
  const { m } = page;
  if (!page.catalogue || m.store.isActive(page.run) || m.store.isActive(page.plain)) return;
  Object.assign(page, { errors: [], selection: m.selection.newSelection(), brush: null, live: true, note: "", changes: {} });
  const channel = `run-${(page.channels += 1)}-${Math.random().toString(36).slice(2, 8)}`;
  page.run = Object.assign(m.store.newRun(channel), { heard: performance.now() });
  page.runKey = m.choice.pairing(page.choice, page.catalogue, m.form.clamp);
  stopReplay(page);
  page.host.decode(m.choice.request(page.choice, page.catalogue, channel, m.form.clamp, paused));
  page.draw();
}

function startPlain(page) {
  const { m } = page;
  if (!page.catalogue || m.store.isActive(page.plain)) return;
  if (m.store.isActive(page.run)) {
    page.wantPlain = !page.wantPlain;
    return page.draw();
  }
  page.wantPlain = false;
  const channel = `plain-${(page.channels += 1)}-${Math.random().toString(36).slice(2, 8)}`;
  page.plain = Object.assign(m.store.newRun(channel), { heard: performance.now() });
  page.plainKey = m.choice.pairing(page.choice, page.catalogue, m.form.clamp);
  page.host.decode(m.choice.plainRequest(page.choice, page.catalogue, channel, m.form.clamp));
  page.draw();
}

function control(page, action) {
  const run = page.m.store.isActive(page.run) ? page.run : page.m.store.isActive(page.plain) ? page.plain : null;
  if (!run) return;
  const send = () => ask(page, "control", { run: run.id, action });
  if (run.id === null) (run.after ??= []).push(send);
  else send();
}

function change(page, wanted) {
  const run = page.run;
  if (!page.m.store.isActive(run)) return;
  Object.assign(page.changes, wanted, { params: { ...page.changes.params, ...wanted.params } });
  clearTimeout(page.changing);
  page.changing = setTimeout(() => {
    const payload = page.changes;
    page.changes = {};
    const send = () => ask(page, "change", { run: run.id, ...payload });
    if (run.id === null) (run.after ??= []).push(send);
    else if (page.m.store.isActive(run)) send();
  }, 120);
}

function choose(page, what, value) {
  const { m, choice } = page, active = m.store.isActive(page.run);
  page.note = "";
  if (what === "preset") {
    const preset = page.catalogue.presets.find((p) => p.name === value);
    Object.assign(choice, { preset: value, prompt: preset?.prompt ?? choice.prompt });
  } else choice[what] = value;
  if (what === "prompt") choice.preset = page.catalogue.presets.find((p) => p.prompt === value)?.name ?? null;
  if (what === "method" && active) change(page, { method: value, params: m.choice.parameters(choice, page.catalogue, value, m.form.clamp) });
  else if (what === "drafter" && active) change(page, { drafter: value });
  else if (active) page.note = "This takes effect with the next run.";
  if (what === "target" || what === "drafter") look(page, choice.target, choice.drafter);
  page.draw();
}

function setParam(page, { name, value, note }) {
  page.choice.params[name] = value;
  page.note = note;
  change(page, { params: { [name]: value } });
  page.draw();
}

function wire(page, el) {
  const { parts } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail));
  const presses = {
    run: () => start(page, false), stop: () => control(page, "cancel"), baseline: () => startPlain(page),
    pause: () => control(page, page.run?.state === "paused" ? "resume" : "pause"), step: () => stepRun(page),
  };
  page.presses = presses;
  on("wb:redraw", () => page.draw());
  on("wb:press", ({ button }) => presses[button]());
  on("wb:choose", ({ what, value }) => choose(page, what, value));
  on("wb:param", (detail) => setParam(page, detail));
  on("wb:pick", (pick) => pin(page, pick));
  on("wb:brush", ({ from, to }) => show(page, { brush: [from, to] }));
  parts.ghosts.addEventListener("change", () => show(page, { ghosts: parts.ghosts.checked }));
  parts.slider.addEventListener("input", () => pin(page, { round: Number(parts.slider.value) - 1 }));
  parts.back.addEventListener("click", () => actions(page).round(-1));
  parts.forth.addEventListener("click", () => actions(page).round(1));
  parts.jump.addEventListener("click", () => actions(page).follow());
  parts.replay.addEventListener("click", () => replay(page));
  parts.theme.addEventListener("click", () => page.host.theme?.());
  parts.help.addEventListener("click", () => parts.keys.showModal());
  const under = (event) => {
    const at = event.target.closest("[data-node],[data-token],[data-round]");
    if (!at) return null;
    const round = at.dataset.round === undefined ? page.view?.shown?.round : Number(at.dataset.round);
    const { node, token } = at.dataset;
    return round === undefined ? null : { round, token: token === undefined ? null : Number(token), node: node === undefined ? null : node === "target" || node === "-1" ? node : Number(node) };
  };
  for (const region of [parts.ribbon, parts.tree]) {
    region.addEventListener("pointerover", (event) => event.pointerType !== "touch" && show(page, { hover: under(event) }));
    region.addEventListener("pointerleave", () => show(page, { hover: null }));
    region.addEventListener("click", (event) => {
      const pick = under(event);
      if (pick) pin(page, pick);
    });
  }
}

function show(page, { hover, ...rest }) {
  Object.assign(page, rest);
  if (hover !== undefined) page.selection.hover = hover;
  page.scroll = false;
  page.draw();
}

function pin(page, pick) {
  stopReplay(page);
  page.selection = { hover: null, pin: pick };
  page.scroll = true;
  page.brush = null;
  page.draw();
}

function stepRun(page) {
  page.stepping = true;
  if (page.m.store.isActive(page.run)) control(page, "step");
  else {
    start(page, true);
    control(page, "step");
  }
}

/** What keys and tools do with the selection. */
function actions(page) {
  const rounds = () => (page.run ? page.m.store.visible(page.run) : []);
  const at = () => page.m.selection.shown(page.selection, rounds());
  const to = (pick) => pick && pin(page, pick);
  return {
    token: (direction) => to(page.m.selection.stepToken(at(), rounds(), direction)),
    round: (direction) => to(page.m.selection.stepRound(at(), rounds(), direction)),
    node: (key) => at() && to({ round: at().round, node: page.m.tree.neighbour(page.parts.tree._items ?? [], at().node, key) }),
    first: () => rounds().length && to({ round: 0 }),
    last: () => rounds().length && to({ round: rounds().length - 1 }),
    hold: () => to(at()),
    follow: () => {
      stopReplay(page);
      page.selection = page.m.selection.newSelection();
      page.brush = null;
      page.draw();
      page.parts.ribbon.scrollTop = page.parts.ribbon.scrollHeight;
    },
    press: (button) => page.presses[button](),
    help: () => page.parts.keys.showModal(),
  };
}

// -- Replay, drawing, announcing -----------------------------------------------------------------------------------

function replay(page) {
  if (page.replay) return stopReplay(page), page.draw();
  const rounds = page.run ? page.m.store.visible(page.run) : [];
  if (!rounds.length) return;
  let at = page.selection.pin ? page.selection.pin.round : 0;
  if (at >= rounds.length - 1) at = 0;
  const tick = () => {
    page.selection = { hover: null, pin: { round: at } };
    page.scroll = true;
    page.draw();
    const seconds = rounds[at].seconds / Number(page.parts.speed.value);
    at += 1;
    page.replay = at < rounds.length ? setTimeout(tick, Math.max(16, 1000 * seconds)) : null;
  };
  tick();
}

function stopReplay(page) {
  clearTimeout(page.replay);
  page.replay = null;
}

function announce(page, over) {
  const { run, m } = page;
  if (!run) return;
  const rounds = m.store.visible(run), now = performance.now();
  let text = null;
  if (over) text = m.words.heard(m.figures.summary(rounds), true);
  else if (page.stepping && rounds.length !== page.heardRounds && rounds.length) text = m.ribbon.describe(rounds.at(-1));
  else if (m.store.isActive(run) && run.state === "running" && now - page.heardAt > ANNOUNCE_MS && rounds.length) text = m.words.heard(m.figures.summary(rounds), false);
  if (text === null) return;
  page.heardAt = now;
  page.heardRounds = rounds.length;
  page.parts.live.textContent = text;
}

function draw(page) {
  const { m, run, plain, catalogue } = page;
  const rounds = run ? m.store.visible(run) : [], figures = m.figures.summary(rounds);
  const matched = plain && m.store.isOver(plain) && plain.state === "finished" && page.plainKey === page.runKey && run;
  const plainRounds = matched ? m.store.visible(plain) : null;
  const measuring = plain && m.store.isActive(plain) ? { tokens: m.figures.summary(m.store.visible(plain)).tokens, of: page.choice.max_new_tokens } : null;
  const shown = m.selection.shown(page.selection, rounds), active = m.store.isActive(run);
  const anchor = page.selection.pin?.round ?? rounds.length - 1;
  const promised = catalogue?.methods.find((x) => x.name === (rounds.at(-1)?.method ?? run?.header?.method));
  page.view = {
    run, rounds, shown, figures, plainRounds, plainFigures: plainRounds ? m.figures.summary(plainRounds) : null, definitions: catalogue?.definitions ?? {},
    badge: m.words.badge(run, page.live, catalogue?.device ?? ""), state: measuring ? "measuring" : (run?.state ?? "idle"),
    simulation: Boolean(run?.header?.simulation || promised?.simulation), alerts: m.words.alerts(page.errors, run, rounds), ghosts: page.ghosts,
    follow: m.selection.follows(page.selection) && !page.selection.hover, scroll: page.scroll, waiting: m.words.waiting(run, catalogue !== null || page.errors.length > 0), anchor, brush: page.brush, replaying: page.replay !== null,
    status: m.words.status({ run, figures, pinned: page.selection.pin !== null, measuring }),
  };
  m.stage.draw(page.parts, m, page.view);
  if (page.stepping) announce(page, false);
  if (!catalogue) return;
  const marks = m.figures.changeMarks(rounds), paired = plain && plain.state === "finished" && page.plainKey === m.choice.pairing(page.choice, catalogue, m.form.clamp);
  m.controls.render(page.parts.side, {
    catalogue, choice: page.choice, draw: m.form.render, note: page.note || m.words.changeNote(marks, active),
    run: {
      active: active || measuring !== null, paused: run?.state === "paused" && active, ready: true, measuring: measuring !== null,
      baseline: { label: measuring ? `Baseline ${measuring.tokens}` : page.wantPlain ? "Baseline next" : paired ? "Baseline ✓" : "Baseline", off: measuring ? "the baseline is being measured" : "" },
    },
  });
}

export default { mount };
