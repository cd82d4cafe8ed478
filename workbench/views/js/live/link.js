/** State of the Live view as a URL query, and back. Pure: no DOM, no history. */

import * as draftModels from "../shared/draftmodels.js";

const VIEWS = ["tokens", "tree", "clock", "curves"];
const PARTS = ["round", "token", "node"];
const MAX_IDS = 4000;

/** Return the query that restores this state: settings under their registry names, then the selection and the view.
 *  @param {object} choice  @param {object} catalogue  @param {Record<string, any>} params  all parameters in force
 *  @param {{pin?: object|null, view?: string|null, embed?: boolean, recorded?: string|null,
 *          run?: string|null, settings?: boolean}} shown  `recorded`: a recording or a kept run, which brings its own
 *          settings unless the panel has others; `run`: id of a run that the app decoded with these settings */
export function toQuery(
  choice,
  catalogue,
  params,
  { pin = null, view = null, embed = false, recorded = null, run = null, settings = !recorded } = {},
) {
  const query = new URLSearchParams();
  const put = (name, value) => value !== null && value !== undefined && value !== "" && query.set(name, String(value));
  put("recorded", recorded);
  put("run", run);
  if (settings) {
    for (const name of ["target", "drafter", "method", "prompt", "seed", "max_new_tokens", "pace"])
      put(name, choice[name]);
    for (const [name, value] of Object.entries(params)) put(name, value);
    if (choice.prompt_tokens) put("ids", choice.prompt_tokens.join("."));
  }
  if (pin) for (const name of PARTS) put(name, name === "round" ? pin.round + 1 : pin[name]);
  put("view", view);
  if (embed) put("embed", 1);
  return query.toString();
}

/** Parse an address and check it against the catalogue. Invalid entries are left out and listed in `problems`.
 *  @returns {{choice: object, params: Record<string, any>, pin: object|null, view: string|null, embed: boolean,
 *             recorded: string|null, run: string|null, starts: boolean, problems: string[], settings: boolean}}
 *             `run`: id of a run of this app; `starts`: decode the settings at once (`run=new`) */
export function fromQuery(search, catalogue, clamp) {
  const query = new URLSearchParams(search), choice = {}, params = {}, problems = [];
  let text = "";
  const bad = (name, why) => problems.push(`${name}=${short(text)}: ${why}`);
  const specs = new Map([...catalogue.methods.flatMap((m) => m.params), ...catalogue.sampling].map((p) => [p.name, p]));
  const own = catalogue.methods.find((m) => m.name === query.get("method"))?.params ?? [];
  for (const p of own) specs.set(p.name, p);
  const drafters = draftModels.usable(catalogue, query.get("method"));
  const lists = { target: catalogue.targets, drafter: drafters, method: catalogue.methods };
  let pin = /** @type {any} */ (null), view = null, embed = false, recorded = null, run = null, starts = false;
  for (const [name, raw] of query) {
    text = raw;
    if (name in lists) {
      const entry = lists[name].find((e) => e.name === text);
      if (entry && entry.available !== false) choice[name] = text;
      else if (entry) bad(name, entry.reason || "not available");
      // the backend already reported an unknown target
      else if (!(name === "target" && catalogue.problem)) bad(name, `unknown ${name}`);
    } else if (name in catalogue.numbers) {
      const value = Number(text),
        { ge, le } = catalogue.numbers[name];
      if (/^\d+$/.test(text) && value >= ge && value <= le) choice[name] = value;
      else bad(name, `not a whole number from ${ge} to ${le}`);
    } else if (name === "prompt") choice.prompt = text;
    else if (name === "ids") {
      const ids = text.split(".");
      if (ids.length <= MAX_IDS && ids.every((id) => /^\d{1,9}$/.test(id))) choice.prompt_tokens = ids.map(Number);
      else bad(name, "not a list of token ids");
    } else if (PARTS.includes(name)) {
      if (/^\d{1,7}$/.test(text) || (name === "node" && ["target", "-1"].includes(text)))
        pin = { ...pin, [name]: /^\d+$/.test(text) ? Number(text) : text };
      else bad(name, "not a number");
    } else if (name === "view") {
      if (VIEWS.includes(text)) view = text;
      else if (text === "api")
        continue; // Gradio's API page, which opens over this one
      else bad(name, `choose one of ${VIEWS.join(", ")}`);
    } else if (name === "embed") embed = text === "1";
    else if (name === "recorded") recorded = text;
    else if (name === "run") {
      if (text === "new") starts = true;
      else if (/^[\w-]{8,64}$/.test(text)) run = text;
      else bad(name, "not the id of a run");
    } else if (specs.has(name)) {
      const read = parse(specs.get(name), text, clamp);
      if (read.why) bad(name, read.why);
      else params[name] = read.value;
    // names with two underscores are Gradio's
    } else if (name === "tab") {
      if (text !== "live") bad(name, "unknown tab");
    } else if (!name.startsWith("__")) bad(name, "unknown setting");
  }
  if (pin && !(pin.round >= 1)) pin = null;
  if (pin) pin = { token: null, node: null, ...pin, round: pin.round - 1 };
  const settings = Object.keys(choice).length + Object.keys(params).length > 0;
  return { choice, params, pin, view, embed, recorded, run, starts, problems, settings };
}

function parse(spec, text, clamp) {
  if (spec.choices?.length)
    return spec.choices.includes(text) ? { value: text } : { why: `choose one of ${spec.choices.join(", ")}` };
  if (spec.kind === "bool")
    return ["true", "false"].includes(text) ? { value: text === "true" } : { why: "must be true or false" };
  const value = text.trim() === "" ? NaN : Number(text), clamped = clamp(spec, value);
  return clamped.value === value ? { value } : { why: `must be a number from ${spec.ge ?? "−∞"} to ${spec.le ?? "∞"}` };
}

function short(text) {
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}
