/** Side panel: models, method, settings and buttons. It holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:choose` {what, value} · `wb:param` {name, value, note} (from the forms) · `wb:press` {button}.
 */

import * as kit from "./kit.js";
import * as limits from "./form.js";
import * as draftModels from "./draftmodels.js";
import * as prompthistory from "./prompthistory.js";

/** Return the options of a select; unavailable ones come last, with the reason. Pure.
 *  @param {{name: string, title: string, available?: boolean, reason?: string, detail?: string}[]} entries */
export function options(entries) {
  const usable = entries.filter((e) => e.available !== false);
  const barred = entries.filter((e) => e.available === false);
  return [
    ...(usable.length ? [] : [{ value: "", text: "none available", disabled: true }]),
    ...usable.map((e) => ({ value: e.name, text: e.title || e.name, disabled: false })),
    ...barred.map((e) => ({
      value: e.name,
      text: `${e.title || e.name}: ${e.reason || "not available"}`,
      disabled: true,
    })),
  ];
}

/** Return the buttons, each with the reason why it is disabled. Pure. @param {any} known */
export function buttons({ active, paused, ready, measuring, automatic = false, baseline, barred = {} }) {
  const idle = active ? "" : "no run in progress", waits = measuring && !automatic;
  const reason = waits ? "the baseline is being measured" : idle;
  return {
    run: {
      label: "Run",
      off: !ready ? "the backend is not ready" : waits ? reason : active ? "a run is in progress: stop it first" : "",
    },
    pause: { label: paused ? "Resume" : "Pause", off: barred.pause || reason },
    step: { label: "Step", off: barred.step || (!ready ? "the backend is not ready" : waits ? reason : "") },
    stop: { label: "Stop", off: measuring ? "" : idle },
    baseline: { label: baseline.label, off: barred.baseline || baseline.off },
  };
}

/** Parameter above all others in the panel, with the temperature. */
const MAIN_PARAM = "depth";
/** Prompt presets that are visible before "more" is pressed. */
const FIRST_CHIPS = 5;
const AUTOMATIC =
  "Measures plain decoding of the same prompt after each run with new settings, so that the run's speed-up is known. A new run ends the measurement.";

export const PROMISES = {
  exact: "exact: same distribution as the target alone",
  "greedy-exact": "greedy-exact: identical text at temperature 0",
  approximate: "approximate: the text may differ from the target's",
  simulation: "SIMULATION: uses information that no real drafter has",
};

/** @typedef {{promise: string, promises?: Record<string, string>, simulating?: string[], params?: any[],
 *             unsound?: Record<string, Record<string, string>>}} Promising */

/** Return a method's promise with these parameters. Verifier and tree builder decide it, and a policy that uses
 *  information unavailable to real drafters makes an exact method a simulation. Pure.
 *  @param {Promising|undefined} method
 *  @param {Record<string, any>} [values]  parameters by name; those left out have their defaults */
export function promised(method, values = {}) {
  const { verifier, grower } = pair(method, values);
  if (method?.unsound?.[verifier]?.[grower]) return "approximate";
  const sound = method?.promises?.[verifier] === "approximate" && method.unsound?.[verifier];
  const promise = sound ? method.promise : (method?.promises?.[verifier] ?? method?.promise ?? "");
  return promise === "exact" && method?.simulating?.includes(values.policy) ? "simulation" : promise;
}

/** Return the verifier and the tree builder in force. */
function pair(method, values) {
  const defaultOf = (name) => method?.params?.find((p) => p.name === name)?.default;
  return { verifier: values.verifier ?? defaultOf("verifier"), grower: values.grower ?? defaultOf("grower") };
}

/** Return the choices of verifier and tree builder that are unsound with the other parameters, with reasons. Pure.
 *  @param {Promising|undefined} method  @param {Record<string, any>} [values]
 *  @returns {Record<string, Record<string, string>>} by parameter and value */
export function unsound(method, values = {}) {
  const { verifier, grower } = pair(method, values), rules = Object.entries(method?.unsound ?? {});
  const by = (found) => Object.fromEntries(found.filter(([, reason]) => reason));
  return {
    verifier: by(rules.map(([name, of]) => [name, of[grower] ?? ""])),
    grower: by(Object.entries(method?.unsound?.[verifier] ?? {})),
  };
}

/** List the verifiers that change a method's promise; empty if none does. Pure.
 *  @param {{promise: string, promises?: Record<string, string>}} method */
