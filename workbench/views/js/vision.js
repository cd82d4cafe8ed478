/** The Vision tab: one question about a picture, one or two drafters, and what each of them sees. Like `live`, it joins
 *  the parts and gets them as an argument. Everything it draws comes from traces, so that recordings show the same.
 *
 *  A `page` is what Live's modules know: a run, its baseline, choices, selection. The drafter beside is a second, smaller
 *  page with a run of its own, which shares everything else.
 */

const ANNOUNCE_MS = 5000;
const ASK_MS = 500;
const SCENE = "wb-scene"; // of the run that the tab showed last
const PICTURE = "wb-picture"; // that the tab held last, with what was painted
const OWN = ["tab", "scene", "beside", "beside_drafter"];
/** The recordings that play before anything was run: a drafter that sees, and a blind one beside it. */
export const EXAMPLE = ["specvlm", "vlm-text-only"];

/** Put the tab into `el`. @param {{modules: Record<string, object>, host: object, trace?: object, beside?: object, embed?: boolean}} given */
export async function mount(el, { modules: m, host: given, trace = null, beside = null, embed = false }) {
  el.classList.remove("wb-page");
  el.classList.add("wb-vision");
  const host = { ...given, remember: own(given.remember, "vision") }, parts = m.visionstage.build(el, m);
  if (host.base === undefined) parts.nav.hidden = true;
  else m.pagehead.fill(parts.nav, m.kit, host, "Vision");
  const page = {
    el, parts, m, host, catalogue: null, choice: null, run: null, plain: null, plainKey: "", errors: [], notices: [], selection: m.selection.newSelection(), wish: null, on: "run",
    brush: null, ghosts: true, threshold: 0, mode: "spine", wantPlain: false, note: "", changes: {}, channels: 0, playing: null, feeding: null, next: null, lost: 0,
    scroll: false, heardAt: 0, heardRounds: 0, stepping: false, embed, shownView: null, recorded: null, estimate: "", touched: false, definitions: {},
    vision: {
      scenes: [], lexicon: null, board: null, empty: "", rows: 8, cols: 8, scene: "", url: "", alt: "", source: "", fresh: true, picture: 0, patch: null, over: "target", how: "attention", query: null,
      mode: { target: "leans", drafter: "sees" }, tool: "", scope: "both", both: new Map(), drafter: new Map(), history: [], besideMethod: "", besideDrafter: null, note: "",
    },
  };
  const { vision } = page;
  if (!embed) window.workbenchPicture = () => ({ url: vision.url, alt: vision.alt }); // the Compare tab may ask about it too
  page.beside = besides(page);
  page.draw = m.kit.paced(() => host.isOpen?.() !== false && draw(page));
  page.fresh = () => fresh(page);
  page.describe = () => query(page);
  page.ended = (run) => ended(page, run);
  page.announce = (over) => announce(page, over);
  host.listen?.((message) => {
    m.backend.hear(page, message);
    m.backend.hear(page.beside, message);
  });
  page.actions = actions(page);
  parts.textOf = (name) => m.copying.textOf((name === "beside" ? page.beside : page).run);
  m.copying.listen(el);
  wire(page, el);
  m.keyboard.listen(page, page.actions);
  new ResizeObserver(page.draw).observe(parts.stage);
  page.timer = setInterval(() => tick(page), 1000);
  page.draw();
  await arrive(page, trace, beside);
  addEventListener("wb:address", () => host.address && host.isOpen?.() !== false && stepped(page));
  dress(page);
  page.draw();
  m.exports?.mount(parts.exports, { trace: () => whole(page), stage: parts.stage, host, modules: m, definitions: () => page.view?.definitions ?? {}, lexicon: () => vision.lexicon, keeps: page.catalogue?.keeps, kept: (id) => page.on === "run" && m.opening.kept(page, id) });
  el.dataset.ready = "true";
  return page;
}

/** The tab as a drawing of traces alone, for a notebook: made once, then shown anew with each call.
 *  @param {{modules: object, trace: object, beside?: object, lexicon?: object, definitions?: object}} data */
export async function render(el, { modules, trace, beside = null, lexicon = null, definitions = {} }) {
  const page = (el._page ??= await mount(el, { modules, host: {}, embed: true }));
  Object.assign(page, { definitions });
  Object.assign(page.vision, { lexicon });
  show(page, trace, beside, "recorded");
  return page;
}

