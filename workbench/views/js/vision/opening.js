/** First content of the Vision tab: the address's request, the run that it showed last, or a recording. */

import * as kit from "../shared/kit.js";
import * as alerts from "../shared/alerts.js";
import * as backend from "../live/backend.js";
import * as choices from "../live/choice.js";
import * as link from "../live/link.js";
import * as opening from "../live/opening.js";
import * as player from "../live/player.js";
import * as reload from "../live/reload.js";
import * as form from "../shared/form.js";
import * as store from "../shared/store.js";
import { PICTURE, SCENE, composed, question, questions, take } from "./pictures.js";
import { adopt, explain, running } from "./runs.js";

/** Speed at which a recording arrives: slow enough to see the patches of each word light up. */
const FEED_SPEED = 0.03;
const OWN = ["tab", "scene", "beside", "beside_drafter"];
/** The recordings that play before the first run: a drafter that takes the image, and a text-only one. */
export const EXAMPLE = ["specvlm", "vlm-text-only"];

export async function arrive(page, trace, beside) {
  const { host, vision } = page;
  if (trace) return show(page, trace, beside, "recorded");
  if (!host.call) return;
  // fetched early: the backend drops a running run that no client follows
  const earlier = Promise.all([reload.last(host), reload.last(page.beside.host)]);
  const found = await alerts.ask(page, "gallery", {});
  if (found) Object.assign(vision, found);
  await loadCatalogue(page, null, null);
  const query = new URLSearchParams(host.address?.read() ?? "");
  const names = query.get("recorded") ? [query.get("recorded"), query.get("beside")] : EXAMPLE;
  if (page.catalogue) {
    const wanted = await parseAddress(page, query, sharedQuery(query)),
      again = !wanted.recorded && (await restoreRuns(page, wanted, await earlier));
    applySettings(page, wanted);
    if (again && !store.isActive(page.run)) page.selection.pin = page.pendingPin;
    else if (!again && !page.wished) {
      await example(page, names);
      // settings in the address override the run's
      if (wanted.recorded) applySettings(page, { ...wanted, problems: [] });
    }
    if (reload.reloaded() || !page.wished) await restoreImage(page, again);
    else if (!again) page.note = "Settings loaded from the link. Press Run to use them.";
  } else await example(page, names);
  if (!vision.url && !page.run && vision.scenes.length) take(page, vision.scenes[0]);
}

/** Fetch the data of the side panel. Only targets that take images are offered. */
export async function loadCatalogue(page, target, drafter) {
  await backend.loadCatalogue(page, target, drafter);
  if (!page.catalogue) return;
  page.catalogue.presets = questions(page);
  if (!page.catalogue.targets.length) page.vision.empty = "No available target accepts images.";
  const { choice, vision } = page;
  choice.prompt ||= page.catalogue.presets[0]?.prompt ?? "";
  vision.besideMethod ||=
    page.catalogue.methods.find((x) => x.name === EXAMPLE[1] && x.available !== false)?.name ?? "";
}

/** Parse the address. */
async function parseAddress(page, query, rest) {
  const { vision } = page, [target, drafter] = ["target", "drafter"].map((name) => query.get(name));
  if (page.choice && query.get("method")) page.choice.method = query.get("method"); // the drafter is checked against it
  if (target || drafter) {
    Object.assign(page.choice, { ...(target && { target }), ...(drafter && { drafter }) });
    await loadCatalogue(page, target, drafter);
  }
  const found = link.fromQuery(rest.toString(), page.catalogue, form.clamp), { problems } = found;
  const scene = vision.scenes.find((s) => s.name === query.get("scene")), beside = query.get("beside");
  if (query.get("scene") && !scene)
    problems.push(`scene=${query.get("scene").slice(0, 40)}: unknown scene`);
  const known = page.catalogue.methods.some((x) => x.name === beside);
  if (beside && beside !== "none" && !found.recorded && !known)
    problems.push(`beside=${beside.slice(0, 40)}: unknown method`);
  page.embed ||= found.embed;
  page.pendingPin = found.pin;
  page.wished = Boolean(scene || (found.settings && !found.recorded));
  return {
    ...found,
    scene,
    beside: query.has("beside") && !found.recorded ? (known ? beside : "") : null,
    besideDrafter: query.get("beside_drafter"),
  };
}

/** React to a step back or forth in the browser's history. */
export async function stepped(page) {
  const query = new URLSearchParams(page.host.address.read());
  page.writtenQuery = null;
  if (page.catalogue && !running(page)) {
    const wanted = await parseAddress(page, query, sharedQuery(query));
    applySettings(page, wanted);
    if (wanted.pin && page.run) page.selection.pin = wanted.pin;
    page.pendingPin = null;
  }
  page.draw();
  opening.writeAddress(page);
}

/** Return the part of a query that Vision shares with Live. */
function sharedQuery(query) {
  return new URLSearchParams([...query].filter(([name]) => !OWN.includes(name)));
}

/** Put the settings of an address into the panel; they override the settings of a restored run. */
function applySettings(page, { choice, params, scene, beside, besideDrafter, problems, settings }) {
  const { vision } = page;
  page.formed ||= settings;
  page.choice = choices.revise(
    { ...page.choice, ...choice, params: { ...page.choice.params, ...params } },
    page.catalogue,
  );
  if (scene && scene.name !== vision.scene) take(page, scene, "prompt" in choice);
  if (beside !== null) vision.besideMethod = beside;
  if (besideDrafter) vision.besideDrafter = besideDrafter;
  if (problems.length)
    page.notices.push(alerts.ignored(problems));
}