export function verifierPromises(method) {
  const by = /** @type {Map<string, string[]>} */ (new Map());
  for (const [verifier, promise] of Object.entries(method.promises ?? {}))
    if (promise !== method.promise) by.set(promise, [...(by.get(promise) ?? []), verifier]);
  return [...by].map(([promise, verifiers]) => `${promise} with verifier = ${verifiers.join(", ")}`).join("; ");
}

/** Return a method's explanation. It may state why the output matches the target, which another verifier can change:
 *  then it is marked as describing the default choices. Pure.
 *  @param {(Promising & {teaches?: string})|undefined} method  @param {Record<string, any>} [values] */
export function explanation(method, values = {}) {
  const words = method?.teaches ?? "";
  return !words || promised(method, values) === method?.promise ? words : `With its default settings: ${words}`;
}

/** Write a promise into its badge. */
export function badge(el, promise) {
  write(el, PROMISES[promise] ?? promise);
  el.dataset.promise = promise;
}

/** Write the mark in a page's head for simulated or approximate text; hide it otherwise.
 *  @param {HTMLElement} el  @param {{promise: string, next: boolean}} mark  "approximate", "simulation" or ""; `next`:
 *    whether it applies to the next run instead of the one on display */
export function mark(el, { promise, next }) {
  write(el, `${next ? "NEXT RUN: " : ""}${promise.toUpperCase()}`);
  Object.assign(el, { hidden: !promise, title: PROMISES[promise] ?? "", className: `wb-badge is-${promise || "exact"}` });
}

/** Draw into `el`.
 *  @param {{catalogue: object, choice: object, form?: {value: object}, run: object, note: string, pace: number, paces:
 *    object[], theme?: string, roles?: object, inForce?: object, branch?: string, estimate?: string,
 *    draw: (el: Element, data: object) => void, auto?: boolean, picker?: (data: () => any) => Element}} data
 *    `draw` is `form.render`; `auto`: whether the baseline is measured after each run, undefined if the view does not
 *    offer it; `picker` returns the button that opens the picker of methods */
export function render(el, data) {
  const ui = (el._controls ??= build(el));
  const { catalogue, choice } = data;
  const method = catalogue.methods.find((m) => m.name === choice.method);
  select(ui.target, options(catalogue.targets), choice.target);
  select(ui.method, options(catalogue.methods), choice.method);
  ui.data = data;
  if (data.picker && !ui.browse.firstChild) ui.browse.append(data.picker(() => ui.data));
  select(ui.drafter, options(draftModels.usable(catalogue, choice.method)), choice.drafter);
  write(ui.targetNote, detail(catalogue.targets, choice.target));
  write(
    ui.drafterNote,
    method && !draftModels.usesDraftModel(method)
      ? "not used by this method"
      : detail(catalogue.drafters, choice.drafter),
  );
  badge(ui.promise, promised(method, choice.params));
  write(ui.headNote, method?.head ? `drafts with your own head: ${method.head}` : "");
  write(ui.teaches, explanation(method, choice.params));
  source(ui.source, method?.source);
  const barred = unsound(method, choice.params);
  const form = (el, params) => data.draw(el, { params, values: choice.params, inForce: data.inForce, barred });
  const params = method?.params ?? [], isMain = (param) => param.name === MAIN_PARAM;
  form(ui.mainParams, params.filter(isMain));
  form(ui.params, params.filter((param) => !isMain(param)));
  const [first, ...more] = catalogue.sampling;
  form(ui.sampling, first ? [first] : []);
  form(ui.sampling2, more);
  write(ui.moreNote, changed(more, choice.params));
  limits.limit({ max_new_tokens: ui.max, seed: ui.seed }, (ui.numbers = catalogue.numbers));
  field(ui.max, choice.max_new_tokens);
  field(ui.seed, choice.seed);
  const split = data.roles?.split(choice.prompt) ?? { words: choice.prompt, chat: false };
  ui.chat.parentElement.hidden = !data.roles; // a view without roles sends chat messages only
  ui.chat.checked = split.chat;
  ui.written = (words, chat = split.chat) => data.roles?.join(words, chat) ?? words;
  field(ui.prompt, split.words);
  chips(ui.presets, catalogue.presets, choice.preset);
  ui.branch.hidden = !data.branch;
  write(ui.branchWords, data.branch);
  write(ui.estimate, data.estimate);
  write(ui.barred, [...new Set(Object.values(data.run.barred ?? {}))].join(" "));
  for (const [name, { label, off }] of Object.entries(buttons(data.run))) {
    const button = ui.buttons[name];
    write(button.firstChild, label);
    button.disabled = Boolean(off);
    button.title = off;
  }
  ui.pace.parentElement.hidden = !data.paces || Boolean(data.run.barred?.pace);
  ui.auto.parentElement.hidden = data.auto === undefined || Boolean(data.run.barred?.baseline);
  ui.auto.checked = Boolean(data.auto);
  if (data.paces) select(ui.pace, data.paces, String(data.pace));
  write(ui.note, data.note);
  ui.note.classList.toggle("is-empty", !data.note);
}