/** The browser's store for one of the tab's seats. */
function own(storage, name) {
  return storage && { getItem: (k) => storage.getItem(`${k}-${name}`), setItem: (k, v) => storage.setItem(`${k}-${name}`, v), removeItem: (k) => storage.removeItem(`${k}-${name}`) };
}

function besides(page) {
  return {
    m: page.m, host: { ...page.host, remember: own(page.host.remember, "beside") }, run: null, plain: null, plainKey: "", channels: 0, changes: {}, lost: 0, choice: null, note: "", wantPlain: false,
    get catalogue() { return page.catalogue; }, get errors() { return page.errors; }, get notices() { return page.notices; },
    draw: () => page.draw(), fresh: () => {}, ended: (run) => ended(page, run),
  };
}

/** The run that is shown, for a file. */
function whole(page) {
  page.feeding?.stop();
  const seat = page.on === "beside" && page.beside.run ? page.beside : page;
  return seat.run ? page.m.store.toTrace(seat.run) : null;
}

// -- Arriving ----------------------------------------------------------------------------------------------------------

async function arrive(page, trace, beside) {
  const { m, host, vision } = page;
  if (trace) return show(page, trace, beside, "recorded");
  if (!host.call) return;
  const earlier = Promise.all([m.recall.last(host), m.recall.last(page.beside.host)]); // at once: what goes on is freed when nobody follows it
  const found = await m.backend.ask(page, "gallery", {});
  if (found) Object.assign(vision, found);
  await look(page, null, null);
  const query = new URLSearchParams(host.address?.read() ?? "");
  const names = query.get("recorded") ? [query.get("recorded"), query.get("beside")] : EXAMPLE;
  if (page.catalogue) {
    const wanted = await asked(page, query, others(query)), again = !wanted.recorded && (await recall(page, wanted, await earlier));
    settle(page, wanted);
    if (again && !m.store.isActive(page.run)) page.selection.pin = page.wish;
    else if (!again && !page.wished) {
      await example(page, names);
      if (wanted.recorded) settle(page, { ...wanted, problems: [] }); // what the address has of its own goes before the run's
    }
    if (m.recall.reloaded() || !page.wished) await hold(page, again);
    else if (!again) page.note = "From a link: press Run to decode it here.";
  } else await example(page, names);
  if (!vision.url && !page.run && vision.scenes.length) take(page, vision.scenes[0]);
}

/** What the side panel is made from. Only targets that read pictures are offered here. */
async function look(page, target, drafter) {
  await page.m.backend.look(page, target, drafter);
  if (!page.catalogue) return;
  page.catalogue.presets = questions(page);
  if (!page.catalogue.targets.length) page.vision.empty = "No target here reads pictures.";
  const { choice, vision } = page;
  choice.prompt ||= page.catalogue.presets[0]?.prompt ?? "";
  vision.besideMethod ||= page.catalogue.methods.find((x) => x.name === EXAMPLE[1] && x.available !== false)?.name ?? "";
}

/** What the address asks for. */
async function asked(page, query, rest) {
  const { m, vision } = page, [target, drafter] = ["target", "drafter"].map((name) => query.get(name));
  if (target || drafter) {
    Object.assign(page.choice, { ...(target && { target }), ...(drafter && { drafter }) });
    await look(page, target, drafter);
  }
  const found = m.link.fromQuery(rest.toString(), page.catalogue, m.form.clamp), { problems } = found;
  const scene = vision.scenes.find((s) => s.name === query.get("scene")), beside = query.get("beside");
  if (query.get("scene") && !scene) problems.push(`scene=${query.get("scene").slice(0, 40)}: no such picture in the gallery`);
  const known = page.catalogue.methods.some((x) => x.name === beside);
  if (beside && beside !== "none" && !found.recorded && !known) problems.push(`beside=${beside.slice(0, 40)}: there is no such method here`);
  page.embed ||= found.embed;
  page.wish = found.pin;
  page.wished = Boolean(scene || (found.settings && !found.recorded));
  return { ...found, scene, beside: query.has("beside") && !found.recorded ? (known ? beside : "") : null, besideDrafter: query.get("beside_drafter") };
}

/** The address changed under the page, by a step back or forth. */
async function stepped(page) {
  const query = new URLSearchParams(page.host.address.read());
  page.said = null;
  if (page.catalogue && !running(page)) {
    const wanted = await asked(page, query, others(query));
    settle(page, wanted);
    if (wanted.pin && page.run) page.selection.pin = wanted.pin;
    page.wish = null;
  }
  page.draw();
  page.m.opening.say(page);
}

