/** What the visitor does: choices in the panel, picks in the drawings, buttons and keys. */

const MODES = ["spine", "levels", "mask", "list"];

/** What buttons and keys do in Live. */
function live(page) {
  const { m, parts } = page, rounds = () => (page.run ? m.store.visible(page.run) : []);
  const to = (pick) => pick && pin(page, pick);
  const presses = {
    run: () => start(page, false), stop: () => m.backend.control(page, "cancel"), baseline: () => m.backend.startPlain(page),
    pause: () => m.backend.control(page, page.run?.state === "paused" ? "resume" : "pause"),
    step: () => {
      if (!m.store.isActive(page.run)) start(page, true);
      page.stepping = true;
      m.backend.control(page, "step");
    },
  };
  const views = () => [parts.figures.firstChild, parts.ribbon, [parts.tree, parts.tree, parts.mask, parts.treeList][MODES.indexOf(page.mode)], parts.laneCard, parts.curveCard, parts.slider];
  return { rounds, to, presses, views };
}

function start(page, paused) {
  page.m.backend.start(page, paused);
  page.m.bar.toTokens(page.parts);
}

/** What buttons and keys do. @param {object} own  of a view: the `rounds` it shows, `to` pin one, `presses` of its buttons,
 *  its `views` for the keys 1 to 6 */
export function of(page, { rounds, to, presses, views } = live(page)) {
  const { m, parts } = page, at = () => m.selection.shown(page.selection, rounds());
  return {
    token: (direction) => to(m.selection.stepToken(at(), rounds(), direction)),
    round: (direction) => to(m.selection.stepRound(at(), rounds(), direction)),
    node: (key) => at() && to({ round: at().round, node: m.treemodel.neighbour(m.treemodel.places(m.treemodel.model(rounds()[at().round], { threshold: page.threshold, keep: at().node })), at().node, key) }),
    first: () => rounds().length && to({ round: 0 }),
    last: () => rounds().length && to({ round: rounds().length - 1 }),
    hold: () => to(at()),
    sum: (direction) => {
      const here = at()?.round ?? 0, [from, end] = page.brush ?? [here, here];
      page.brush = rounds().length ? [from, Math.max(from, Math.min(rounds().length - 1, end + direction))] : null;
      page.draw();
    },
    follow: () => {
      page.m.player.stop(page);
      page.selection = m.selection.newSelection();
      page.brush = null;
      m.ribbon.catchUp(parts.ribbon);
      page.draw();
    },
    mode: () => {
      page.mode = MODES[(MODES.indexOf(page.mode) + 1) % MODES.length];
      page.draw();
    },
    view: (i) => {
      const target = views()[i];
      if (!target) return;
      if (target.tabIndex < 0) target.tabIndex = -1;
      target.focus({ preventScroll: true });
      target.scrollIntoView({ block: "nearest" });
    },
    playPause: () => (m.store.isActive(page.run) ? page.actions.press("pause") : playPause(page)),
    press: (button) => {
      const reason = page.catalogue?.barred?.[button];
      if (!reason) return presses[button]();
      page.note = reason; // a key may ask for what its button does not offer
      page.draw();
    },
    help: () => parts.keys.showModal(),
  };
}

/** Hold what is shown at a place of the run. */
export function pin(page, pick) {
  page.m.player.stop(page);
  page.touched = true;
  page.selection = { hover: null, pin: pick };
  page.scroll = true;
  page.brush = null;
  page.draw();
}

/** A run has ended: say it, then go on with what was waiting for it. */
export function ended(page, run) {
  if (run === page.plain) page.m.repeats.follow(page);
  if (run !== page.run) return;
  page.stepping = false;
  const next = page.next;
  if (next) page.announce(true); // another run takes its place now
  else page.ending = run;
  page.next = null;
  if (next) next();
  else if (page.wantPlain) page.m.backend.startPlain(page);
}

