/** The image of the Vision tab: loaded, painted over, and sent to the runs. */

import { ask, fail } from "../shared/alerts.js";
import * as store from "../shared/store.js";
import * as visionsource from "./source.js";

export const SCENE = "wb-scene"; // scene of the last run
export const PICTURE = "wb-picture"; // last image, with its painted patches

/** Store the image, which no address can contain: an upload or a drawing is restored after a reload. */
export function storeImage({ vision, host }) {
  const { source, alt, scene, note, swapped, fresh } = vision,
    painted = { both: [...vision.both], drafter: [...vision.drafter] };
  try {
    host.remember?.setItem(PICTURE, JSON.stringify({ source, alt, scene, note, swapped, fresh, ...painted }));
  } catch {
    host.remember?.removeItem(PICTURE); // too large for the browser's storage
  }
}

export function altOf({ vision }, url) {
  return vision.scenes.find((s) => s.url === url)?.alt ?? "";
}

/** Return the question of a prompt, without the chat template's markers. */
export function question(header) {
  return (header?.prompt || (header?.prompt_text ?? []).join("")).replace(/<\|[^|>]*\|>/g, " ").trim();
}

/** Return the questions for the image, as presets. */
export function questions({ vision }) {
  const own = vision.scenes.find((s) => s.name === vision.scene)?.questions ?? vision.questions ?? [];
  return own.map((q) => ({ name: q, title: q.length > 34 ? `${q.slice(0, 33)}…` : q, prompt: q }));
}

/** Use another image. During a run it replaces the models' image. */
export function take(page, { url, alt = "", name = "" }, keepsQuestion = false) {
  const { vision } = page, known = vision.scenes.find((s) => s.name === name && s.url === url);
  if (vision.scope === "drafter" && store.isActive(page.run)) {
    vision.swapped = url; // only the drafter gets the new image
    return void changed(page, "drafter");
  }
  Object.assign(vision, {
    source: url,
    url,
    alt,
    scene: known ? name : "",
    both: new Map(),
    drafter: new Map(),
    swapped: null,
    patch: null,
    note: known || !name ? "" : name,
  });
  if (store.isActive(page.run)) page.host.remember?.setItem(SCENE, vision.scene);
  if (page.catalogue) page.catalogue.presets = questions(page);
  if (page.choice && known && !keepsQuestion && !store.isActive(page.run))
    page.choice.prompt = page.catalogue.presets[0]?.prompt ?? page.choice.prompt;
  changed(page, "both");
}

export async function takeFile(page, file) {
  try {
    take(
      page,
      await visionsource.read(file, page.catalogue?.targets.find((t) => t.name === page.choice?.target)?.square),
    );
  } catch (problem) {
    if (!problem.remedy) throw problem;
    fail(page, problem);
  }
}

/** Return the image for the models, with painted patches. `who`: "both" or "drafter". */
export function composed({ vision }, scope) {
  const { rows, cols } = grid(vision),
    edits = scope === "both" ? vision.both : new Map([...vision.both, ...vision.drafter]);
  return visionsource.edited(scope === "drafter" && vision.swapped ? vision.swapped : vision.source, edits, rows, cols);
}

function grid({ rows, cols }) {
  return { rows, cols };
}

/** Apply a changed image: to the run in progress from its next round on, else to the next run. */
export async function changed(page, scope) {
  const { vision } = page, active = store.isActive(page.run) || store.isActive(page.beside.run);
  vision.url = await composed(page, "both").catch(() => vision.source);
  vision.fresh = !active;
  storeImage(page);
  page.touched = true;
  page.draw();
  if (!active) return;
  const apart = vision.drafter.size > 0 || vision.swapped;
  const wanted = [
    ...(scope === "both" ? [{ images: [vision.url], sees: "both" }] : []),
    ...(scope === "drafter" || apart ? [{ images: [await composed(page, "drafter")], sees: "drafter" }] : []),
  ];
  for (const side of [page, page.beside]) if (store.isActive(side.run)) deliver(page, side.run, wanted);
}

/** Send changed images one after the other, once the backend has given the run its id. */
export function deliver(page, run, wanted) {
  const send = async () => {
    for (const change of wanted)
      if (store.isActive(run)) await ask(page, "repicture", { run: run.id, ...change });
    run.repictured = true;
  };
  if (run.id === null) (run.after ??= []).push(send);
  else send();
}

/** Paint one patch. */
export function paint(page, { patch }) {
  const { vision } = page, layer = vision.scope === "drafter" ? vision.drafter : vision.both;
  if (vision.tool === "restore") for (const each of [vision.both, vision.drafter]) each.delete(patch);
  else layer.set(patch, vision.tool);
  vision.painted = vision.tool === "restore" ? "both" : vision.scope;
  page.draw();
}

export function imageDropped(page, event, transfer) {
  const file = visionsource.imageOf(transfer);
  if (!file) return; // leave pasted text alone
  event.preventDefault();
  event.stopPropagation();
  takeFile(page, file);
}