/** What of an address the Vision tab has in common with Live. */
function others(query) {
  return new URLSearchParams([...query].filter(([name]) => !OWN.includes(name)));
}

/** What an address asks for, in the panel; it goes before the settings of a run that is shown again. */
function settle(page, { choice, params, scene, beside, besideDrafter, problems, settings }) {
  const { m, vision } = page;
  page.formed ||= settings;
  page.choice = m.choice.revise({ ...page.choice, ...choice, params: { ...page.choice.params, ...params } }, page.catalogue);
  if (scene && scene.name !== vision.scene) take(page, scene, "prompt" in choice);
  if (beside !== null) vision.besideMethod = beside;
  if (besideDrafter) vision.besideDrafter = besideDrafter;
  if (problems.length) page.notices.push({ kind: "note", message: "Left out of the link:", remedy: problems.join(" · ") });
}

/** After a reload: the run that this tab last showed, and the one beside it; not where a link asks for something else.
 *  What has not ended goes on. */
async function recall(page, wanted, [answer, other]) {
  const { m, host, vision } = page;
  if (!answer || !(m.recall.reloaded() || answers(page, wanted, answer))) return false;
  const header = m.recall.inForce(answer), scene = vision.scenes.find((s) => s.name === host.remember.getItem(SCENE));
  if (header && header.target !== page.choice.target) await look(page, header.target, header.drafter);
  const back = (seat, found, kind) => Object.assign(m.backend.resume(seat, found, kind), { question: question(found.header), scene: scene?.name, alt: scene?.alt });
  page.run = back(page, answer, "run");
  page.beside.run = other && back(page.beside, other, "beside");
  if (other) Object.assign(page.run, { pair: page.beside.run });
  vision.history.push(...[page.run, page.beside.run].filter(Boolean));
  vision.besideMethod = other ? (m.recall.inForce(other)?.method ?? vision.besideMethod) : "";
  vision.besideDrafter = other?.header?.drafter ?? null;
  if (header) adopt(page, header, { scene: scene?.name, alt: scene?.alt });
  for (const seat of [page, page.beside]) {
    if (seat.run && header) seat.run.key = m.choice.pairing({ ...page.choice, images: [vision.url] }, page.catalogue, m.form.clamp);
    if (seat.run && !m.store.isActive(seat.run)) explain(page, seat.run);
  }
  return true;
}

/** Remember the picture, which no address can hold: an upload or a drawing is there again after a reload, run or not. */
function remembers({ vision, host }) {
  const { source, alt, scene, note, swapped, fresh } = vision, painted = { both: [...vision.both], drafter: [...vision.drafter] };
  try {
    host.remember?.setItem(PICTURE, JSON.stringify({ source, alt, scene, note, swapped, fresh, ...painted }));
  } catch {
    host.remember?.removeItem(PICTURE); // too large for the browser's store
  }
}

/** Hold the remembered picture again; `again`: with the run that was shown beside it. */
async function hold(page, again) {
  const { vision, host } = page;
  try {
    const kept = JSON.parse(host.remember?.getItem(PICTURE) ?? "null");
    if (!kept?.source?.startsWith("data:image/")) return;
    Object.assign(vision, kept, { fresh: kept.fresh || !again, both: new Map(kept.both), drafter: new Map(kept.drafter) });
    vision.url = await composed(page, "both");
    if (page.catalogue) page.catalogue.presets = questions(page);
  } catch {
    host.remember?.removeItem(PICTURE);
  }
}

/** Whether a run is of the settings, the question and the picture that the address names. */
function answers({ m, host }, wanted, answer) {
  const now = m.recall.inForce(answer);
  return m.recall.fits(wanted, now && { ...now, prompt: question(now) }) && (!wanted.scene || wanted.scene.name === host.remember.getItem(SCENE));
}

/** Play a recording, and another one beside it; a missing one is no error, since a checkout may hold none yet. */
async function example(page, names) {
  const { m } = page, answers = await Promise.all(names.filter(Boolean).map((name) => page.host.call("recorded", { name }).catch(() => null)));
  const [first, second] = answers.map((a) => (a?.header?.pictures?.length ? a : null));
  if (!first) {
    page.vision.empty = page.catalogue?.targets.length ? "Choose a picture and press Run. (No recording of it is here: workbench record makes them.)" : page.vision.empty;
    const wrong = answers.find((a) => a?.error)?.error;
    if (wrong && names !== EXAMPLE) page.errors.push(wrong);
    return;
  }
  if (page.run) return; // the visitor was faster
  page.recorded = names[0];
  const { errors, notices } = page;
  show(page, first, second, "recorded", page.wish === null);
  Object.assign(page, { errors, notices }); // what is wrong with the link stays said
}

