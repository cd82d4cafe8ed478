/** Side panel of the Compare view. It holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:choose` {…changes} · `wb:param` {name, value, note} (from the forms) · `wb:press` {button}. */

import * as comparechoice from "./choice.js";
import * as comparepicture from "./picture.js";
import * as controls from "../shared/controls.js";
import * as form from "../shared/form.js";
import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import * as roles from "../shared/roles.js";
import * as draftModels from "../shared/draftmodels.js";
import * as promptsets from "./promptsets.js";

/** Draw into `el`.
 *  @param {{catalogue: object, choice: object, measuring: boolean, note: string, draw: (el: Element, data: object) =>
 *    void, comparison?: object|null}} data */
export function render(el, data) {
  const { catalogue, choice } = data, ui = (el._ui ??= build(el));
  ui.data = data;
  controls.select(ui.target, controls.options(catalogue.targets), choice.target);
  kit.resize(ui.lanes, choice.lanes.length, () => lane(ui));
  choice.lanes.forEach((chosen, i) => showLane(ui.lanes.children[i], chosen, i, data));
  ui.add.disabled = choice.lanes.length >= catalogue.lanes;
  ui.add.title = ui.add.disabled ? `at most ${catalogue.lanes} lanes can be compared` : "";
  ui.pictured.hidden = !choice.pictures;
  ui.sets.element.hidden = choice.pictures; // a question belongs to an image
  ui.sets.draw(choice.texts ?? []);
  ui.presets.hidden = ui.presets.previousSibling.hidden = choice.pictures;
  if (choice.pictures)
    comparepicture.render(ui.pictured, { catalogue, choice, shown: window.workbenchPicture?.() ?? null });
  kit.write(ui.textLabel, choice.pictures ? "Your own questions, one per line" : "Additional prompt of your own");
  while (ui.presets.childElementCount < catalogue.presets.length) ui.presets.append(h("button", { type: "button" }));
  catalogue.presets.forEach((preset, i) => {
    const chip = ui.presets.children[i];
    chip.dataset.preset = preset.name;
    chip.title = roles.split(preset.prompt).words;
    kit.write(chip, preset.title);
    chip.setAttribute("aria-pressed", String(choice.presets.includes(preset.name)));
  });
  const own = choice.pictures ? { words: choice.text, chat: true } : roles.split(choice.text);
  if (document.activeElement !== ui.text && ui.text.value !== own.words) ui.text.value = own.words;
  if (choice.text) ui.chat.checked = own.chat;
  ui.chat.parentElement.hidden = choice.pictures; // a question about an image is always a chat message
  form.limit(ui, (ui.numbers = catalogue.numbers));
  for (const name of Object.keys(catalogue.numbers))
    if (document.activeElement !== ui[name] && ui[name].value !== `${choice[name]}`) ui[name].value = choice[name];
  const [first, ...more] = catalogue.sampling,
    inForce = {
      ...Object.fromEntries(catalogue.sampling.map((p) => [p.name, p.default])),
      temperature: 0,
      ...choice.sampling,
    };
  const sampling = (part, params) =>
    data.draw(part, { params, values: { temperature: 0, ...choice.sampling }, inForce });
  sampling(ui.sampling, first ? [first] : []);
  sampling(ui.more, more);
  const runs = comparechoice.runs(choice);
  kit.write(ui.runs, `${runs} runs`);
  ui.measure.disabled = data.measuring;
  ui.measure.title = data.measuring ? "a comparison is being measured" : "";
  ui.stop.disabled = !data.measuring;
  ui.stop.title = data.measuring ? "" : "no comparison is being measured";
  const raced = Boolean(data.comparison?.lanes.some((each) => each.race));
  ui.race.disabled = data.measuring || !raced;
  ui.race.title = raced ? "" : "Press Measure first: the race replays measured runs.";
  kit.write(ui.note, data.note);
  ui.note.classList.toggle("is-empty", !data.note);
  kit.write(ui.command, comparechoice.command(choice, catalogue, roles));
}

