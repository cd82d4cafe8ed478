/** State of the Compare panel: lanes, prompts, numbers; its request and its address. No DOM. */

import * as form from "../shared/form.js";
import * as draftModels from "../shared/draftmodels.js";
import { MOST_IN_SET } from "../shared/prompthistory.js";

const FIRST = ["draft-model", "draft-tree", "prompt-lookup"],
  FIRST_OF_PICTURES = ["vlm-draft", "specvlm", "vlm-text-only"];
export const OWN = "vision";

/** Return the initial choice. */
export function first(catalogue) {
  const pictures = takesImages(catalogue, catalogue.chosen.target);
  return {
    target: catalogue.chosen.target,
    lanes: lanesOf(catalogue, pictures),
    presets: catalogue.presets.slice(0, 2).map((p) => p.name),
    text: "",
    texts: [],
    sampling: {},
    pictures,
    ...picturesOf(catalogue, pictures),
    ...form.usual(catalogue.numbers),
  };
}

/** Return the initial lanes of a target. */
function lanesOf(catalogue, pictures) {
  const usable = (pictures ? FIRST_OF_PICTURES : FIRST).filter((name) =>
    catalogue.methods.some((m) => m.name === name && m.available !== false),
  );
  return usable.map((method) => ({ method, params: {}, drafter: null }));
}

/** Return the initial image and questions of a target. */
function picturesOf(catalogue, pictures) {
  const scene = pictures ? catalogue.scenes?.[0] : null;
  return { scene: scene?.name ?? "", own: null, questions: scene?.questions.slice(0, 2) ?? [] };
}

/** Return whether a target takes images; its prompts are then questions about one. Pure. */
export function takesImages(catalogue, target) {
  return Boolean(catalogue.targets.find((t) => t.name === target)?.pictures);
}

/** Return the image of the prompts, and the questions offered for it. Pure.
 *  @returns {{url: string, alt: string, offered: string[]}} */
export function picture(choice, catalogue) {
  const scene = catalogue.scenes?.find((each) => each.name === choice.scene),
    own = choice.scene === OWN ? choice.own : null;
  const offered = [...new Set([...(scene?.questions ?? []), ...(catalogue.questions ?? []), ...choice.questions])];
  return { url: scene?.url ?? own?.url ?? "", alt: scene?.alt ?? own?.alt ?? "", offered };
}

/** Return the choices that change with another image: a scene's name, or the image of the Vision tab. Pure. */
export function take(choice, catalogue, name, shown) {
  const scene = catalogue.scenes.find((each) => each.name === name),
    fits = (q) => (scene?.questions ?? []).includes(q) || catalogue.questions.includes(q);
  const fitting = choice.questions.filter(fits),
    questions = fitting.length ? fitting : (scene?.questions ?? catalogue.questions).slice(0, 2);
  return { scene: name, questions, own: name === OWN ? (shown ?? null) : null };
}

/** Return the alternative text of an image. Pure. */
export function altOf(catalogue, url) {
  return catalogue?.scenes?.find((scene) => scene.url === url)?.alt || "the image that the questions are about";
}

/** Split typed text into questions, one per line. Pure. */
function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

/** Return the typed prompt and the prompts of a prompt set, each once. Pure. */
export function ownTexts(choice) {
  return [...new Set([choice.text, ...(choice.texts ?? [])])].filter((text) => text.trim());
}

/** Return the texts of all chosen prompts, for a prompt set. Pure. */
export function promptTexts(choice, catalogue) {
  const presets = catalogue.presets.filter((preset) => choice.presets.includes(preset.name));
  return [...presets.map((preset) => preset.prompt), ...ownTexts(choice)];
}

/** Count the chosen prompts. Pure. */
function count(choice) {
  return choice.pictures
    ? new Set([...choice.questions, ...lines(choice.text)]).size
    : choice.presets.length + ownTexts(choice).length;
}

/** Return whether the panel asks for the same target, lanes and prompts as a comparison. A chat message equals the
 *  same text with role markers, which older comparisons used. Pure. */
export function asksFor(choice, catalogue, comparison, roles) {
  if (!catalogue) return true;
  const { prompts } = request(choice, catalogue, roles),
    texts = (all) => JSON.stringify(all.map((p) => roles.join(p.text, Boolean(p.chat)))),
    mine = choice.lanes.map(laneText),
    theirs = comparison.lanes.filter((lane) => !lane.added).map((lane) => lane.text);
  return choice.target === comparison.settings.target && `${mine}` === `${theirs}` && texts(prompts) === texts(comparison.prompts);
}

/** Keep the choices that still exist after the target changed. */
export function revise(choice, catalogue) {
  const has = (entries, name) => entries.some((e) => e.name === name && e.available !== false);
  const lanes = choice.lanes
    .filter((lane) => has(catalogue.methods, lane.method))
    .map((lane) => {
      const usable = draftModels.usable(catalogue, lane.method);
      return { ...lane, drafter: has(usable, lane.drafter) ? lane.drafter : null };
    });
  const usual = first(catalogue), pictures = takesImages(catalogue, choice.target);
  if (pictures !== choice.pictures)
    return {
      ...choice,
      pictures,
      lanes: usual.lanes,
      scene: usual.scene,
      own: null,
      questions: usual.questions,
      text: "",
    };
  return { ...choice, lanes: lanes.length ? lanes : usual.lanes };
}