/** Show traces that are complete; `plays`: let them arrive round by round. */
function show(page, trace, beside, from, plays = false) {
  const { m } = page;
  page.fresh();
  const record = (given) => Object.assign(m.store.fromTrace(`${from}-${(page.channels += 1)}`, given, from), { closed: true, question: question(given.header) });
  page.run = record(trace);
  page.beside.run = beside ? record(beside) : null;
  for (const run of [page.run, page.beside.run]) if (run) page.vision.history.push(run);
  adopt(page, trace.header);
  page.vision.alt ||= trace.footer?.text ? `In the target's words: ${question({ prompt: trace.footer.text })}` : "";
  page.selection.pin = page.wish;
  page.wish = null;
  if (plays && !matchMedia("(prefers-reduced-motion: reduce)").matches) feed(page, page.run);
  page.draw();
}

/** Let a recording arrive as if it were live; the one beside it keeps step. */
function feed(page, run) {
  const { m } = page, rounds = run.rounds, other = page.beside.run, theirs = other?.rounds ?? [], speed = 0.1, end = { seq: run.seq, other: other?.seq };
  const upTo = (n) => {
    const late = rounds[n - 1]?.started_s ?? 0, shown = n >= rounds.length ? theirs.length : theirs.filter((r) => r.started_s <= late).length;
    Object.assign(run, { rounds: rounds.slice(0, n), whole: 0 });
    if (other) Object.assign(other, { rounds: theirs.slice(0, shown), whole: 0 });
    if (n >= rounds.length) Object.assign(run, { seq: end.seq }), (page.feeding = null);
    page.draw();
  };
  page.feeding = { label: `${speed}× of its speed`, stop: () => {} };
  page.feeding.stop = m.player.feed({ rounds, speed, still: false, arrive: upTo });
}

/** Take a trace's picture and settings over, so that Run asks the same again; `known`: the scene it was made with. */
function adopt(page, header, known = {}) {
  const { vision } = page, picture = header.pictures?.[0];
  if (page.catalogue) page.choice = { ...page.m.choice.adopt(page.choice, header, page.catalogue), prompt: question(header) };
  if (picture) Object.assign(vision, { url: picture.url, source: picture.url, rows: picture.rows, cols: picture.cols, fresh: false, scene: known.scene ?? "", alt: known.alt ?? altOf(page, picture.url) });
  if (page.catalogue) page.catalogue.presets = questions(page);
}

function altOf({ vision }, url) {
  return vision.scenes.find((s) => s.url === url)?.alt ?? "";
}

/** The question of a prompt: what stands between the markers of the chat format. */
export function question(header) {
  return (header?.prompt || (header?.prompt_text ?? []).join("")).replace(/<\|[^|>]*\|>/g, " ").trim();
}

function dress(page) {
  const { el, parts, host } = page;
  el.classList.toggle("is-embedded", page.embed || !host.call);
  parts.copy.hidden = !host.address;
  parts.open.hidden = !host.address || page.embed;
}

// -- Pictures ----------------------------------------------------------------------------------------------------------

/** The questions that fit the picture, as presets. */
function questions({ vision }) {
  const own = vision.scenes.find((s) => s.name === vision.scene)?.questions ?? vision.questions ?? [];
  return own.map((q) => ({ name: q, title: q.length > 34 ? `${q.slice(0, 33)}…` : q, prompt: q }));
}

/** Take another picture. In mid-run it is swapped for the one that the models see. */
function take(page, { url, alt = "", name = "" }, keepsQuestion = false) {
  const { vision, m } = page, known = vision.scenes.find((s) => s.name === name && s.url === url);
  if (vision.scope === "drafter" && m.store.isActive(page.run)) {
    vision.swapped = url; // only the drafter's eyes are deceived
    return void changed(page, "drafter");
  }
  Object.assign(vision, { source: url, url, alt, scene: known ? name : "", both: new Map(), drafter: new Map(), swapped: null, patch: null, note: known || !name ? "" : name });
  if (m.store.isActive(page.run)) page.host.remember?.setItem(SCENE, vision.scene);
  if (page.catalogue) page.catalogue.presets = questions(page);
  if (page.choice && known && !keepsQuestion && !m.store.isActive(page.run)) page.choice.prompt = page.catalogue.presets[0]?.prompt ?? page.choice.prompt;
  changed(page, "both");
}

