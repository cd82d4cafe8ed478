/** Actions of the Vision tab: buttons, keys, hovering, files, and the address of the current view. */

import * as liveActions from "../live/actions.js";
import * as backend from "../live/backend.js";
import * as choices from "../live/choice.js";
import * as link from "../live/link.js";
import * as opening from "../live/opening.js";
import * as player from "../live/player.js";
import { fail } from "../shared/alerts.js";
import { isOpen } from "../shared/controller.js";
import * as form from "../shared/form.js";
import * as ribbon from "../shared/ribbon.js";
import * as store from "../shared/store.js";
import { loadCatalogue } from "./opening.js";
import { changed, imageDropped, paint, question, take, takeFile } from "./pictures.js";
import { adopt, showAgain, control, plain, running, start } from "./runs.js";
import * as visionsource from "./source.js";

export function actions(page) {
  const { parts } = page, side = () => (page.on === "beside" && page.beside.run ? page.beside : page);
  const rounds = () => (side().run ? store.visible(side().run) : []),
    to = (pick) => pick && pin(page, { ...pick, on: page.on });
  const presses = {
    run: () => start(page, false), stop: () => control(page, "cancel"), baseline: () => plain(page),
    pause: () => control(page, page.run?.state === "paused" ? "resume" : "pause"),
    step: async () => {
      if (!running(page)) await start(page, true);
      page.stepping = true;
      control(page, "step");
    },
  };
  const views = () => [
    parts.figures.firstChild,
    parts.picture.firstChild,
    parts.ribbon,
    parts.card,
    parts.curveCard,
    parts.slider,
  ];
  const playPause = () => (running(page) ? page.actions.press("pause") : playWords(page)), none = () => {};
  return { ...liveActions.of(page, { rounds, to, presses, views }), playPause, sum: none, mode: none };
}

/** Play the run that is selected word by word from the current word, so that the patches of each word light up; or
 *  stop. */
function playWords(page) {
  if (page.playing) return player.stop(page), page.draw();
  page.feeding?.stop();
  const on = page.on === "beside" && page.beside.run ? "beside" : "run";
  const side = on === "beside" ? page.beside : page, steps = side.run ? player.wordSteps(store.visible(side.run)) : [];
  if (!steps.length) return;
  const { round = 0, token = null } = page.selection.pin ?? {};
  const from = steps.findIndex((s) => s.round === round && (token === null || s.token === token));
  const show = (i) => {
    page.selection = { hover: null, pin: { on, round: steps[i].round, token: steps[i].token } };
    Object.assign(page, { on, scroll: true });
    page.draw();
  };
  const over = () => {
    page.playing = null;
    page.draw();
  };
  page.playing = () => {};
  const speed = () => Number(page.parts.speed.value);
  page.playing = player.play({ rounds: steps, from: Math.max(0, from), speed, show, over });
}

/** Select nodes of the draft tree in the run whose word is selected: hovering previews, a click pins. */
function treeSelection(page) {
  const { tree } = page.parts;
  const under = (event) => {
    const node = event.target.closest("[data-node]")?.dataset.node, round = page.view?.at?.round;
    if (node === undefined || round === undefined) return null;
    return { on: page.on, round, token: null, node: ["target", "-1"].includes(node) ? node : Number(node) };
  };
  const hover = (pick) => {
    page.selection.hover = pick;
    Object.assign(page, { scroll: false, on: pick?.on ?? page.selection.pin?.on ?? page.on });
    page.draw();
  };
  tree.addEventListener("pointerover", (event) => event.pointerType !== "touch" && !page.playing && hover(under(event)));
  tree.addEventListener("pointerleave", () => page.selection.hover && hover(null));
  tree.addEventListener("click", (event) => under(event) && pin(page, under(event)));
  tree.addEventListener("wb:pick", ({ detail }) => (detail.on ??= page.on)); // by key; then handled as all picks
}

function pin(page, pick) {
  page.on = pick.on ?? "run";
  liveActions.pin(page, pick);
}

function choose(page, what, value) {
  const { choice } = page, active = running(page);
  liveActions.choose(page, what, value);
  if (what === "pace") backend.change(page.beside, { pace: value });
  if (what === "target" || what === "drafter") loadCatalogue(page, choice.target, choice.drafter).then(page.draw);
  if (active && what === "prompt") page.note = "This takes effect with the next run.";
}