function detail(entries, name) {
  return entries.find((e) => e.name === name)?.detail ?? "";
}

function changed(params, reason) {
  const n = params.filter((p) => reason[p.name] !== undefined && reason[p.name] !== p.default).length;
  return n ? `${n} changed` : "";
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7);
  const emit = (name, detail) => el.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  const choose = (what) => (event) => emit("wb:choose", { what, value: event.target.value });
  const picker = (what, title) => {
    const control = h("select", { id: `${uid}-${what}`, onchange: choose(what) });
    control.dataset.what = what;
    return [h("label", { htmlFor: control.id }, title), control];
  };
  const [targetLabel, target] = picker("target", "Target");
  const [methodLabel, method] = picker("method", "Method");
  const [drafterLabel, drafter] = picker("drafter", "Drafter");
  const note = () => h("small", { className: "wb-detail" });
  const number = (what) =>
    h("input", {
      type: "number",
      id: `${uid}-${what}`,
      step: 1,
      oninput: (event) =>
        event.inputType?.startsWith("history") &&
        event.target.value !== "" &&
        event.target.dispatchEvent(new Event("change")), // apply undo immediately
      onchange: (event) =>
        emit("wb:choose", { what, value: limits.whole(ui.numbers[what], event.target.value) }),
    });
  const max = number("max_new_tokens"), seed = number("seed");
  const prompt = h("textarea", {
    id: `${uid}-prompt`,
    rows: 4,
    spellcheck: false,
    oninput: (event) => emit("wb:choose", { what: "prompt", value: ui.written(event.target.value) }),
  });
  const chat = h("input", {
    type: "checkbox",
    id: `${uid}-chat`,
    onchange: () => emit("wb:choose", { what: "prompt", value: ui.written(prompt.value, chat.checked) }),
  });
  const asMessage = message(chat);
  const presets = h("div", {
    className: "wb-chips",
    onclick: (event) =>
      event.target.dataset.preset && emit("wb:choose", { what: "preset", value: event.target.dataset.preset }),
  });
  const pace = h("select", {
    id: `${uid}-pace`,
    onchange: (event) => emit("wb:choose", { what: "pace", value: Number(event.target.value) }),
  });
  pace.title =
    "Delays rounds so that you can follow, pause and change them. A round after a pause takes longer than at full speed. Baseline, Compare and Sweep always run at full speed.";
  const ui = {
    pace,
    target,
    method,
    drafter,
    max,
    seed,
    prompt,
    chat,
    presets,
    targetNote: note(),
    drafterNote: note(),
    headNote: note(),
    promise: h("small", { className: "wb-promise" }),
    teaches: h("p", { className: "wb-teaches" }),
    source: h("a", { className: "wb-source", target: "_blank", rel: "noopener" }),
    branchWords: h("span"),
    estimate: h("p", { className: "wb-estimate" }),
    barred: h("p", { className: "wb-estimate" }),
    mainParams: h("div", { className: "wb-form" }),
    params: h("div", { className: "wb-form" }),
    sampling: h("div", { className: "wb-form" }),
    sampling2: h("div", { className: "wb-form" }),
    moreNote: h("small", {}),
    note: h("p", { className: "wb-note" }),
    buttons: {},
  };
  ui.browse = h("span");
  ui.auto = h("input", {
    type: "checkbox",
    onchange: () => emit("wb:choose", { what: "autoBaseline", value: ui.auto.checked }),
  });
  ui.note.setAttribute("role", "status");
  ui.branch = h(
    "p",
    { className: "wb-branch", hidden: true },
    ui.branchWords,
    " ",
    h(
      "button",
      {
        type: "button",
        className: "wb-link",
        onclick: () => emit("wb:choose", { what: "prompt_tokens", value: null }),
      },
      "use the prompt text instead",
    ),
  );
  const press = (name, className, hint) => {
    const button = h(
      "button",
      { type: "button", className, onclick: () => emit("wb:press", { button: name }) },
      "",
      hint ? h("kbd", {}, hint) : "",
    );
    button.dataset.press = name;
    button.prepend(document.createTextNode(name));
    return (ui.buttons[name] = button);
  };
  const mac = /Mac|iP(hone|ad)/.test(navigator.platform ?? "");
  const settings = h(
    "details",
    { className: "wb-settings", open: !kit.isNarrow() },
    h("summary", {}, "Settings"),
    h("div", { className: "wb-pick" }, targetLabel, target, ui.targetNote),
    h("div", { className: "wb-pick" }, h("div", { className: "wb-asks" }, methodLabel, ui.browse), method, ui.promise, ui.headNote, ui.teaches, ui.source),
    ui.mainParams,
    ui.sampling,
    h("div", { className: "wb-pick" }, drafterLabel, drafter, ui.drafterNote),
    ui.params,
    h("details", { className: "wb-moresampling" }, h("summary", {}, "More sampling settings ", ui.moreNote), ui.sampling2),
    h(
      "div",
      { className: "wb-pair" },
      h("div", {}, h("label", { htmlFor: max.id }, "Max tokens"), max),
      h("div", {}, h("label", { htmlFor: seed.id }, "Seed"), seed),
    ),
  );
  el.append(
    h(
      "div",
      { className: "wb-ask" },
      h("div", { className: "wb-asks" }, h("label", { htmlFor: prompt.id }, "Prompt"), asMessage),
      presets,
      prompt,
      prompthistory.build((value) => emit("wb:choose", { what: "prompt", value })),
      ui.branch,
    ),
    settings,
    h(
      "div",
      { className: "wb-buttons" },
      ui.estimate,
      press("run", "wb-go", mac ? "⌘ ↵" : "Ctrl ↵"),
      press("pause", ""),
      press("step", ""),
      press("stop", ""),
      press("baseline", ""),
      h("label", { className: "wb-toggle wb-auto", title: AUTOMATIC }, ui.auto, "after each run"),
      h("div", { className: "wb-pace" }, h("label", { htmlFor: pace.id }, "Show at"), pace),
      ui.barred,
      ui.note,
    ),
  );
  return ui;
}