async function takeFile(page, file) {
  try {
    take(page, await page.m.visionsource.read(file, page.catalogue?.targets.find((t) => t.name === page.choice?.target)?.square));
  } catch (problem) {
    if (!problem.remedy) throw problem;
    page.m.backend.fail(page, problem);
  }
}

/** What the models are to see: the picture with what was painted. `who`: "both" or "drafter". */
function composed({ vision, m }, who) {
  const { rows, cols } = grid(vision), edits = who === "both" ? vision.both : new Map([...vision.both, ...vision.drafter]);
  return m.visionsource.edited(who === "drafter" && vision.swapped ? vision.swapped : vision.source, edits, rows, cols);
}

function grid({ rows, cols }) {
  return { rows, cols };
}

/** The picture was changed: into the run in progress with the next round, else for the next run. */
async function changed(page, who) {
  const { m, vision } = page, active = m.store.isActive(page.run) || m.store.isActive(page.beside.run);
  vision.url = await composed(page, "both").catch(() => vision.source);
  vision.fresh = !active;
  remembers(page);
  page.touched = true;
  page.draw();
  if (!active) return;
  const apart = vision.drafter.size > 0 || vision.swapped;
  const wanted = [...(who === "both" ? [{ images: [vision.url], sees: "both" }] : []), ...(who === "drafter" || apart ? [{ images: [await composed(page, "drafter")], sees: "drafter" }] : [])];
  for (const seat of [page, page.beside]) if (m.store.isActive(seat.run)) deliver(page, seat.run, wanted);
}

/** Send changes of pictures one after the other, once the backend has given the run its id. */
function deliver(page, run, wanted) {
  const send = async () => {
    for (const change of wanted) if (page.m.store.isActive(run)) await page.m.backend.ask(page, "repicture", { run: run.id, ...change });
    run.repictured = true;
  };
  if (run.id === null) (run.after ??= []).push(send);
  else send();
}

/** One stroke over a patch. */
function paint(page, { patch }) {
  const { vision } = page, layer = vision.scope === "drafter" ? vision.drafter : vision.both;
  if (vision.tool === "restore") for (const each of [vision.both, vision.drafter]) each.delete(patch);
  else layer.set(patch, vision.tool);
  vision.painted = vision.tool === "restore" ? "both" : vision.scope;
  page.draw();
}

// -- Runs --------------------------------------------------------------------------------------------------------------

async function start(page, paused) {
  const { m, vision, catalogue } = page;
  if (!catalogue || running(page) || m.store.isActive(page.plain)) return;
  if (!vision.source) return m.backend.fail(page, { message: "There is no picture yet.", remedy: EMPTY_REMEDY });
  page.choice.images = [await composed(page, "both")];
  page.host.remember?.setItem(SCENE, vision.scene);
  m.backend.start(page, paused);
  m.bar.toTokens(page.parts);
  const runs = [begun(page, page.run)];
  vision.fresh = false;
  remembers(page);
  page.beside.run = null;
  page.beside.host.remember?.removeItem("wb-run");
  if (vision.besideMethod) {
    page.beside.choice = { ...page.choice, method: vision.besideMethod, drafter: vision.besideDrafter ?? page.choice.drafter };
    m.backend.start(page.beside, paused);
    runs.push(begun(page, page.beside.run));
    runs[0].pair = runs[1]; // shown together again, too
  }
  if (vision.drafter.size || vision.swapped) {
    const images = [await composed(page, "drafter")];
    for (const run of runs) deliver(page, run, [{ images, sees: "drafter" }]);
  }
}

const EMPTY_REMEDY = "Choose one from the gallery, upload or paste one, or draw it.";

function begun(page, run) {
  const { scene, alt } = page.vision;
  page.vision.history.push(Object.assign(run, { question: page.choice.prompt, scene, alt }));
  return run;
}

function running(page) {
  return page.m.store.isActive(page.run) || page.m.store.isActive(page.beside.run);
}

/** Pause, resume, step or cancel both runs. */
function control(page, action) {
  for (const seat of [page, page.beside]) page.m.backend.control(seat, action);
}

