/** What the side panel holds, and the requests made from it. Plain data, no DOM. */

import * as roles from "../shared/roles.js";
import * as strangers from "../shared/strangers.js";

/** The first choice a visitor sees. */
export function first(catalogue) {
  const usable = (entries, wanted) =>
    (entries.find((e) => e.name === wanted && e.available !== false) ?? entries.find((e) => e.available !== false))
      ?.name ?? null;
  const preset = catalogue.presets[0];
  return {
    target: usable(catalogue.targets, catalogue.chosen.target),
    drafter: usable(catalogue.drafters, catalogue.chosen.drafter),
    method: usable(catalogue.methods, catalogue.chosen.method),
    params: {},
    preset: preset?.name ?? null,
    prompt: preset?.prompt ?? "",
    max_new_tokens: catalogue.chosen.max_new_tokens,
    seed: 0,
    prompt_tokens: null,
    origin: null,
    pace: null,
    fixed: false,
    lent: false,
  };
}

/** Keep what still exists after the target or the drafter changed and a new catalogue came. */
export function revise(choice, catalogue) {
  const fresh = first(catalogue);
  const has = (entries, name) => entries.some((e) => e.name === name && e.available !== false);
  return {
    ...choice,
    target: has(catalogue.targets, choice.target) ? choice.target : fresh.target,
    drafter: has(strangers.drafters(catalogue, choice.method), choice.drafter) ? choice.drafter : fresh.drafter,
    method: has(catalogue.methods, choice.method) ? choice.method : fresh.method,
  };
}

/** Take a preset: its prompt, and the target that it was made for, once that is loaded. `note` says what is waited
 *  for. */
export function pick(choice, catalogue, name) {
  const preset = catalogue.presets.find((p) => p.name === name),
    made = { ...choice, preset: name, prompt: preset?.prompt ?? choice.prompt };
  const wanted = catalogue.targets.find((t) => t.name === preset?.target && t.available !== false);
  if (!wanted || wanted.name === choice.target) return { choice: made, note: "" };
  if (wanted.loading)
    return {
      choice: made,
      note: `This prompt is made for ${wanted.name}, which is still loading: until then it goes to ${choice.target}.`,
    };
  return {
    choice: { ...made, target: wanted.name },
    note: `This prompt is made for ${wanted.name}, which is the target now.`,
  };
}

/** What to say of a prompt in letters that a bundled target has not learnt: it knows short English stories. Pure.
 *  @returns {string}  empty where there is nothing to say */
export function foreign(choice, catalogue) {
  const now = catalogue.targets.find((t) => t.name === choice.target),
    other = /[^\P{L}\p{Script=Latin}]/u.test(roles.split(choice.prompt ?? "").words);
  if (now?.kind !== "bundled" || !other) return "";
  const able = catalogue.targets.find((t) => catalogue.presets.some((p) => p.target === t.name)),
    remedy = able ? `choose ${able.name} as target` : "start the app with --target and a model that knows this language";
  return `${now.name} was trained on short English stories: ${remedy}.`;
}

/** The target for words of a visitor's own: while nobody chose one, a question goes from the bundled pair, which knows
 *  stories alone, to the model that presets ask, once that is there. `note` says so while the words are written. */
export function own(choice, catalogue) {
  const { words, chat } = roles.split(choice.prompt), { target } = choice;
  const asks = chat && words.trim() !== "" && choice.preset === null && !choice.fixed;
  const now = catalogue.targets.find((t) => t.name === target),
    able = catalogue.targets.find((t) => catalogue.presets.some((p) => p.target === t.name));
  const lent = choice.lent || Boolean(able?.ready && now?.kind === "bundled");
  if (!asks || !able || (!lent && !(able.loading && now?.kind === "bundled"))) return { target, lent: false, note: "" };
  if (!lent) return { target, lent, note: `${able.name} is still loading: until then this goes to ${target}.` };
  return { target: able.name, lent, note: `Words of your own go to ${able.name}; choose any target above.` };
}

/** All parameters in one flat object: those of `method` and of sampling, held values inside their ranges. */
export function parameters(choice, catalogue, method, clamp) {
  const own = catalogue.methods.find((m) => m.name === method)?.params ?? [];
  return Object.fromEntries([...own, ...catalogue.sampling].map((p) => {
    const held = choice.params[p.name] ?? p.default;
    return [p.name, typeof held === "number" ? clamp(p, held).value : held];
  }));
}

/** Take a trace's settings over, as far as the catalogue has them. */
export function adopt(choice, header, catalogue) {
  const has = (entries, name) => entries.some((e) => e.name === name && e.available !== false);
  return {
    ...choice,
    prompt: header.prompt,
    seed: header.seed,
    max_new_tokens: header.max_new_tokens,
    params: { ...header.params },
    prompt_tokens: null,
    origin: null,
    fixed: true,
    preset: catalogue.presets.find((p) => p.prompt === header.prompt)?.name ?? null,
    ...(has(catalogue.methods, header.method) && { method: header.method }),
    ...(has(catalogue.targets, header.target) && { target: header.target }),
    ...(has(strangers.drafters(catalogue, header.method), header.drafter) && { drafter: header.drafter }),
  };
}

/** The request of a run. A prompt given as tokens goes as tokens; `images` are data-URLs. */
export function request(choice, catalogue, channel, clamp, paused) {
  const { prompt, prompt_tokens, images, target, drafter, max_new_tokens, seed, method } = choice;
  return {
    channel,
    prompt,
    ...(prompt_tokens && { prompt_tokens }),
    ...(images && { images }),
    target,
    drafter,
    max_new_tokens,
    seed,
    method,
    params: parameters(choice, catalogue, method, clamp),
    paused,
  };
}

/** The request of the baseline: plain decoding of the same prompt, seed and sampling. */
export function plainRequest(choice, catalogue, channel, clamp) {
  return { ...request({ ...choice, method: catalogue.baseline }, catalogue, channel, clamp, false), drafter: null };
}

/** What a run and its baseline must share to be compared. */
export function pairing(choice, catalogue, clamp) {
  const { prompt, prompt_tokens, images, target, max_new_tokens, seed } = choice;
  return JSON.stringify([
    prompt_tokens ?? prompt,
    images ?? null,
    target,
    max_new_tokens,
    seed,
    parameters(choice, catalogue, catalogue.baseline, clamp),
  ]);
}