/** Fill a select if its options have changed. */
export function select(control, wanted, value) {
  const key = JSON.stringify(wanted);
  if (control._key !== key) {
    control._key = key;
    control.replaceChildren(...wanted.map((o) => h("option", { value: o.value, disabled: o.disabled }, o.text)));
  }
  // a browser selects none if all options are disabled
  if (control.value !== (value ?? "") || control.selectedIndex < 0) control.value = value ?? "";
}

function chips(el, presets, chosen) {
  if (!el._more) {
    el._more = h("button", { type: "button", className: "wb-morechips", onclick: () => unfold(el, !el._open) });
    el.append(el._more);
  }
  while (el.childElementCount <= presets.length) el._more.before(h("button", { type: "button" }));
  presets.forEach((p, i) => {
    const chip = el.children[i];
    chip.dataset.preset = p.name;
    write(chip, p.title);
    chip.setAttribute("aria-pressed", String(p.name === chosen));
  });
  unfold(el, el._open ?? false);
}

/** Show all presets, or the first ones and the chosen one. */
function unfold(el, open) {
  el._open = open;
  const all = [...el.querySelectorAll("[data-preset]")];
  all.forEach((chip, i) => (chip.hidden = !open && i >= FIRST_CHIPS && chip.getAttribute("aria-pressed") !== "true"));
  el._more.hidden = all.length <= FIRST_CHIPS + 1;
  write(el._more, open ? "fewer" : "more …");
  el._more.setAttribute("aria-expanded", String(open));
}

/** Return the checkbox "chat message", with its label. */
export function message(checkbox) {
  const title =
    "On: the prompt is a user message in the target's chat template. Off: plain text that the model continues.";
  return h("label", { className: "wb-toggle wb-chat", title }, checkbox, "chat message");
}

/** Format a source in one line; for a source without a year, only its title. Pure. */
export function cite({ title, authors, year, where = "" }) {
  return [year ? `${authors} ${year}: ${title}` : title, where].filter(Boolean).join(", ");
}

function source(link, cited) {
  link.hidden = !cited?.title;
  if (!cited?.title) return;
  write(link, cite(cited));
  if (/^https?:\/\//.test(cited.url ?? "")) link.href = cited.url;
  else link.removeAttribute("href");
}

function field(control, value) {
  if (document.activeElement !== control || control.type !== "number") {
    if (control.value !== String(value ?? "")) control.value = value ?? "";
  }
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function h(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