/** After a reload, restore this tab's last run and its second run, unless a link names other settings. Runs that have
 *  not ended continue. */
async function restoreRuns(page, wanted, [answer, other]) {
  const { host, vision } = page;
  if (!answer || !(reload.reloaded() || matchesLink(page, wanted, answer))) return false;
  const header = reload.currentHeader(answer);
  const scene = vision.scenes.find((s) => s.name === host.remember.getItem(SCENE));
  if (header && header.target !== page.choice.target) await loadCatalogue(page, header.target, header.drafter);
  const restore = (side, found, kind) =>
    Object.assign(backend.resume(side, found, kind), {
      question: question(found.header),
      scene: scene?.name,
      alt: scene?.alt,
    });
  page.run = restore(page, answer, "run");
  page.beside.run = other && restore(page.beside, other, "beside");
  if (other) Object.assign(page.run, { pair: page.beside.run });
  vision.history.push(...[page.run, page.beside.run].filter(Boolean));
  vision.besideMethod = other ? (reload.currentHeader(other)?.method ?? vision.besideMethod) : "";
  vision.besideDrafter = other?.header?.drafter ?? null;
  if (header) adopt(page, header, { scene: scene?.name, alt: scene?.alt });
  for (const side of [page, page.beside]) {
    if (side.run && header)
      side.run.key = choices.pairing({ ...page.choice, images: [vision.url] }, page.catalogue, form.clamp);
    if (side.run && !store.isActive(side.run)) explain(page, side.run);
  }
  return true;
}

/** Restore the stored image; `again`: a run was restored too. */
async function restoreImage(page, again) {
  const { vision, host } = page;
  try {
    const stored = JSON.parse(host.remember?.getItem(PICTURE) ?? "null");
    if (!stored?.source?.startsWith("data:image/")) return;
    Object.assign(vision, stored, {
      fresh: stored.fresh || !again,
      both: new Map(stored.both),
      drafter: new Map(stored.drafter),
    });
    vision.url = await composed(page, "both");
    if (page.catalogue) page.catalogue.presets = questions(page);
  } catch {
    host.remember?.removeItem(PICTURE);
  }
}

/** Return whether a run has the settings, the question and the image that the address names. */
function matchesLink({ host }, wanted, answer) {
  const now = reload.currentHeader(answer);
  return (
    reload.fits(wanted, now && { ...now, prompt: question(now) }) &&
    (!wanted.scene || wanted.scene.name === host.remember.getItem(SCENE))
  );
}

/** Play a recording and a second one beside it. A missing recording is no error: a checkout may have none yet. */
async function example(page, names) {
  const answers = await Promise.all(
    names.filter(Boolean).map((name) => page.host.call("recorded", { name }).catch(() => null)),
  );
  const [first, second] = answers.map((a) => (a?.header?.pictures?.length ? a : null));
  if (!first) {
    page.vision.empty = page.catalogue?.targets.length
      ? "Choose an image and press Run. (There are no recordings; create them with: workbench record)"
      : page.vision.empty;
    const wrong = answers.find((a) => a?.error)?.error;
    if (wrong && names !== EXAMPLE) page.errors.push(wrong);
    return;
  }
  if (page.run) return; // the user started a run meanwhile
  page.recorded = names[0];
  const { errors, notices } = page;
  show(page, first, second, "recorded", page.pendingPin === null);
  Object.assign(page, { errors, notices }); // keep the messages about the link
}

/** Show complete traces; `plays`: let them arrive round by round. */
export function show(page, trace, beside, from, plays = false) {
  page.clear();
  const record = (recordOf) =>
    Object.assign(store.fromTrace(`${from}-${(page.channels += 1)}`, recordOf, from), {
      closed: true,
      question: question(recordOf.header),
    });
  page.run = record(trace);
  page.beside.run = beside ? record(beside) : null;
  for (const run of [page.run, page.beside.run]) if (run) page.vision.history.push(run);
  adopt(page, trace.header);
  adoptBeside(page, beside?.header);
  page.vision.alt ||= trace.footer?.text ? `The target's description: ${question({ prompt: trace.footer.text })}` : "";
  page.selection.pin = page.pendingPin;
  page.pendingPin = null;
  if (plays && !kit.prefersStill()) feed(page, page.run);
  page.draw();
}

/** Take over method and draft model of the second run, so that Run repeats it. */
function adoptBeside({ vision, catalogue }, header) {
  if (!header || !catalogue?.methods.some((x) => x.name === header.method)) return;
  const isHere = catalogue.drafters.some((d) => d.name === header.drafter && d.available !== false);
  Object.assign(vision, { besideMethod: header.method, besideDrafter: isHere ? header.drafter : null });
}

/** Let a recording arrive as if it were live; the second one keeps pace. */
function feed(page, run) {
  const rounds = run.rounds,
    other = page.beside.run,
    theirs = other?.rounds ?? [],
    speed = FEED_SPEED,
    end = { seq: run.seq, other: other?.seq };
  const upTo = (n) => {
    const elapsed = rounds[n - 1]?.started_s ?? 0,
      shown = n >= rounds.length ? theirs.length : theirs.filter((r) => r.started_s <= elapsed).length;
    Object.assign(run, { rounds: rounds.slice(0, n), whole: 0 });
    if (other) Object.assign(other, { rounds: theirs.slice(0, shown), whole: 0 });
    if (n >= rounds.length) Object.assign(run, { seq: end.seq }), (page.feeding = null);
    page.draw();
  };
  page.feeding = { label: `${speed}× speed`, speed, stop: () => {} };
  page.feeding.stop = player.feed({ rounds, speed, still: false, arrive: upTo });
}
