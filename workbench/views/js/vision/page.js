/** The Vision tab: a question about an image, one or two drafters, and the image data that each gets. Like Live's page,
 *  it connects the parts. Everything drawn comes from traces, so recordings look the same.
 *
 *  A `page` has the fields that Live's modules use: a run, its baseline, choices, selection. The second drafter is a
 *  smaller page with its own run, which shares everything else.
 */

import * as backend from "../live/backend.js";
import * as bar from "../live/bar.js";
import * as opening from "../live/opening.js";
import * as pace from "../live/pace.js";
import * as runpage from "../live/runpage.js";
import * as view from "../live/view.js";
import * as controls from "../shared/controls.js";
import * as copying from "../shared/copying.js";
import * as store from "../shared/store.js";
import { arrive, show, stepped } from "./opening.js";
import { actions, lacking, open, query, wire } from "./actions.js";
import * as visionpanel from "./panel.js";
import { ended, clearPage, running } from "./runs.js";
import * as visionstage from "./stage.js";
import * as visionview from "./view.js";
import * as draftModels from "../shared/draftmodels.js";

/** Mount the tab in `el`. @param {any} el  @param {{host: any, trace?: object, beside?: object, embed?: boolean}} given
 *  */
export function mount(el, { host: outerHost, trace = null, beside = null, embed = false }) {
  el.classList.remove("wb-page");
  el.classList.add("wb-vision");
  const host = { ...outerHost, remember: own(outerHost.remember, "vision") },
    parts = visionstage.build(el, host);
  const vision = {
    scenes: [],
    lexicon: null,
    board: null,
    empty: "",
    rows: 8,
    cols: 8,
    scene: "",
    url: "",
    alt: "",
    source: "",
    fresh: true,
    picture: 0,
    patch: null,
    over: "target",
    how: "attention",
    query: null,
    mode: { target: "leans", drafter: "sees" },
    tool: "",
    scope: "both",
    both: new Map(),
    drafter: new Map(),
    history: [],
    besideMethod: "",
    besideDrafter: null,
    note: "",
  };
  // the Compare tab can use this image
  if (!embed) window.workbenchPicture = () => ({ url: vision.url, alt: vision.alt });
  return runpage.open(el, {
    parts,
    host,
    embed,
    wire,
    tick,
    draw,
    actions,
    stepped,
    query,
    open,
    lacking,
    applyFrame,
    state: { on: "run", definitions: {}, vision },
    begin: (page) => {
      page.beside = secondDrafters(page);
      page.clear = () => clearPage(page);
      page.ended = (run) => ended(page, run);
    },
    onMessage: (page, message) => {
      backend.onMessage(page, message);
      backend.onMessage(page.beside, message);
    },
    textOf: (page, name) => copying.textOf((name === "beside" ? page.beside : page).run),
    arrive: (page) => arrive(page, trace, beside),
    menu: (page) => ({
      trace: () => whole(page),
      lexicon: () => vision.lexicon,
      kept: (id) => page.on === "run" && opening.useKeptAddress(page, id),
    }),
  });
}

/** Draw traces in the tab, for a notebook: mounted once, then updated by each call.
 *  @param {any} el  @param {{trace: object, beside?: object, lexicon?: object, definitions?: object}} data */
export async function render(el, { trace, beside = null, lexicon = null, definitions = {} }) {
  const page = (el._page ??= await mount(el, { host: {}, embed: true }));
  Object.assign(page, { definitions });
  Object.assign(page.vision, { lexicon });
  show(page, trace, beside, "recorded");
  return page;
}

/** Return a view of the browser's storage for one of the tab's two runs. */
function own(storage, name) {
  return (
    storage && {
      getItem: (k) => storage.getItem(`${k}-${name}`),
      setItem: (k, v) => storage.setItem(`${k}-${name}`, v),
      removeItem: (k) => storage.removeItem(`${k}-${name}`),
    }
  );
}

function secondDrafters(page) {
  return {
    host: { ...page.host, remember: own(page.host.remember, "beside") },
    run: null,
    plain: null,
    plainKey: "",
    channels: 0,
    changes: {},
    lost: 0,
    choice: null,
    note: "",
    wantPlain: false,
    get catalogue() {
      return page.catalogue;
    },
    get errors() {
      return page.errors;
    },
    get notices() {
      return page.notices;
    },
    draw: () => page.draw(),
    clear: () => {},
    ended: (run) => ended(page, run),
  };
}

/** Return the displayed run for export. */
function whole(page) {
  page.feeding?.stop();
  const side = page.on === "beside" && page.beside.run ? page.beside : page;
  return side.run ? store.toTrace(side.run) : null;
}

function applyFrame(page) {
  const { el, parts, host } = page;
  el.classList.toggle("is-embedded", page.embed || !host.call);
  parts.copy.hidden = !host.address;
  parts.open.hidden = !host.address || page.embed;
}

function tick(page) {
  for (const side of [page, page.beside]) backend.watch(side);
  page.lost ||= page.beside.lost;
  page.announce(false);
  if (page.lost || (page.run && store.isActive(page.run) && !page.run.rounds.length)) page.draw();
  opening.writeAddress(page);
}

function draw(page) {
  opening.writeAddressSoon(page);
  const { vision, parts } = page;
  const now = performance.now();
  pace.notice([page, page.beside], false, now);
  page.view = visionview.of(page, now);
  pace.again(page, [page.view.arriving, page.view.second?.arriving]);
  pace.announceEnd(page);
  visionstage.draw(parts, page.view);
  if (page.stepping) page.announce(false);
  if (!page.catalogue) return;
  const { catalogue } = page,
    panel = view.panel(page, page.view),
    besideMethod = catalogue.methods.find((x) => x.name === vision.besideMethod);
  panel.run.active ||= running(page);
  controls.render(parts.controls, panel);
  bar.render(parts.bar, panel);
  visionpanel.render(parts.controls, {
    scenes: vision.scenes,
    chosen: vision.scene,
    alt: vision.alt,
    tool: vision.tool,
    scope: vision.scope,
    painted: vision.both.size + vision.drafter.size + (vision.swapped ? 1 : 0),
    active: running(page),
    features: catalogue.methods.find((x) => x.name === page.choice.method)?.reads_target ?? false,
    note: running(page) ? "A new image takes effect at the next round." : vision.note,
    besides: catalogue.methods,
    beside: vision.besideMethod,
    drafters: draftModels.usable(catalogue, vision.besideMethod),
    besideDrafter: draftModels.usesDraftModel(besideMethod) ? (vision.besideDrafter ?? page.choice.drafter) : null,
    besideNote: besideMethod?.teaches ?? "runs at the same time with the same image and question",
  });
}
