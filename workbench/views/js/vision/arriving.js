/** What the Vision tab shows first: what its address asks for, the run that it showed last, or a recording. */

import * as backend from "../live/backend.js";
import * as choices from "../live/choice.js";
import * as link from "../live/link.js";
import * as opening from "../live/opening.js";
import * as player from "../live/player.js";
import * as memory from "../live/recall.js";
import * as form from "../shared/form.js";
import * as store from "../shared/store.js";
import { PICTURE, SCENE, composed, question, questions, take } from "./pictures.js";
import { adopt, explain, running } from "./runs.js";

const OWN = ["tab", "scene", "beside", "beside_drafter"];
/** The recordings that play before anything was run: a drafter that sees, and a blind one beside it. */
export const EXAMPLE = ["specvlm", "vlm-text-only"];

export async function arrive(page, trace, beside) {
  const { host, vision } = page;
  if (trace) return show(page, trace, beside, "recorded");
  if (!host.call) return;
  // at once: what goes on is freed when nobody follows it
  const earlier = Promise.all([memory.last(host), memory.last(page.beside.host)]);
  const found = await backend.ask(page, "gallery", {});
  if (found) Object.assign(vision, found);
  await look(page, null, null);
  const query = new URLSearchParams(host.address?.read() ?? "");
  const names = query.get("recorded") ? [query.get("recorded"), query.get("beside")] : EXAMPLE;
  if (page.catalogue) {
    const wanted = await asked(page, query, others(query)),
      again = !wanted.recorded && (await recall(page, wanted, await earlier));
    settle(page, wanted);
    if (again && !store.isActive(page.run)) page.selection.pin = page.wish;
    else if (!again && !page.wished) {
      await example(page, names);
      // what the address has of its own goes before the run's
      if (wanted.recorded) settle(page, { ...wanted, problems: [] });
    }
    if (memory.reloaded() || !page.wished) await hold(page, again);
    else if (!again) page.note = "From a link: press Run to decode it here.";
  } else await example(page, names);
  if (!vision.url && !page.run && vision.scenes.length) take(page, vision.scenes[0]);
}

/** What the side panel is made from. Only targets that read pictures are offered here. */
export async function look(page, target, drafter) {
  await backend.look(page, target, drafter);
  if (!page.catalogue) return;
  page.catalogue.presets = questions(page);
  if (!page.catalogue.targets.length) page.vision.empty = "No target here reads pictures.";
  const { choice, vision } = page;
  choice.prompt ||= page.catalogue.presets[0]?.prompt ?? "";
  vision.besideMethod ||=
    page.catalogue.methods.find((x) => x.name === EXAMPLE[1] && x.available !== false)?.name ?? "";
}

/** What the address asks for. */
async function asked(page, query, rest) {
  const { vision } = page, [target, drafter] = ["target", "drafter"].map((name) => query.get(name));
  if (page.choice && query.get("method")) page.choice.method = query.get("method"); // by which its drafter is judged
  if (target || drafter) {
    Object.assign(page.choice, { ...(target && { target }), ...(drafter && { drafter }) });
    await look(page, target, drafter);
  }
  const found = link.fromQuery(rest.toString(), page.catalogue, form.clamp), { problems } = found;
  const scene = vision.scenes.find((s) => s.name === query.get("scene")), beside = query.get("beside");
  if (query.get("scene") && !scene)
    problems.push(`scene=${query.get("scene").slice(0, 40)}: no such picture in the gallery`);
  const known = page.catalogue.methods.some((x) => x.name === beside);
  if (beside && beside !== "none" && !found.recorded && !known)
    problems.push(`beside=${beside.slice(0, 40)}: there is no such method here`);
  page.embed ||= found.embed;
  page.wish = found.pin;
  page.wished = Boolean(scene || (found.settings && !found.recorded));
  return {
    ...found,
    scene,
    beside: query.has("beside") && !found.recorded ? (known ? beside : "") : null,
    besideDrafter: query.get("beside_drafter"),
  };
}

/** The address changed under the page, by a step back or forth. */
export async function stepped(page) {
  const query = new URLSearchParams(page.host.address.read());
  page.said = null;
  if (page.catalogue && !running(page)) {
    const wanted = await asked(page, query, others(query));
    settle(page, wanted);
    if (wanted.pin && page.run) page.selection.pin = wanted.pin;
    page.wish = null;
  }
  page.draw();
  opening.say(page);
}