function showLane(card, chosen, i, data) {
  const { catalogue } = data, method = catalogue.methods.find((each) => each.name === chosen.method);
  card.dataset.lane = i;
  controls.select(
    card._method,
    controls.options(catalogue.methods.filter((each) => each.name !== catalogue.baseline)),
    chosen.method,
  );
  card._method.setAttribute("aria-label", `Method of lane ${i + 1}`);
  const drafts = draftModels.usesDraftModel(method);
  card._drafterRow.hidden = !drafts;
  if (drafts)
    controls.select(
      card._drafter,
      [{ value: "", text: "the target's default drafter", disabled: false }, ...controls.options(draftModels.usable(catalogue, chosen.method))],
      chosen.drafter ?? "",
    );
  card._drafter.setAttribute("aria-label", `Drafter of lane ${i + 1}`);
  card._remove.setAttribute("aria-label", `Remove lane ${i + 1}`);
  const params = method?.params ?? [];
  card._params.parentElement.hidden = !params.length && !drafts;
  const changed = params.filter((p) => chosen.params[p.name] !== undefined && chosen.params[p.name] !== p.default);
  kit.write(
    card._said,
    [
      ...changed.map((p) => `${p.name.replaceAll("_", " ")} ${chosen.params[p.name]}`),
      ...(chosen.drafter ? [chosen.drafter] : []),
    ].join(" · ") || "defaults",
  );
  const promise = controls.promised(method, chosen.params);
  controls.badge(card._promise, promise);
  if (promise === "exact") kit.write(card._promise, "");
  data.draw(card._params, {
    params,
    values: chosen.params,
    barred: controls.unsound(method, chosen.params),
    inForce: { ...Object.fromEntries(params.map((p) => [p.name, p.default])), ...chosen.params },
  });
}

