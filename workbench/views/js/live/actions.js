/** Actions of the Live page: form choices, selections in the drawings, buttons and keys. */

import * as automatic from "./autobaseline.js";
import * as backend from "./backend.js";
import * as bar from "./bar.js";
import * as branches from "./branch.js";
import * as cardsheet from "./cardsheet.js";
import * as choices from "./choice.js";
import * as form from "../shared/form.js";
import * as link from "./link.js";
import * as opening from "./opening.js";
import * as pace from "./pace.js";
import * as player from "./player.js";
import * as preferences from "../shared/preferences.js";
import * as repeats from "./repeats.js";
import * as ribbon from "../shared/ribbon.js";
import * as selection from "./selection.js";
import * as store from "../shared/store.js";
import * as treemodel from "./treemodel.js";
import * as view from "./view.js";

const MODES = ["spine", "levels", "mask", "list", "cache"];

/** Return the state and callbacks that the Live page gives to `of`. */
function live(page) {
  const { parts } = page, rounds = () => (page.run ? store.visible(page.run) : []);
  const to = (pick) => pick && pin(page, pick);
  const presses = {
    run: () => start(page, false),
    stop: () => backend.control(page, "cancel"),
    baseline: () => backend.startPlain(page),
    pause: () => backend.control(page, page.run?.state === "paused" ? "resume" : "pause"),
    step: () => {
      const step = () => {
        page.stepping = true;
        backend.control(page, "step");
      };
      if (store.isActive(page.run)) step();
      else start(page, true, step);
    },
  };
  const views = () => [
    parts.figures.firstChild,
    parts.ribbon,
    [parts.tree, parts.tree, parts.mask, parts.treeList, parts.cache][MODES.indexOf(page.mode)],
    parts.laneCard,
    parts.curveCard,
    parts.slider,
  ];
  return { rounds, to, presses, views };
}

function start(page, paused, then = () => {}) {
  backend.whenLoaded(page, () => {
    backend.start(page, paused);
    bar.toTokens(page.parts);
    then();
  });
}

/** Return the functions that buttons and keys call. @param {any} page  @param {object} own  of one view: `rounds` on
 *  display, `to` selects a place, `presses` handles its buttons, `views` are the targets of keys 1 to 6 */