/** Return an error if the choice cannot be measured, else null. Pure. */
export function problem(choice, catalogue) {
  if (!choice.lanes.length)
    return { message: "No lane is chosen.", remedy: "Add a lane; plain decoding is always measured as well." };
  if (choice.pictures && !picture(choice, catalogue).url)
    return {
      message: "No image is chosen.",
      remedy: "Choose a scene, or open an image in the Vision tab first.",
    };
  if (choice.pictures && !count(choice))
    return { message: "No question is chosen.", remedy: "Choose a question, or write your own." };
  if (!choice.pictures && !count(choice))
    return { message: "No prompt is chosen.", remedy: "Choose a prompt, or write your own." };
  const laneTexts = choice.lanes.map((lane) => laneText(lane));
  if (new Set(laneTexts).size < laneTexts.length)
    return { message: "Two lanes have the same method and parameters.", remedy: "Change a parameter of one lane, or remove the lane." };
  return null;
}

/** Count the runs of the comparison: lanes and plain decoding, with one warm-up run each. Pure. */
export function runs(choice) {
  const lanes = choice.lanes.length + (choice.lanes.some((l) => l.method === "autoregressive") ? 0 : 1);
  return lanes * (count(choice) * choice.repeats + 1);
}

/** Return the request, with values clamped to their ranges. A message is sent as its text, marked `chat`: the backend
 *  adds the target's chat template. @param {{split: Function}} roles  splits a prompt with role markers */
export function request(choice, catalogue, roles, clamp = (spec, value) => ({ value })) {
  const clamped = (specs, values) =>
    Object.fromEntries(
      specs
        .filter((p) => values[p.name] !== undefined)
        .map((p) => [p.name, typeof values[p.name] === "number" ? clamp(p, values[p.name]).value : values[p.name]]),
    );
  const named = (name, prompt) => {
    const { words, chat } = roles.split(prompt);
    return { name, text: words, ...(chat && { chat }) };
  };
  const presets = catalogue.presets.filter((p) => choice.presets.includes(p.name)).map((p) => named(p.title, p.prompt));
  const texts = ownTexts(choice), own = texts.map((text, i) => named(texts.length > 1 ? `own prompt ${i + 1}` : "own prompt", text));
  const questions = [...new Set([...choice.questions, ...lines(choice.text)])].map((text) => ({
    name: text.length > 40 ? `${text.slice(0, 39)}…` : text,
    text,
  }));
  const specs = (lane) => catalogue.methods.find((m) => m.name === lane.method)?.params ?? [];
  return {
    prompts: choice.pictures ? questions : [...presets, ...own],
    images: choice.pictures ? [picture(choice, catalogue).url].filter(Boolean) : [],
    lanes: choice.lanes.map((lane) => ({
      method: lane.method,
      params: clamped(specs(lane), lane.params),
      drafter: lane.drafter,
    })),
    target: choice.target,
    sampling: clamped(catalogue.sampling, choice.sampling),
    repeats: choice.repeats,
    max_new_tokens: choice.max_new_tokens,
    seed: choice.seed,
  };
}

/** Write a lane as one argument of the command line. Pure. */
export function laneText({ method, params, drafter }) {
  const pairs = [
    ...Object.entries(params).filter(([, v]) => v !== undefined),
    ...(drafter ? [["drafter", drafter]] : []),
  ].map(([name, value]) => `${name}=${value}`);
  return method + (pairs.length ? `:${pairs.join(",")}` : "");
}

/** Return the command line of the same comparison. Pure. */
export function command(choice, catalogue, roles) {
  const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const { prompts } = request(choice, catalogue, roles),
    how = (p) => (choice.pictures ? ["--question"] : p.chat ? ["--chat"] : []);
  const words = [
    "workbench",
    "compare",
    ...(choice.pictures ? ["--image", `${choice.scene === OWN ? "picture" : choice.scene}.png`] : []),
    ...prompts.flatMap((p) => [...how(p), quote(p.text)]),
  ];
  for (const lane of choice.lanes) words.push("--lane", quote(laneText(lane)));
  for (const name of ["temperature", "top_k", "top_p"])
    if (choice.sampling[name] !== undefined) words.push(`--${name.replace("_", "-")}`, `${choice.sampling[name]}`);
  words.push(
    "--target",
    quote(choice.target ?? ""),
    "--repeats",
    `${choice.repeats}`,
    "--max-new-tokens",
    `${choice.max_new_tokens}`,
    "--seed",
    `${choice.seed}`,
  );
  return words.join(" ");
}