function ended(page, run) {
  if (run === page.run) {
    if (page.next) page.announce(true); else page.ending = run;
    page.vision.fresh ||= Boolean(run.repictured) && !page.m.visiondata.pictureMarks(page.m.store.visible(run)).length; // painted after its last round
  }
  if (!running(page)) page.stepping = false;
  if (run.state !== "error" && run !== page.plain) explain(page, run);
  const next = page.next;
  if (!running(page) && next) next((page.next = null));
  else if (page.wantPlain && !running(page)) page.m.backend.startPlain(page);
}

/** Ask what the words of an ended run rest on. */
async function explain(page, run) {
  if (!run.id || run.attribution || run.asked || !page.m.store.visible(run).length) return;
  run.asked = run.asking = true;
  const far = setInterval(() => howFar(page, run), ASK_MS);
  const answer = await page.host.call("explain", { run: run.id }).catch(() => null);
  clearInterval(far);
  run.asking = false;
  if (answer?.error) page.notices.push({ kind: "note", message: `What the words lean on is not known: ${answer.error.message}`, remedy: answer.error.remedy ?? "" });
  run.attribution = answer?.attribution ?? null;
  page.draw();
}

async function howFar(page, run) {
  const answer = await page.host.call("explaining", { run: run.id }).catch(() => null);
  if (!run.asking) return;
  run.explained = answer?.done ?? null;
  page.draw();
}

/** Show a run of this visit again. */
function again(page, id) {
  const { m, vision } = page, run = vision.history.find((r) => r.channel === id);
  if (!run || running(page)) return;
  const keep = vision.history;
  page.fresh();
  Object.assign(page, { run: Object.assign(run, { closed: true }) });
  page.beside.run = run.pair ? Object.assign(run.pair, { closed: true }) : null;
  vision.history = keep;
  if (run.header) adopt(page, run.header, run);
  m.backend.watch(page);
  page.draw();
}

function fresh(page) {
  page.m.opening.fresh(page);
  Object.assign(page, { on: "run" });
  Object.assign(page.vision, { patch: null, query: null, picture: 0 });
}

// -- What the visitor does -----------------------------------------------------------------------------------------------

function actions(page) {
  const { m, parts } = page, seat = () => (page.on === "beside" && page.beside.run ? page.beside : page);
  const rounds = () => (seat().run ? m.store.visible(seat().run) : []), to = (pick) => pick && pin(page, { ...pick, on: page.on });
  const presses = {
    run: () => start(page, false), stop: () => control(page, "cancel"), baseline: () => plain(page),
    pause: () => control(page, page.run?.state === "paused" ? "resume" : "pause"),
    step: async () => {
      if (!running(page)) await start(page, true);
      page.stepping = true;
      control(page, "step");
    },
  };
  const views = () => [parts.figures.firstChild, parts.picture.firstChild, parts.ribbon, parts.card, parts.curveCard, parts.slider];
  const playPause = () => (running(page) ? page.actions.press("pause") : m.actions.playPause(page)), none = () => {};
  return { ...m.actions.of(page, { rounds, to, presses, views }), playPause, sum: none, mode: none };
}

async function plain(page) {
  if (running(page)) return page.m.backend.startPlain(page);
  page.choice.images = [await composed(page, "both")];
  page.m.backend.startPlain(page);
}

function pin(page, pick) {
  page.on = pick.on ?? "run";
  page.m.actions.pin(page, pick);
}

function choose(page, what, value) {
  const { m, choice } = page, active = running(page);
  m.actions.choose(page, what, value);
  if (what === "pace") m.backend.change(page.beside, { pace: value });
  if (what === "target" || what === "drafter") look(page, choice.target, choice.drafter).then(page.draw);
  if (active && what === "prompt") page.note = "This takes effect with the next run.";
}

