/** Runs of the Vision tab: one or two at once; start, control, attribution after their end, and display again. */

import { fail } from "../shared/alerts.js";
import * as backend from "../live/backend.js";
import * as bar from "../live/bar.js";
import * as choices from "../live/choice.js";
import * as opening from "../live/opening.js";
import * as store from "../shared/store.js";
import * as visiondata from "./data.js";
import { SCENE, altOf, composed, deliver, question, questions, storeImage } from "./pictures.js";

const ASK_MS = 500;
const EMPTY_REMEDY = "Choose an image from the gallery, upload, paste or draw one.";

/** Adopt a trace's image and settings, so that Run repeats it; `known`: the scene of the run. */
export function adopt(page, header, known = {}) {
  const { vision } = page, picture = header.pictures?.[0];
  if (page.catalogue) page.choice = { ...choices.adopt(page.choice, header, page.catalogue), prompt: question(header) };
  if (picture)
    Object.assign(vision, {
      url: picture.url,
      source: picture.url,
      rows: picture.rows,
      cols: picture.cols,
      fresh: false,
      scene: known.scene ?? "",
      alt: known.alt ?? altOf(page, picture.url),
    });
  if (page.catalogue) page.catalogue.presets = questions(page);
}

export function start(page, paused) {
  return backend.whenLoaded(page, () => startLoaded(page, paused));
}

async function startLoaded(page, paused) {
  const { vision, catalogue } = page;
  if (!catalogue || running(page) || store.isActive(page.plain)) return;
  if (!vision.source) return fail(page, { message: "No image is chosen.", remedy: EMPTY_REMEDY });
  page.choice.images = [await composed(page, "both")];
  page.host.remember?.setItem(SCENE, vision.scene);
  backend.start(page, paused);
  bar.toTokens(page.parts);
  const runs = [started(page, page.run)];
  vision.fresh = false;
  storeImage(page);
  page.beside.run = null;
  page.beside.host.remember?.removeItem("wb-run");
  if (vision.besideMethod) {
    page.beside.choice = {
      ...page.choice,
      method: vision.besideMethod,
      drafter: vision.besideDrafter ?? page.choice.drafter,
    };
    backend.start(page.beside, paused);
    runs.push(started(page, page.beside.run));
    runs[0].pair = runs[1]; // also shown together again later
  }
  if (vision.drafter.size || vision.swapped) {
    const images = [await composed(page, "drafter")];
    for (const run of runs) deliver(page, run, [{ images, sees: "drafter" }]);
  }
}

function started(page, run) {
  const { scene, alt } = page.vision;
  page.vision.history.push(Object.assign(run, { question: page.choice.prompt, scene, alt }));
  return run;
}

export function running(page) {
  return store.isActive(page.run) || store.isActive(page.beside.run);
}

/** Pause, resume, step or cancel both runs. */
export function control(page, action) {
  for (const side of [page, page.beside]) backend.control(side, action);
}

export function ended(page, run) {
  if (run === page.run) {
    if (page.next) page.announce(true);
    else page.ending = run;
    // the image changed after its last round
    page.vision.fresh ||= Boolean(run.repictured) && !visiondata.pictureMarks(store.visible(run)).length;
  }
  if (!running(page)) page.stepping = false;
  if (run.state !== "error" && run !== page.plain) explain(page, run);
  const next = page.next;
  if (!running(page) && next) next((page.next = null));
  else if (page.wantPlain && !running(page)) backend.startPlain(page);
}

/** Fetch the attribution of an ended run: how much each word depends on the image. */
export async function explain(page, run) {
  if (!run.id || run.attribution || run.attributionRequested || !store.visible(run).length) return;
  run.attributionRequested = run.attributionRunning = true;
  const far = setInterval(() => pollAttribution(page, run), ASK_MS);
  const answer = await page.host.call("explain", { run: run.id }).catch(() => null);
  clearInterval(far);
  run.attributionRunning = false;
  if (answer?.error)
    page.notices.push({
      kind: "note",
      message: `The attribution is not available: ${answer.error.message}`,
      remedy: answer.error.remedy ?? "",
    });
  run.attribution = answer?.attribution ?? null;
  page.draw();
}

async function pollAttribution(page, run) {
  const answer = await page.host.call("explaining", { run: run.id }).catch(() => null);
  if (!run.attributionRunning) return;
  run.explained = answer?.done ?? null;
  page.draw();
}

/** Show an earlier run of this visit again. */
export function showAgain(page, id) {
  const { vision } = page, run = vision.history.find((r) => r.channel === id);
  if (!run || running(page)) return;
  const keep = vision.history;
  page.clear();
  Object.assign(page, { run: Object.assign(run, { closed: true }) });
  page.beside.run = run.pair ? Object.assign(run.pair, { closed: true }) : null;
  vision.history = keep;
  if (run.header) adopt(page, run.header, run);
  backend.watch(page);
  page.draw();
}

export function clearPage(page) {
  opening.clearPage(page);
  Object.assign(page, { on: "run" });
  Object.assign(page.vision, { patch: null, query: null, picture: 0 });
}

export async function plain(page) {
  if (running(page)) return backend.startPlain(page);
  page.choice.images = [await composed(page, "both")];
  backend.startPlain(page);
}
