/** The Live view: joins the side panel, the drawings and a backend. The only module that knows the others exist,
 *  and it gets them as an argument, so that it can be hosted by a page, a notebook or a file.
 *
 *  @typedef {{call?: (name: string, payload: object) => Promise<any>, decode?: (request: object) => void,
 *             listen?: (hear: (message: object) => void) => void, theme?: () => void, remember?: Storage, base?: string,
 *             isOpen?: () => boolean, go?: (tab: string) => void,
 *             address?: {read: () => string, write: (query: string) => void, url: (query: string) => string}}} Host
 *  `decode` starts a run whose messages arrive through `listen`; closing the page ends it. `call` is answered at once.
 *  A host without `call` shows the trace it gives, and starts nothing.
 */

const ANNOUNCE_MS = 5000;

/** Put the view into `el`.
 *  @param {{modules: Record<string, object>, host: Host, trace?: object, embed?: boolean}} given  `trace`: shown at once */
export async function mount(el, { modules: m, host, trace = null, embed = false }) {
  const parts = m.stage.build(el, m);
  if (host.base === undefined) parts.nav.hidden = true;
  else m.pagehead.fill(parts.nav, m.kit, host, "Live");
  const page = {
    el, parts, m, host, catalogue: null, choice: null, run: null, plain: null, plainKey: "", pairs: null, errors: [], notices: [], selection: m.selection.newSelection(), wish: null,
    brush: null, ghosts: true, threshold: 0, mode: "spine", wantPlain: false, note: "", changes: {}, channels: 0, playing: null, feeding: null, next: null, lost: 0,
    arrival: null, still: false, scroll: false, heardAt: 0, heardRounds: 0, stepping: false, embed, shownView: null, recorded: null, estimate: "", touched: false, formed: false,
  };
  m.haste.drawing(page, m.kit.paced(() => host.isOpen?.() !== false && draw(page))); // when its tab is opened again, its size changes
  page.fresh = () => m.opening.fresh(page);
  page.describe = () => m.actions.query(page);
  page.ended = (run) => m.actions.ended(page, run);
  page.announce = (over) => announce(page, over);
  host.listen?.((message) => (m.repeats.hear(page, message), m.backend.hear(page, message)));
  parts.textOf = () => m.copying.textOf(page.run);
  m.copying.listen(el);
  wire(page, el);
  m.keyboard.listen(page, (page.actions = m.actions.of(page)));
  new ResizeObserver(page.draw).observe(parts.stage);
  page.timer = setInterval(() => tick(page), 1000);
  page.draw();
  const looked = m.backend.look(page, null, null);
  if (!trace) m.opening.greet(page);
  await looked;
  await m.opening.arrive(page, trace ?? m.opening.handed());
  addEventListener("wb:tab", ({ detail }) => detail === "live" && m.opening.take(page));
  addEventListener("wb:address", () => host.address && host.isOpen?.() !== false && m.opening.stepped(page));
  m.opening.dress(page);
  m.actions.estimate(page);
  page.draw();
  m.exports?.mount(parts.exports, { trace: () => whole(page), stage: parts.stage, host, modules: m, definitions: () => page.view?.definitions ?? {}, keeps: page.catalogue?.keeps, kept: (id) => m.opening.kept(page, id) });
  el.dataset.ready = "true";
  return page;
}

/** The run that is shown, for a file: a recording that is still playing arrives whole first. */
function whole(page) {
  page.feeding?.stop();
  draw(page, true); // pictures are taken of what is out of sight, too
  return page.run ? page.m.store.toTrace(page.run) : null;
}