/** Something in the panel was chosen. */
export function choose(page, what, value) {
  const { m, choice } = page, active = m.store.isActive(page.run);
  page.note = "";
  const before = choice.target;
  if (what === "preset") {
    const picked = m.choice.pick(choice, page.catalogue, value);
    Object.assign(choice, picked.choice);
    page.note = picked.note;
  } else choice[what] = value;
  if (what === "pace") m.pace.remember(value);
  if (what === "prompt") choice.preset = page.catalogue.presets.find((p) => p.prompt === value)?.name ?? null;
  if (["prompt", "preset", "prompt_tokens", "target"].includes(what)) Object.assign(choice, { prompt_tokens: null, origin: null });
  if (active && page.catalogue.barred?.change) page.note = page.catalogue.barred.change;
  else if (what === "method" && active) m.backend.change(page, { method: value, params: m.choice.parameters(choice, page.catalogue, value, m.form.clamp) });
  else if (what === "drafter" && active) m.backend.change(page, { drafter: value });
  else if (what === "pace" && active) m.backend.change(page, { pace: value });
  else if (active) page.note = "This takes effect with the next run.";
  if (choice.target !== before || what === "target" || what === "drafter") m.backend.look(page, choice.target, choice.drafter);
  page.wish = null;
  page.touched = page.formed = true;
  estimate(page);
  page.draw();
}

/** A parameter was set; a run in progress takes it over. */
export function setParam(page, { name, value, note }) {
  page.choice.params[name] = value;
  const barred = page.m.store.isActive(page.run) && page.catalogue.barred?.change;
  page.note = barred || note;
  page.touched = page.formed = true;
  if (!barred) page.m.backend.change(page, { params: { [name]: value } });
  estimate(page);
  page.draw();
}

/** What a run will cost, where the backend can say. */
export async function estimate(page) {
  const { m, choice, catalogue } = page;
  if (!catalogue?.estimates) return;
  const answer = await page.host.call("estimate", m.choice.request(choice, catalogue, "", m.form.clamp, false)).catch(() => null);
  page.estimate = answer?.text ?? "";
  page.draw();
}

/** A new run whose prompt is the text up to a token of choice. A run in progress is stopped first; it is kept. */
export function branch(page, pick) {
  const { m, run } = page, rounds = m.store.visible(run);
  const made = m.branch.continuation(run.header, rounds, pick);
  const origin = { run, round: pick.round, text: pick.text, instead: m.branch.instead(rounds[pick.round], pick.place) };
  Object.assign(page.choice, made, { origin, preset: null, target: run.header.target });
  const go = () => m.backend.start(page, false);
  if (m.store.isActive(run)) {
    page.next = go;
    m.backend.control(page, "cancel");
  } else go();
}

/** Put a link to what is shown into the clipboard, or under the buttons where there is none. */
export async function copy(page) {
  const url = page.host.address.url(query(page));
  const done = await page.m.copying.put(url);
  page.note = done ? "The link is in the clipboard." : url;
  page.parts.live.textContent = done ? "Link copied" : "The link is under the buttons";
  page.draw();
}

/** What is shown, as the query of an address. */
export function query(page) {
  const { m, choice, catalogue } = page, pin = page.playing ? null : (page.selection.pin ?? page.wish);
  const params = m.choice.parameters(choice, catalogue, choice.method, m.form.clamp);
  const recorded = page.recorded !== m.opening.EXAMPLE || pin ? page.recorded : null;
  return m.link.toQuery(choice, catalogue, params, { pin, view: page.shownView, embed: page.embed, recorded, settings: !recorded || page.formed });
}

/** Play from where one is, or stop. */
export function playPause(page) {
  if (page.playing) return page.m.player.stop(page), page.draw();
  page.feeding?.stop();
  const rounds = page.run ? page.m.store.visible(page.run) : [];
  if (!rounds.length) return;
  page.playing = () => {};
  page.playing = page.m.player.play({
    rounds, from: page.selection.pin?.round ?? 0, speed: () => Number(page.parts.speed.value),
    show: (round) => {
      page.selection = { hover: null, pin: { round } };
      page.scroll = true;
      page.draw();
    },
    over: () => {
      page.playing = null;
      page.draw();
    },
  });
}