function lane(ui) {
  const card = h("div", { className: "wb-lanecard" });
  const change = (more) => {
    const lanes = ui.data.choice.lanes.map((each, i) =>
      i === Number(card.dataset.lane) ? { ...each, ...more } : each,
    );
    emit(card, "wb:choose", { lanes });
  };
  card._method = h("select", { onchange: () => change({ method: card._method.value, params: {}, drafter: null }) });
  card._drafter = h("select", { onchange: () => change({ drafter: card._drafter.value || null }) });
  card._drafterRow = h("div", { className: "wb-pick" }, h("label", {}, "Drafter"), card._drafter);
  card._remove = h(
    "button",
    {
      type: "button",
      className: "wb-tool",
      title: "Remove this lane",
      onclick: () =>
        emit(card, "wb:choose", { lanes: ui.data.choice.lanes.filter((_, i) => i !== Number(card.dataset.lane)) }),
    },
    "✕",
  );
  card._said = h("span");
  card._promise = h("small", { className: "wb-promise" });
  card._params = h("div", { className: "wb-form" });
  card.append(
    h("div", { className: "wb-lanehead" }, card._method, card._remove),
    card._promise,
    h(
      "details",
      { className: "wb-moresampling" },
      h("summary", {}, "Parameters ", h("small", {}, card._said)),
      card._drafterRow,
      card._params,
    ),
  );
  return card;
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), ui = {};
  const labelled = (name, words, control) => {
    control.id = `${uid}-${name}`;
    return [h("label", { htmlFor: control.id }, words), (ui[name] = control)];
  };
  const choose = (name) => (event) => emit(el, "wb:choose", { [name]: event.target.value });
  const number = (name) =>
    h("input", {
      type: "number",
      step: 1,
      onchange: (event) => emit(el, "wb:choose", { [name]: form.whole(ui.numbers[name], event.target.value) }),
    });
  const press = (button, className, words) =>
    (ui[button] = Object.assign(
      h("button", { type: "button", className, onclick: () => emit(el, "wb:press", { button }) }, words),
    ));
  const mac = /Mac|iP(hone|ad)/.test(navigator.platform ?? "");
  ui.lanes = h("div", { className: "wb-lanecards" });
  ui.add = h(
    "button",
    {
      type: "button",
      className: "wb-link",
      onclick: () => emit(el, "wb:choose", { lanes: [...ui.data.choice.lanes, next(ui.data)] }),
    },
    "+ add a lane",
  );
  ui.presets = h("div", { className: "wb-chips", onclick: (event) => {
    const name = event.target.dataset.preset, { presets } = ui.data.choice;
    if (name)
      emit(el, "wb:choose", {
        presets: presets.includes(name) ? presets.filter((n) => n !== name) : [...presets, name],
      });
  } });
  ui.presets.setAttribute("role", "group");
  ui.presets.setAttribute("aria-label", "Prompts");
  const text = labelled(
    "text",
    "Additional prompt of your own",
    h("textarea", { rows: 2, spellcheck: false, oninput: () => emitPrompts() }),
  );
  ui.textLabel = text[0];
  ui.chat = h("input", { type: "checkbox", checked: true, onchange: () => emitPrompts() });
  const emitPrompts = () => {
    const { value } = ui.text;
    emit(el, "wb:choose", { text: ui.data.choice.pictures ? value : roles.typed(value, ui.chat.checked) });
  };
  text.push(controls.message(ui.chat));
  ui.sets = promptsets.build(el, () => comparechoice.promptTexts(ui.data.choice, ui.data.catalogue));
  const target = labelled("target", "Target", h("select", { onchange: choose("target") }));
  const pair = [
    ["repeats", "Repeats"],
    ["max_new_tokens", "Max tokens"],
    ["seed", "Seed"],
  ].map(([name, words]) => h("div", {}, ...labelled(name, words, number(name))));
  ui.sampling = h("div", { className: "wb-form" });
  ui.more = h("div", { className: "wb-form" });
  ui.note = h("p", { className: "wb-note" });
  ui.note.setAttribute("role", "status");
  ui.command = h("code", { className: "wb-command" });
  press("measure", "wb-go", "Measure ").append((ui.runs = h("small")), h("kbd", {}, mac ? "⌘ ↵" : "Ctrl ↵"));
  el.append(
    h(
      "details",
      { className: "wb-settings", open: !kit.isNarrow() },
      h("summary", {}, "Lanes and prompts"),
      h("div", { className: "wb-pick" }, ...target),
      h(
        "div",
        { className: "wb-pick" },
        h("span", { className: "wb-side-label" }, "Lanes"),
        h(
          "div",
          { className: "wb-lanecard is-plain" },
          "Plain decoding ",
          h("small", {}, "always measured as the reference"),
        ),
        ui.lanes,
        ui.add,
      ),
      h(
        "div",
        { className: "wb-pick" },
        h("span", { className: "wb-side-label" }, "Prompts"),
        ui.presets,
        (ui.pictured = h("div", { className: "wb-pictured", hidden: true })),
        ...text,
        ui.sets.element,
      ),
      h("div", { className: "wb-pair is-three" }, ...pair),
      h(
        "div",
        { className: "wb-pick" },
        h("span", { className: "wb-side-label" }, "Sampling (same for all lanes)"),
        ui.sampling,
        h("details", { className: "wb-moresampling" }, h("summary", {}, "More sampling settings"), ui.more),
      ),
      h("details", { className: "wb-moresampling" }, h("summary", {}, "As a command line"), ui.command),
    ),
    h(
      "div",
      { className: "wb-buttons" },
      ui.measure,
      press("race", "", "Race"),
      press("stop", "", "Stop"),
      ui.note,
      h(
        "p",
        { className: "wb-estimate" },
        "Lanes run one at a time, prompt by prompt, alone on the device. The race replays the measured runs.",
      ),
    ),
  );
  return ui;
}

/** Return the first available method without a lane. */
function next({ catalogue, choice }) {
  const used = new Set(choice.lanes.map((each) => each.method));
  const usable = catalogue.methods.filter((each) => each.available !== false && each.name !== catalogue.baseline);
  return { method: (usable.find((each) => !used.has(each.name)) ?? usable[0]).name, params: {}, drafter: null };
}