export function wire(page, on, click) {
  const { parts, vision, signal } = page;
  const set = (change) => {
    Object.assign(page, change, { scroll: false });
    page.draw();
  };
  const see = (change) => {
    Object.assign(vision, change);
    page.draw();
  };
  on("wb:choose", ({ what, value }) => choose(page, what, value));
  on("wb:param", (detail) => liveActions.setParam(page, detail));
  on("wb:pick", (pick) => pin(page, pick));
  on("wb:again", ({ id }) => showAgain(page, id));
  on("wb:picture", (scene) => take(page, scene));
  on("wb:sketch", (sketch) => take(page, sketch));
  on("wb:file", ({ file }) => takeFile(page, file));
  on("wb:paste", () =>
    visionsource.clipboardImage().then(
      (file) => takeFile(page, file),
      (problem) => fail(page, problem),
    ),
  );
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
    if (what === "besideDrafter" || what === "beside")
      page.note = running(page) ? "This takes effect with the next run." : "";
  });
  for (const name of ["picture", "target", "drafter"])
    parts[name].addEventListener("wb:patch", ({ detail: { patch } }) =>
      see({ patch, over: name === "drafter" ? "drafter" : "target" }),
    );
  for (const name of ["target", "drafter"])
    parts[`${name}Mode`].addEventListener(
      "click",
      (event) => event.target.dataset.value && see({ mode: { ...vision.mode, [name]: event.target.dataset.value } }),
    );
  parts.how.addEventListener(
    "click",
    (event) => event.target.dataset.value && see({ how: event.target.dataset.value }),
  );
  ribbon.listenSwitches(parts, (ghosts) => set({ ghosts }), {
    regions: [parts.ribbon, parts.beside],
    drafts: page.embed || !page.host.call,
  });
  parts.slider.addEventListener("input", () => pin(page, { round: Number(parts.slider.value) - 1, on: page.on }));
  click("back", () => page.actions.round(-1));
  click("forth", () => page.actions.round(1));
  click("jump", () => ((page.on = "run"), page.actions.follow()));
  click("play", () => playWords(page));
  treeSelection(page);
  captions(page, set);
  on("paste", (_, event) => imageDropped(page, event, event.clipboardData));
  document.addEventListener(
    "paste",
    (event) =>
      page.el.contains(event.target) || (isOpen(page) && imageDropped(page, event, event.clipboardData)),
    { signal },
  );
  on("dragover", (_, event) => event.preventDefault());
  on("drop", (_, event) => imageDropped(page, event, event.dataTransfer));
}

/** Preview words on hover and pin them on click, in either caption. */
function captions(page, set) {
  const { parts } = page;
  for (const [name, on] of [["ribbon", "run"], ["beside", "beside"]]) {
    const under = (event) => {
      const hit = event.target.closest("[data-node],[data-token],[data-round]");
      if (!hit) return null;
      const { round, node, token } = hit.dataset;
      return {
        on,
        round: Number(round ?? hit.closest("[data-round]").dataset.round),
        token: token === undefined ? null : Number(token),
        node: node === undefined ? null : Number(node),
      };
    };
    const hover = (pick) => {
      page.selection.hover = pick;
      set({ on: pick ? on : (page.selection.pin?.on ?? "run") });
    };
    parts[name].addEventListener(
      "pointerover",
      (event) => event.pointerType !== "touch" && !page.playing && hover(under(event)),
    );
    parts[name].addEventListener("pointerleave", () => page.selection.hover && hover(null));
    parts[name].addEventListener("click", (event) => under(event) && pin(page, under(event)));
    parts[name].addEventListener("focus", () => page.beside.run && set({ on }));
  }
}

/** Open a trace file that the user chose. */
export async function open(page, file) {
  const before = page.run;
  if (running(page))
    return fail(page, { message: "A run is in progress.", remedy: "Stop the run, then open the file." });
  await opening.open(page, file);
  if (page.run === before || !page.run) return;
  Object.assign(page.run, { question: question(page.run.header) });
  page.beside.run = null;
  page.vision.history.push(page.run);
  if (page.run.header.pictures?.length) adopt(page, page.run.header);
  else
    page.notices.push({
      kind: "note",
      message: "This trace has no image.",
      remedy: "Open the trace in the Live tab.",
    });
  page.draw();
}

/** Return what a link to the current view does not contain. */
export function lacking({ vision, recorded }) {
  return vision.source && !vision.scene && !recorded ? " The link does not contain your own image." : "";
}

/** Return the current view as a URL query. */
export function query(page) {
  const { choice, catalogue, vision } = page,
    pin = page.playing ? null : (page.selection.pin ?? page.pendingPin),
    params = choices.parameters(choice, catalogue, choice.method, form.clamp);
  const entries = new URLSearchParams(
    link.toQuery(choice, catalogue, params, {
      pin,
      embed: page.embed,
      recorded: page.recorded,
      settings: !page.recorded || page.formed,
    }),
  );
  if (page.recorded && !page.formed) return entries.toString();
  for (const [name, value] of [
    ["scene", vision.scene],
    ["beside", vision.besideMethod || "none"],
    ["beside_drafter", vision.besideDrafter],
  ])
    if (value) entries.set(name, value);
  return entries.toString();
}