/** What of an address the Vision tab has in common with Live. */
function others(query) {
  return new URLSearchParams([...query].filter(([name]) => !OWN.includes(name)));
}

/** What an address asks for, in the panel; it goes before the settings of a run that is shown again. */
function settle(page, { choice, params, scene, beside, besideDrafter, problems, settings }) {
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
    page.notices.push({ kind: "note", message: "Left out of the link:", remedy: problems.join(" · ") });
}

/** After a reload: the run that this tab last showed, and the one beside it; not where a link asks for something else.
 *  What has not ended goes on. */
async function recall(page, wanted, [answer, other]) {
  const { host, vision } = page;
  if (!answer || !(memory.reloaded() || answers(page, wanted, answer))) return false;
  const header = memory.inForce(answer), scene = vision.scenes.find((s) => s.name === host.remember.getItem(SCENE));
  if (header && header.target !== page.choice.target) await look(page, header.target, header.drafter);
  const back = (seat, found, kind) =>
    Object.assign(backend.resume(seat, found, kind), {
      question: question(found.header),
      scene: scene?.name,
      alt: scene?.alt,
    });
  page.run = back(page, answer, "run");
  page.beside.run = other && back(page.beside, other, "beside");
  if (other) Object.assign(page.run, { pair: page.beside.run });
  vision.history.push(...[page.run, page.beside.run].filter(Boolean));
  vision.besideMethod = other ? (memory.inForce(other)?.method ?? vision.besideMethod) : "";
  vision.besideDrafter = other?.header?.drafter ?? null;
  if (header) adopt(page, header, { scene: scene?.name, alt: scene?.alt });
  for (const seat of [page, page.beside]) {
    if (seat.run && header)
      seat.run.key = choices.pairing({ ...page.choice, images: [vision.url] }, page.catalogue, form.clamp);
    if (seat.run && !store.isActive(seat.run)) explain(page, seat.run);
  }
  return true;
}

/** Hold the remembered picture again; `again`: with the run that was shown beside it. */
async function hold(page, again) {
  const { vision, host } = page;
  try {
    const kept = JSON.parse(host.remember?.getItem(PICTURE) ?? "null");
    if (!kept?.source?.startsWith("data:image/")) return;
    Object.assign(vision, kept, {
      fresh: kept.fresh || !again,
      both: new Map(kept.both),
      drafter: new Map(kept.drafter),
    });
    vision.url = await composed(page, "both");
    if (page.catalogue) page.catalogue.presets = questions(page);
  } catch {
    host.remember?.removeItem(PICTURE);
  }
}

/** Whether a run is of the settings, the question and the picture that the address names. */
function answers({ host }, wanted, answer) {
  const now = memory.inForce(answer);
  return (
    memory.fits(wanted, now && { ...now, prompt: question(now) }) &&
    (!wanted.scene || wanted.scene.name === host.remember.getItem(SCENE))
  );
}

/** Play a recording, and another one beside it; a missing one is no error, since a checkout may hold none yet. */
async function example(page, names) {
  const answers = await Promise.all(
    names.filter(Boolean).map((name) => page.host.call("recorded", { name }).catch(() => null)),
  );
  const [first, second] = answers.map((a) => (a?.header?.pictures?.length ? a : null));
  if (!first) {
    page.vision.empty = page.catalogue?.targets.length
      ? "Choose a picture and press Run. (No recording of it is here: workbench record makes them.)"
      : page.vision.empty;
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
export function show(page, trace, beside, from, plays = false) {
  page.fresh();
  const record = (given) =>
    Object.assign(store.fromTrace(`${from}-${(page.channels += 1)}`, given, from), {
      closed: true,
      question: question(given.header),
    });
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
  const rounds = run.rounds,
    other = page.beside.run,
    theirs = other?.rounds ?? [],
    speed = 0.1,
    end = { seq: run.seq, other: other?.seq };
  const upTo = (n) => {
    const late = rounds[n - 1]?.started_s ?? 0,
      shown = n >= rounds.length ? theirs.length : theirs.filter((r) => r.started_s <= late).length;
    Object.assign(run, { rounds: rounds.slice(0, n), whole: 0 });
    if (other) Object.assign(other, { rounds: theirs.slice(0, shown), whole: 0 });
    if (n >= rounds.length) Object.assign(run, { seq: end.seq }), (page.feeding = null);
    page.draw();
  };
  page.feeding = { label: `${speed}× of its speed`, stop: () => {} };
  page.feeding.stop = player.feed({ rounds, speed, still: false, arrive: upTo });
}