/** Return the query that restores the choice. Pure. */
export function toQuery(choice, catalogue) {
  const query = new URLSearchParams(),
    put = (name, value) => value !== null && value !== undefined && value !== "" && query.append(name, String(value));
  if (choice.target !== catalogue.targets[0]?.name) put("target", choice.target);
  for (const lane of choice.lanes) put("lane", laneText(lane));
  if (!choice.pictures) query.append("prompts", choice.presets.join(",")); // also if all are deselected
  else {
    if (choice.scene !== OWN) put("scene", choice.scene);
    for (const question of choice.questions) put("question", question);
  }
  put("text", choice.text);
  if (!choice.pictures) for (const text of choice.texts ?? []) put("own", text);
  for (const [name, usual] of Object.entries(form.usual(catalogue.numbers)))
    if (choice[name] !== usual) put(name, choice[name]);
  for (const [name, value] of Object.entries(choice.sampling)) put(name, value);
  return query.toString();
}

/** Parse an address; invalid parts are left out and listed. @returns {{choice: object, problems: string[]}} */
export function fromQuery(search, catalogue, clamp) {
  const query = new URLSearchParams(search),
    choice = first(catalogue),
    problems = [],
    sampling = new Map(catalogue.sampling.map((p) => [p.name, p]));
  if (query.get("tab") !== "compare") return { choice, problems };
  const bad = (name, text, why) =>
    problems.push(`${name}=${text.length > 40 ? `${text.slice(0, 39)}…` : text}: ${why}`);
  const lanes = [], questions = [];
  choice.target = query.get("target") ?? choice.target;
  const pictures = takesImages(catalogue, choice.target);
  if (pictures !== choice.pictures)
    Object.assign(choice, { pictures }, picturesOf(catalogue, pictures), { lanes: lanesOf(catalogue, pictures) });
  for (const [name, text] of query) {
    if (name === "lane") {
      const lane = readLane(text, catalogue, clamp);
      if (lane.why) bad(name, text, lane.why);
      else if (lane.method === catalogue.baseline)
        continue; // always measured; the panel's select leaves it out
      else if (lanes.length < catalogue.lanes) lanes.push(lane);
      else bad(name, text, `at most ${catalogue.lanes} lanes can be compared`);
    } else if (name === "prompts") {
      const names = text.split(",").filter(Boolean),
        known = (n) => catalogue.presets.some((p) => p.name === n),
        unknown = names.filter((n) => !known(n));
      choice.presets = names.filter(known);
      if (unknown.length)
        bad(name, unknown.join(","), `unknown prompt; choose from ${catalogue.presets.map((p) => p.name).join(", ")}`);
    } else if (name === "text") choice.text = text;
    else if (name === "own") {
      if (choice.texts.length < MOST_IN_SET) choice.texts.push(text);
      else bad(name, text, `at most ${MOST_IN_SET} prompts of your own can be compared`);
    }
    else if (name === "scene") {
      if (catalogue.scenes?.some((scene) => scene.name === text)) choice.scene = text;
      else bad(name, text, "unknown scene");
    } else if (name === "question") questions.push(text);
    else if (name === "target") choice.target = text;
    else if (name in catalogue.numbers) {
      if (/^\d{1,16}$/.test(text) && form.whole(catalogue.numbers[name], text) === Number(text))
        choice[name] = Number(text);
      else bad(name, text, `not a whole number from ${catalogue.numbers[name].ge} to ${catalogue.numbers[name].le}`);
    } else if (sampling.has(name)) {
      const spec = sampling.get(name), value = text.trim() === "" ? NaN : Number(text);
      if (clamp(spec, value).value === value) choice.sampling[name] = value;
      else bad(name, text, "out of range");
    } else if (name !== "tab" && !name.startsWith("__")) bad(name, text, "unknown setting");
  }
  if (query.has("prompts") && !query.has("text") && !query.has("own") && !choice.presets.length) choice.presets = first(catalogue).presets;
  if (lanes.length) choice.lanes = /** @type {any[]} */ (lanes);
  if (questions.length) choice.questions = questions;
  return { choice, problems };
}

function readLane(text, catalogue, clamp) {
  const at = text.indexOf(":"),
    name = at < 0 ? text : text.slice(0, at),
    method = catalogue.methods.find((m) => m.name === name);
  if (!method) return { why: "unknown method" };
  const lane = { method: name, params: {}, drafter: null };
  for (const pair of at < 0 ? [] : text.slice(at + 1).split(",")) {
    const [key, value] = [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)],
      spec = method.params.find((p) => p.name === key);
    if (key === "drafter") lane.drafter = value;
    else if (!spec) return { why: `${name} has no parameter ${key || pair}` };
    else if (spec.choices?.length) {
      if (!spec.choices.includes(value)) return { why: `${key} must be one of ${spec.choices.join(", ")}` };
      lane.params[key] = value;
    } else if (spec.kind === "bool") lane.params[key] = /^(true|1)$/i.test(value);
    else if (value.trim() === "" || clamp(spec, Number(value)).value !== Number(value))
      return { why: `${key} is out of range` };
    else lane.params[key] = Number(value);
  }
  return lane;
}
