/** The Live view: connects side panel, drawings and backend. Its host is a page, a notebook or a file.
 *
 *  @typedef {{call?: (name: string, payload: object) => Promise<any>, decode?: (request: object) => void,
 *             listen?: (hear: (message: object) => void) => void, theme?: () => void, remember?: Storage, base?:
 *             string, sources?: () => Promise<object>,
 *             isOpen?: () => boolean, go?: (tab: string) => void,
 *             address?: {read: () => string, write: (query: string) => void, url: (query: string) => string}}} Host
 *  `decode` starts a run whose messages arrive through `listen`; closing the page ends it. `call` returns an answer.
 *  A host without `call` shows the trace it provides, and cannot start runs.
 */

import * as actions from "./actions.js";
import * as automatic from "./autobaseline.js";
import * as backend from "./backend.js";
import * as bar from "./bar.js";
import * as cardsheet from "./cardsheet.js";
import * as branching from "./branching.js";
import * as controls from "../shared/controls.js";
import * as copying from "../shared/copying.js";
import * as intro from "./intro.js";
import * as redraw from "./redraw.js";
import * as memory from "./memory.js";
import * as opening from "./opening.js";
import * as methodpicker from "../shared/methodpicker.js";
import * as pace from "./pace.js";
import * as preferences from "../shared/preferences.js";
import * as race from "./race.js";
import * as repeats from "./repeats.js";
import * as research from "./research.js";
import * as ribbon from "../shared/ribbon.js";
import * as roles from "../shared/roles.js";
import * as runpage from "./runpage.js";
import * as stage from "./stage.js";
import * as store from "../shared/store.js";
import * as tour from "./tour.js";
import * as view from "./view.js";
import * as waterfall from "./waterfall.js";
import * as whatif from "./whatif.js";

/** Mount the view in `el`.
 *  @param {any} el  @param {{host: Host, trace?: object, embed?: boolean}} given  `trace`: shown at once */
export function mount(el, { host, trace = null, embed = false }) {
  return runpage.open(el, {
    parts: stage.build(el, host), host, embed, wire, tick,
    state: {
      pairs: null, arrival: null, still: false, formed: false, race: race.newRace(),
      autoBaseline: host.address && preferences.isOn(automatic.PREFERENCE, true), // not in a notebook
      intro: !embed && Boolean(host.address) && preferences.isOn(intro.PREFERENCE, true),
    },
    draw,
    begin: (page) => {
      redraw.setDrawing(page, page.draw);
      page.clear = () => opening.clearPage(page);
      page.settings = () => actions.settings(page);
      page.ended = (run) => actions.ended(page, run);
    },
    onMessage: (page, message) => {
      repeats.onMessage(page, message);
      backend.onMessage(page, message);
      branching.note(page);
    },
    actions: (page) => actions.of(page),
    textOf: (page) => copying.textOf(page.run),
    arrive: async (page) => {
      const looked = backend.loadCatalogue(page, null, null);
      if (!trace) opening.showExample(page, looked);
      await looked;
      await opening.arrive(page, trace ?? opening.handedTrace());
      await branching.restore(page);
      await tour.restore(page);
      addEventListener("wb:tab", ({ detail }) => detail === "live" && opening.takeHandedTrace(page), { signal: page.signal });
    },
    stepped: opening.stepped,
    query: actions.query,
    open: opening.open,
    applyFrame: (page) => {
      applyFrame(page);
      actions.estimate(page);
    },
    menu: (page) => ({
      trace: () => whole(page),
      kept: (id) => opening.useKeptAddress(page, id),
      baseline: () => repeats.baseline(page),
    }),
  });
}

/** Return the displayed run for export; a recording that is still playing arrives completely first. */
function whole(page) {
  page.feeding?.stop();
  draw(page, true); // exports include parts outside the viewport
  return page.run ? store.toTrace(page.run) : null;
}

