/** State of the settings panel and the requests built from it. Plain data, no DOM. */

import * as roles from "../shared/roles.js";
import * as draftModels from "../shared/draftmodels.js";

/** Return the initial choice. */
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

/** Keep the choices that a new catalogue still offers. */
export function revise(choice, catalogue) {
  const fresh = first(catalogue);
  const has = (entries, name) => entries.some((e) => e.name === name && e.available !== false);
  return {
    ...choice,
    target: has(catalogue.targets, choice.target) ? choice.target : fresh.target,
    drafter: has(draftModels.usable(catalogue, choice.method), choice.drafter) ? choice.drafter : fresh.drafter,
    method: has(catalogue.methods, choice.method) ? choice.method : fresh.method,
  };
}

/** Take a preset: its prompt, and the target it was written for once that is loaded. `note` says what the page waits
 *  for. */
export function pick(choice, catalogue, name) {
  const preset = catalogue.presets.find((p) => p.name === name),
    target = { ...choice, preset: name, prompt: preset?.prompt ?? choice.prompt };
  const wanted = catalogue.targets.find((t) => t.name === preset?.target && t.available !== false);
  if (!wanted || wanted.name === choice.target) return { choice: target, note: "" };
  if (wanted.loading)
    return {
      choice: target,
      note: `This prompt was written for ${wanted.name}, which is still loading; until then ${choice.target} is used.`,
    };
  return {
    choice: { ...target, target: wanted.name },
    note: `Target changed to ${wanted.name}, for which this prompt was written.`,
  };
}

/** Warn of a prompt in a non-Latin script when the target is bundled: bundled targets were trained on short English
 *  stories. Pure.
 *  @returns {string}  empty if there is no warning */
export function scriptWarning(choice, catalogue) {
  const now = catalogue.targets.find((t) => t.name === choice.target),
    other = /[^\P{L}\p{Script=Latin}]/u.test(roles.split(choice.prompt ?? "").words);
  if (now?.kind !== "bundled" || !other) return "";
  const chatTarget = catalogue.targets.find((t) => catalogue.presets.some((p) => p.target === t.name)),
    remedy = chatTarget ? `choose ${chatTarget.name} as target` : "start the app with --target and a model for this language";
  return `${now.name} was trained on short English stories: ${remedy}.`;
}

/** Choose the target for a typed prompt. If nobody chose a target, a chat question goes from the bundled pair, which
 *  knows only stories, to the model that presets use, once it is loaded. `note` says so while the prompt is typed. */
export function targetForTyped(choice, catalogue) {
  const { words, chat } = roles.split(choice.prompt), { target } = choice;
  const asks = chat && words.trim() !== "" && choice.preset === null && !choice.fixed;
  const now = catalogue.targets.find((t) => t.name === target),
    chatTarget = catalogue.targets.find((t) => catalogue.presets.some((p) => p.target === t.name));
  const lent = choice.lent || Boolean(chatTarget?.ready && now?.kind === "bundled");
  if (!asks || !chatTarget || (!lent && !(chatTarget.loading && now?.kind === "bundled"))) return { target, lent: false, note: "" };
  if (!lent) return { target, lent, note: `${chatTarget.name} is still loading; until then ${target} is used.` };
  return {
    target: chatTarget.name,
    lent,
    note: `Your own prompt goes to ${chatTarget.name}, which answers questions; you can choose any target above.`,
  };
}

/** Return all parameters in one flat object: parameters of `method` and of sampling, clamped to their ranges. */
export function parameters(choice, catalogue, method, clamp) {
  const own = catalogue.methods.find((m) => m.name === method)?.params ?? [];
  return Object.fromEntries([...own, ...catalogue.sampling].map((p) => {
    const value = choice.params[p.name] ?? p.default;
    return [p.name, typeof value === "number" ? clamp(p, value).value : value];
  }));
}

/** Adopt a trace's settings as far as the catalogue offers them. */
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
    ...(has(draftModels.usable(catalogue, header.method), header.drafter) && { drafter: header.drafter }),
  };
}

/** Return the request of a run. A prompt given as tokens is sent as tokens; `images` are data URLs. */
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

/** Return the request of the baseline: plain decoding of the same prompt, seed and sampling. */
export function plainRequest(choice, catalogue, channel, clamp) {
  return { ...request({ ...choice, method: catalogue.baseline }, catalogue, channel, clamp, false), drafter: null };
}

/** Return the settings that a run and its baseline must share to be compared. */
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