function wire(page, el) {
  const { parts, m, vision } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail ?? {}, event)), click = (part, act) => parts[part].addEventListener("click", act);
  const set = (change) => {
    Object.assign(page, change, { scroll: false });
    page.draw();
  };
  const see = (change) => {
    Object.assign(vision, change);
    page.draw();
  };
  on("wb:redraw", () => page.draw());
  on("wb:press", ({ button }) => page.actions.press(button));
  on("wb:choose", ({ what, value }) => choose(page, what, value));
  on("wb:param", (detail) => m.actions.setParam(page, detail));
  on("wb:pick", (pick) => pin(page, pick));
  on("wb:again", ({ id }) => again(page, id));
  on("wb:picture", (scene) => take(page, scene));
  on("wb:sketch", (sketch) => take(page, sketch));
  on("wb:file", ({ file }) => takeFile(page, file));
  on("wb:paste", () => m.visionsource.pasted().then((file) => takeFile(page, file), (problem) => m.backend.fail(page, problem)));
  on("wb:alt", ({ alt }) => see({ alt }));
  on("wb:query", ({ query }) => see({ query }));
  on("wb:paint", (stroke) => paint(page, stroke));
  on("wb:painted", () => vision.painted && changed(page, vision.painted).finally(() => (vision.painted = null)));
  on("wb:unpaint", () => {
    Object.assign(vision, { both: new Map(), drafter: new Map(), swapped: null });
    changed(page, "both");
  });
  on("wb:vision", ({ what, value }) => {
    if (what === "beside") see({ besideMethod: value });
    else see({ [what]: value });
    page.touched = true;
    if (what === "besideDrafter" || what === "beside") page.note = running(page) ? "This takes effect with the next run." : "";
  });
  for (const name of ["picture", "target", "drafter"]) parts[name].addEventListener("wb:patch", ({ detail: { patch } }) => see({ patch, over: name === "drafter" ? "drafter" : "target" }));
  for (const name of ["target", "drafter"]) parts[`${name}Mode`].addEventListener("click", (event) => event.target.dataset.value && see({ mode: { ...vision.mode, [name]: event.target.dataset.value } }));
  parts.how.addEventListener("click", (event) => event.target.dataset.value && see({ how: event.target.dataset.value }));
  parts.ghosts.addEventListener("change", () => set({ ghosts: parts.ghosts.checked }));
  parts.slider.addEventListener("input", () => pin(page, { round: Number(parts.slider.value) - 1 }));
  click("back", () => page.actions.round(-1));
  click("forth", () => page.actions.round(1));
  click("jump", () => ((page.on = "run"), page.actions.follow()));
  click("play", () => m.actions.playPause(page));
  click("theme", () => page.host.theme?.());
  click("help", () => parts.keys.showModal());
  click("copy", () => copy(page));
  click("open", () => parts.file.click());
  click("export", () => menu(parts, parts.exports.hidden));
  document.addEventListener("click", (event) => event.target.closest(".wb-menu") || menu(parts, false));
  parts.exports.parentElement.addEventListener("keydown", (event) => event.key === "Escape" && menu(parts, false));
  parts.file.addEventListener("change", () => open(page, parts.file.files[0]).finally(() => (parts.file.value = "")));
  m.kit.set(parts.export, { "aria-haspopup": "true", "aria-expanded": "false" });
  captions(page, set);
  el.addEventListener("paste", (event) => dropped(page, event, event.clipboardData));
  document.addEventListener("paste", (event) => el.contains(event.target) || (page.host.isOpen?.() !== false && dropped(page, event, event.clipboardData)));
  el.addEventListener("dragover", (event) => event.preventDefault());
  el.addEventListener("drop", (event) => dropped(page, event, event.dataTransfer));
}

/** Words are previewed by pointing and held by a click, in either caption. */
function captions(page, set) {
  const { parts, m } = page;
  for (const [name, on] of [["ribbon", "run"], ["beside", "beside"]]) {
    const under = (event) => {
      const hit = event.target.closest("[data-node],[data-token],[data-round]");
      if (!hit) return null;
      const { round, node, token } = hit.dataset;
      return { on, round: Number(round ?? hit.closest("[data-round]").dataset.round), token: token === undefined ? null : Number(token), node: node === undefined ? null : Number(node) };
    };
    const hover = (pick) => {
      page.selection.hover = pick;
      set({ on: pick ? on : (page.selection.pin?.on ?? "run") });
    };
    parts[name].addEventListener("pointerover", (event) => event.pointerType !== "touch" && !page.playing && hover(under(event)));
    parts[name].addEventListener("pointerleave", () => page.selection.hover && hover(null));
    parts[name].addEventListener("click", (event) => under(event) && pin(page, under(event)));
    parts[name].addEventListener("focus", () => page.beside.run && set({ on }));
  }
}

function dropped(page, event, held) {
  const file = page.m.visionsource.among(held);
  if (!file) return; // text goes where text goes
  event.preventDefault();
  event.stopPropagation();
  takeFile(page, file);
}