export function of(page, { rounds, to, presses, views } = live(page)) {
  const { parts } = page, at = () => selection.shown(page.selection, rounds());
  return {
    token: (direction) => to(selection.stepToken(at(), rounds(), direction)),
    round: (direction) => to(selection.stepRound(at(), rounds(), direction)),
    node: (key) =>
      at() &&
      to({
        round: at().round,
        node: treemodel.neighbour(
          treemodel.places(treemodel.model(rounds()[at().round], { threshold: page.threshold, keep: at().node })),
          at().node,
          key,
        ),
      }),
    first: () => rounds().length && to({ round: 0 }),
    last: () => rounds().length && to({ round: rounds().length - 1 }),
    hold: () => to(at()),
    sum: (direction) => {
      const here = at()?.round ?? 0,
        [from, end] = page.brush ?? [here, here];
      page.brush = rounds().length ? [from, Math.max(from, Math.min(rounds().length - 1, end + direction))] : null;
      page.draw();
    },
    follow: () => {
      player.stop(page);
      page.selection = selection.newSelection();
      page.brush = null;
      ribbon.scrollToEnd(parts.ribbon);
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
    playPause: () => (store.isActive(page.run) ? page.actions.press("pause") : playPause(page)),
    press: (button) => {
      const reason = page.catalogue?.barred?.[button];
      if (!reason) return presses[button]();
      page.note = reason; // a key also works while its button is disabled
      page.draw();
    },
    help: () => parts.keys.showModal(),
  };
}

/** Pin a place of the run: it stays selected. */
export function pin(page, pick) {
  player.stop(page);
  page.touched = true;
  page.selection = { hover: null, pin: pick };
  page.scroll = true;
  page.brush = null;
  page.draw();
}

/** React to the end of a run: announce it, then start the run that waits for it. */
export function ended(page, run) {
  if (run === page.plain) repeats.continueAfter(page, () => view.of(page, performance.now()).pairsBarred);
  if (run !== page.run) return;
  page.stepping = false;
  const next = page.next;
  if (next) page.announce(true); // another run replaces it now
  else page.ending = run;
  page.next = null;
  if (next) next();
  else if (page.wantPlain) backend.startPlain(page);
  else if (automatic.isDue(page)) backend.startPlain(page, true);
}

/** Apply a choice made in the settings panel. */
export function choose(page, what, value) {
  const { choice } = page, active = store.isActive(page.run);
  page.note = "";
  if (what === "autoBaseline") {
    preferences.set(automatic.PREFERENCE, (page.autoBaseline = value));
    if (automatic.isDue(page) && !active) backend.startPlain(page, true);
    return page.draw();
  }
  const before = choice.target;
  if (what === "preset") {
    const picked = choices.pick(choice, page.catalogue, value);
    Object.assign(choice, picked.choice);
    page.note = picked.note;
  } else choice[what] = value;
  if (what === "pace") pace.storePace(value);
  if (what === "target") Object.assign(choice, { fixed: true, lent: false });
  if (what === "prompt") {
    choice.preset = page.catalogue.presets.find((p) => p.prompt === value)?.name ?? null;
    if (!active)
      ({ target: choice.target, lent: choice.lent, note: page.note } = choices.targetForTyped(choice, page.catalogue));
  }
  if (what === "prompt" || what === "target") page.note ||= choices.scriptWarning(choice, page.catalogue);
  if (["prompt", "preset", "prompt_tokens", "target"].includes(what))
    Object.assign(choice, { prompt_tokens: null, origin: null });
  if (active && page.catalogue.barred?.change) page.note = page.catalogue.barred.change;
  else if (what === "method" && active)
    backend.change(page, { method: value, params: choices.parameters(choice, page.catalogue, value, form.clamp) });
  else if (what === "drafter" && active) backend.change(page, { drafter: value });
  else if (what === "pace" && active) backend.change(page, { pace: value });
  else if (active) page.note = "This takes effect with the next run.";
  if (choice.target !== before || what === "target" || what === "drafter")
    backend.loadCatalogue(page, choice.target, choice.drafter);
  page.pendingPin = null;
  page.touched = page.formed = true;
  estimate(page);
  page.draw();
}

/** Set a parameter; send it to the run in progress, if any. */
export function setParam(page, { name, value, note }) {
  page.choice.params[name] = value;
  const barred = store.isActive(page.run) && page.catalogue.barred?.change;
  page.note = barred || note;
  page.touched = page.formed = true;
  if (!barred) backend.change(page, { params: { [name]: value } });
  estimate(page);
  page.draw();
}

/** Fetch a cost estimate of the run, if the backend offers one. */
export async function estimate(page) {
  const { choice, catalogue } = page;
  if (!catalogue?.estimates) return;
  const answer = await page.host
    .call("estimate", choices.request(choice, catalogue, "", form.clamp, false))
    .catch(() => null);
  page.estimate = answer?.text ?? "";
  page.draw();
}

/** Start a run whose prompt is the text up to the selected token. Stop the run in progress first; its rounds stay. */
export function branch(page, pick) {
  const { run } = page, rounds = store.visible(run);
  const prompt = branches.continuation(run.header, rounds, pick);
  const instead = branches.originalToken(rounds[pick.round], pick.place);
  const origin = { run, round: pick.round, text: pick.text, instead };
  Object.assign(page.choice, prompt, { origin, preset: null, target: run.header.target, fixed: true });
  const go = () => backend.whenLoaded(page, () => backend.start(page, false));
  cardsheet.showTokens(page);
  if (store.isActive(run)) {
    page.next = go;
    backend.control(page, "cancel");
  } else go();
}

/** Return the current view as a URL query. It names the live run only while the panel holds the run's settings: a link
 *  is either to a run or to settings. */
export function query(page) {
  const { choice, catalogue, run } = page, pin = page.playing ? null : (page.selection.pin ?? page.pendingPin);
  const params = choices.parameters(choice, catalogue, choice.method, form.clamp);
  const recorded = page.recorded !== opening.EXAMPLE || pin ? page.recorded : null;
  return link.toQuery(choice, catalogue, params, {
    pin,
    view: page.shownView,
    embed: page.embed,
    recorded,
    run: !recorded && run?.settingsQuery && run.settingsQuery === settings(page) ? run.id : null,
    settings: !recorded || page.formed,
  });
}

/** Return the settings of the panel as a URL query. */
export function settings({ choice, catalogue }) {
  return link.toQuery(choice, catalogue, choices.parameters(choice, catalogue, choice.method, form.clamp));
}

/** Play from the current place, or stop. */
export function playPause(page) {
  if (page.playing) return player.stop(page), page.draw();
  page.feeding?.stop();
  const rounds = page.run ? store.visible(page.run) : [];
  if (!rounds.length) return;
  page.playing = () => {};
  page.playing = player.play({
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