function wire(page, el) {
  const { parts, m } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail)), click = (part, act) => parts[part].addEventListener("click", act);
  const set = (change) => {
    Object.assign(page, change, { scroll: false });
    page.draw();
  };
  on("wb:redraw", () => page.draw());
  on("wb:press", ({ button }) => page.actions.press(button));
  on("wb:choose", ({ what, value }) => m.actions.choose(page, what, value));
  on("wb:param", (detail) => m.actions.setParam(page, detail));
  on("wb:pick", (pick) => m.actions.pin(page, pick));
  on("wb:branch", (pick) => m.actions.branch(page, pick));
  on("wb:brush", ({ from, to }) => set({ brush: [from, to] }));
  parts.ghosts.addEventListener("change", () => set({ ghosts: parts.ghosts.checked }));
  parts.threshold.addEventListener("input", () => set({ threshold: Number(parts.threshold.value) }));
  parts.threshold.addEventListener("input", () => parts.threshold.style.setProperty("--fill", `${200 * parts.threshold.value}%`));
  parts.modes.addEventListener("click", (event) => event.target.dataset.mode && set({ mode: event.target.dataset.mode }));
  parts.slider.addEventListener("input", () => m.actions.pin(page, { round: Number(parts.slider.value) - 1 }));
  click("pairsGo", () => m.repeats.toggle(page));
  click("back", () => page.actions.round(-1));
  click("forth", () => page.actions.round(1));
  click("jump", () => page.actions.follow());
  click("play", () => m.actions.playPause(page));
  click("theme", () => page.host.theme?.());
  click("help", () => parts.keys.showModal());
  click("runHere", () => page.actions.press("run"));
  click("copy", () => m.actions.copy(page));
  click("whatif", () => m.whatif.open(page));
  parts.whatif.hidden = !page.host.call;
  click("open", () => parts.file.click());
  click("originBack", () => m.opening.show(page, page.run.origin.run));
  click("export", () => menu(parts, parts.exports.hidden));
  document.addEventListener("click", (event) => event.target.closest(".wb-menu") || menu(parts, false));
  parts.exports.parentElement.addEventListener("keydown", (event) => event.key === "Escape" && menu(parts, false));
  parts.file.addEventListener("change", () => m.opening.open(page, parts.file.files[0]).finally(() => (parts.file.value = "")));
  const under = (event) => {
    const at = event.target.closest("[data-node],[data-token],[data-round]");
    if (!at) return null;
    const round = at.dataset.round === undefined ? page.view?.shown?.round : Number(at.dataset.round);
    const { node, token } = at.dataset;
    return round === undefined ? null : { round, token: token === undefined ? null : Number(token), node: node === undefined ? null : node === "target" || node === "-1" ? node : Number(node) };
  };
  const hover = (pick) => {
    page.selection.hover = pick;
    set({});
  };
  for (const region of [parts.ribbon, parts.tree, parts.mask, parts.treeList]) {
    region.addEventListener("pointerover", (event) => event.pointerType !== "touch" && !page.playing && hover(under(event)));
    region.addEventListener("pointerleave", () => page.selection.hover && hover(null));
    region.addEventListener("click", (event) => {
      const pick = under(event), marked = getSelection();
      if (pick && (marked.isCollapsed || !parts.ribbon.contains(marked.anchorNode))) m.actions.pin(page, pick); // text that is being selected is left alone
    });
  }
  m.kit.set(parts.export, { "aria-haspopup": "true", "aria-expanded": "false" });
}

function menu(parts, on) {
  parts.exports.hidden = !on;
  parts.export.setAttribute("aria-expanded", String(on));
}

function tick(page) {
  const { m } = page;
  m.backend.watch(page);
  m.repeats.tidy(page);
  announce(page, false);
  if (page.lost || (page.run && m.store.isActive(page.run) && !page.run.rounds.length)) page.draw();
  m.opening.say(page);
}

/** Tell a screen reader: every round while stepping, a summary every few seconds while it runs, and the end. */
function announce(page, over) {
  const { run, m } = page;
  if (!run || run.from !== "live") return;
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

function draw(page, all = false) {
  const { m, wish } = page;
  if (wish && page.run?.from === "live" && m.store.visible(page.run)[wish.round]) {
    page.selection.pin = wish; // the place that a link named exists now
    page.wish = null;
    page.scroll = true;
  }
  const now = performance.now();
  m.pace.notice([page], all, now);
  page.view = m.view.of(page, now);
  m.pace.again(page, [page.view.arriving]);
  m.pace.tellEnd(page);
  const whole = m.haste.all(page, now) || all;
  m.stage.draw(page.parts, m, { ...page.view, all: all || !page.view.active, whole });
  if (page.stepping) announce(page, false);
  if (!page.catalogue || !whole) return;
  const panel = { ...m.view.panel(page, page.view), roles: m.roles };
  m.controls.render(page.parts.side, panel);
  m.bar.render(page.parts.bar, panel, m);
  m.opening.saySoon(page);
}

export default { mount };