function wire(page, on, click) {
  const { parts } = page;
  const set = (change) => {
    Object.assign(page, change, { scroll: false });
    page.draw();
  };
  on("wb:choose", ({ what, value }) => actions.choose(page, what, value));
  on("wb:param", (detail) => actions.setParam(page, detail));
  on("wb:pick", (pick) => actions.pin(page, pick));
  on("wb:branch", (pick) => actions.branch(page, pick));
  on("wb:brush", (range) => set({ brush: range && [range.from, range.to] }));
  // lessons, notebooks and replays explain the rejected drafts
  ribbon.listenSwitches(parts, (ghosts) => set({ ghosts }), { drafts: page.embed || !page.host.call });
  parts.threshold.addEventListener("input", () => set({ threshold: Number(parts.threshold.value) }));
  parts.threshold.addEventListener("input", () =>
    parts.threshold.style.setProperty("--fill", `${200 * parts.threshold.value}%`),
  );
  parts.modes.addEventListener(
    "click",
    (event) => event.target.dataset.mode && set({ mode: event.target.dataset.mode }),
  );
  parts.slider.addEventListener("input", () => actions.pin(page, { round: Number(parts.slider.value) - 1 }));
  click("pairsGo", () => repeats.toggle(page));
  click("back", () => page.actions.round(-1));
  click("forth", () => page.actions.round(1));
  click("jump", () => page.actions.follow());
  click("play", () => actions.playPause(page));
  click("runHere", () => page.actions.press("run"));
  click("whatif", () => whatif.open(page));
  click("introClose", () => {
    preferences.set(intro.PREFERENCE, false);
    set({ intro: false });
  });
  click("raceReplay", () => opening.toggleRace(page));
  click("raceLive", () => page.actions.press("run"));
  click("raceOther", () => page.el.querySelector(".wb-browse")?.click());
  click("raceWhy", () => waterfall.open(page));
  click("why", () => waterfall.open(page));
  click("treeHindsight", () => set({ hindsight: !page.hindsight }));
  tour.wire(page);
  memory.listen(page);
  research.listen(page);
  parts.whatif.hidden = !page.host.call;
  click("originBack", () => branching.showOther(page));
  branching.offerBeside(page);
  const under = (event) => {
    const at = event.target.closest("[data-node],[data-token],[data-round]");
    if (!at) return null;
    const round = at.dataset.round === undefined ? page.view?.shown?.round : Number(at.dataset.round);
    const { node, token } = at.dataset;
    return round === undefined
      ? null
      : {
          round,
          token: token === undefined ? null : Number(token),
          node: node === undefined ? null : node === "target" || node === "-1" ? node : Number(node),
        };
  };
  let waits = false; // after a click, until the pointer moves: the page may have moved below it
  const hover = (pick) => {
    page.selection.hover = pick;
    set({});
  };
  cardsheet.build(parts);
  for (const region of [parts.ribbon, parts.tree, parts.mask, parts.treeList, parts.cache]) {
    region.addEventListener(
      "pointerover",
      (event) => event.pointerType !== "touch" && !page.playing && !waits && hover(under(event)),
    );
    region.addEventListener("pointermove", (event) => (waits &&= !event.movementX && !event.movementY));
    region.addEventListener("pointerleave", () => page.selection.hover && hover(null));
    region.addEventListener("click", (event) => {
      const pick = under(event),
        marked = getSelection();
      // do not pin while text is being selected
      if (pick && (marked.isCollapsed || !parts.ribbon.contains(marked.anchorNode))) {
        actions.pin(page, pick);
        waits = true;
        if (region === parts.ribbon) cardsheet.show(page, event.target);
      }
    });
  }
}

function tick(page) {
  backend.watch(page);
  memory.tick(page);
  repeats.stopStale(page);
  page.announce(false);
  if (page.lost || (page.run && store.isActive(page.run) && !page.run.rounds.length)) page.draw();
  opening.writeAddress(page);
}

function draw(page, all = false) {
  const { pendingPin } = page;
  if (pendingPin && page.run?.from === "live" && store.visible(page.run)[pendingPin.round]) {
    page.selection.pin = pendingPin; // the round that a link names has arrived
    page.pendingPin = null;
    page.scroll = true;
  }
  const now = performance.now();
  pace.notice([page], all, now);
  page.view = view.of(page, now);
  pace.again(page, [page.view.arriving]);
  pace.announceEnd(page);
  const whole = redraw.all(page, now) || all;
  stage.draw(page.parts, { ...page.view, all: all || !page.view.active, whole });
  if (whole) research.update(page);
  if (page.stepping) page.announce(false);
  if (!page.catalogue || !whole) return;
  const panel = {
    ...view.panel(page, page.view),
    roles: roles,
    picker: (data) => methodpicker.build(() => ({ ...data(), speeds: () => speeds(page) })),
  };
  controls.render(page.parts.side, panel);
  bar.render(page.parts.bar, panel);
  opening.writeAddressSoon(page);
}

/** Return the measured speed of each method on the chosen target; none without a backend. */
async function speeds({ host, choice }) {
  const answer = await host.call?.("speeds", { target: choice.target }).catch(() => null);
  return answer && !answer.error ? answer : {};
}

/** Adapt the frame to embedding and to the address. */
function applyFrame(page) {
  const { el, parts, host } = page;
  el.classList.toggle("is-embedded", page.embed || !host.call);
  el.dataset.view = page.shownView ?? "";
  parts.copy.hidden = !host.address;
  parts.open.hidden = !host.address || page.embed;
  parts.runHere.hidden = !page.embed || !host.decode;
  if (page.shownView && !page.embed) page.actions.view({ tokens: 1, tree: 2, clock: 3, curves: 4 }[page.shownView]);
}