async function open(page, file) {
  const before = page.run;
  if (running(page)) return page.m.backend.fail(page, { message: "A run is in progress.", remedy: "Stop it, then open the file." });
  await page.m.opening.open(page, file);
  if (page.run === before || !page.run) return;
  Object.assign(page.run, { question: question(page.run.header) });
  page.beside.run = null;
  page.vision.history.push(page.run);
  if (page.run.header.pictures?.length) adopt(page, page.run.header);
  else page.notices.push({ kind: "note", message: "This trace has no picture.", remedy: "Open it in the Live tab to see all of it." });
  page.draw();
}

function menu(parts, on) {
  parts.exports.hidden = !on;
  parts.export.setAttribute("aria-expanded", String(on));
}

async function copy(page) {
  const url = page.host.address.url(query(page)), done = await navigator.clipboard?.writeText(url).then(() => true, () => false);
  const lost = page.vision.source && !page.vision.scene && !page.recorded ? " A picture of your own is not in it." : "";
  page.note = (done ? "The link is in the clipboard." : url) + lost;
  page.parts.live.textContent = done ? "Link copied" : "The link is under the buttons";
  page.draw();
}

/** What is shown, as the query of an address. */
export function query(page) {
  const { m, choice, catalogue, vision } = page, pin = page.playing ? null : (page.selection.pin ?? page.wish), params = m.choice.parameters(choice, catalogue, choice.method, m.form.clamp);
  const made = new URLSearchParams(m.link.toQuery(choice, catalogue, params, { pin, embed: page.embed, recorded: page.recorded, settings: !page.recorded || page.formed }));
  if (page.recorded && !page.formed) return made.toString();
  for (const [name, value] of [["scene", vision.scene], ["beside", vision.besideMethod || "none"], ["beside_drafter", vision.besideDrafter]]) if (value) made.set(name, value);
  return made.toString();
}

// -- Drawing -----------------------------------------------------------------------------------------------------------

function tick(page) {
  const { m } = page;
  for (const seat of [page, page.beside]) m.backend.watch(seat);
  page.lost ||= page.beside.lost;
  announce(page, false);
  if (page.lost || (page.run && m.store.isActive(page.run) && !page.run.rounds.length)) page.draw();
  m.opening.say(page);
}

/** Tell a screen reader: every round while stepping, a summary every few seconds while it runs, and the end. */
function announce(page, over) {
  const { run, m } = page;
  if (!run || run.from !== "live") return;
  const rounds = m.store.visible(run), now = performance.now(), last = rounds.at(-1);
  let text = null;
  if (over) text = m.words.heard(m.figures.summary(rounds), true);
  else if (page.stepping && rounds.length !== page.heardRounds && last) text = `${last.vision?.pictures?.length ? "The picture was changed. " : ""}${m.ribbon.describe(last)}`;
  else if (m.store.isActive(run) && run.state === "running" && now - page.heardAt > ANNOUNCE_MS && last) text = m.words.heard(m.figures.summary(rounds), false);
  if (text === null) return;
  Object.assign(page, { heardAt: now, heardRounds: rounds.length });
  page.parts.live.textContent = text;
}

function draw(page) {
  page.m.opening.saySoon(page);
  const { m, vision, parts } = page;
  const now = performance.now();
  m.pace.notice([page, page.beside], false, now);
  page.view = m.visionview.of(page, now);
  m.pace.again(page, [page.view.arriving, page.view.second?.arriving]);
  m.pace.tellEnd(page);
  m.visionstage.draw(parts, m, page.view);
  if (page.stepping) announce(page, false);
  if (!page.catalogue) return;
  const { catalogue } = page, panel = m.view.panel(page, page.view), besideMethod = catalogue.methods.find((x) => x.name === vision.besideMethod);
  panel.run.active ||= running(page);
  m.controls.render(parts.controls, panel);
  m.bar.render(parts.bar, panel, m);
  m.visionpanel.render(parts.controls, {
    scenes: vision.scenes, chosen: vision.scene, alt: vision.alt, tool: vision.tool, scope: vision.scope, painted: vision.both.size + vision.drafter.size + (vision.swapped ? 1 : 0), active: running(page),
    features: catalogue.methods.find((x) => x.name === page.choice.method)?.reads_target ?? false,
    note: running(page) ? "Another picture chosen now is swapped in with the next round." : vision.note,
    besides: catalogue.methods, beside: vision.besideMethod, drafters: catalogue.drafters, besideDrafter: besideMethod?.needs.includes("drafter") ? (vision.besideDrafter ?? page.choice.drafter) : null,
    besideNote: besideMethod?.teaches ?? "runs at the same time, over the same picture and question",
  }, m);
}

export default { mount, render };
