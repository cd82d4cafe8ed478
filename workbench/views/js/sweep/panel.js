/** Side panel of the Sweep view. It holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:choose` {…changes} · `wb:param` {name, value, note} (from the forms) · `wb:press` {button}. */

import * as controls from "../shared/controls.js";
import * as form from "../shared/form.js";
import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import * as sweepchoice from "./choice.js";
import * as draftModels from "../shared/draftmodels.js";

const NONE = "none";

/** Draw into `el`. */
export function render(el, data) {
  const { catalogue, choice } = data, ui = (el._ui ??= build(el)), varied = choice.axes.map((axis) => axis.name);
  ui.data = data;
  const plan = sweepchoice.plan(choice, catalogue), all = sweepchoice.axes(choice, catalogue);
  controls.select(ui.target, controls.options(catalogue.targets), choice.target);
  controls.select(ui.method, controls.options(catalogue.methods), choice.method);
  controls.select(
    ui.drafter,
    [{ value: "", text: "the target's default drafter", disabled: false }, ...controls.options(draftModels.usable(catalogue, choice.method))],
    choice.drafter ?? "",
  );
  for (const [name, row] of [
    ["target", ui.targetRow],
    ["method", ui.methodRow],
    ["drafter", ui.drafterRow],
  ])
    row.hidden = varied.includes(name);
  ui.axes.forEach((row, i) => {
    const axis = choice.axes[i],
      offered = [...(i ? [{ value: NONE, text: "none" }] : []), ...all].map((o) => ({
        ...o,
        disabled: varied.includes(o.value) && o.value !== axis?.name,
      }));
    controls.select(row.name, offered, axis?.name ?? NONE);
    row.values.hidden = !axis;
    if (axis && document.activeElement !== row.values && row.values.value !== axis.text) row.values.value = axis.text;
    const problem = axis ? plan.axes[i].problem : "",
      known = axis && sweepchoice.spec(axis.name, choice.method, catalogue);
    kit.write(
      row.note,
      problem ||
        (axis
          ? `${plan.axes[i].values.length} value${plan.axes[i].values.length === 1 ? "" : "s"}${known?.doc ? ` · ${known.doc}` : ""}`
          : ""),
    );
    row.note.classList.toggle("is-wrong", Boolean(problem));
    row.values.setAttribute("aria-invalid", String(Boolean(problem)));
  });
  const params = (catalogue.methods.find((each) => each.name === choice.method)?.params ?? []).filter(
      (p) => !varied.includes(p.name),
    ),
    sampling = catalogue.sampling.filter((p) => !varied.includes(p.name));
  const values = { temperature: 0, ...choice.params },
    inForce = { ...Object.fromEntries([...params, ...sampling].map((p) => [p.name, p.default])), ...values };
  data.draw(ui.params, { params: varied.includes("method") ? [] : params, values, inForce });
  data.draw(ui.sampling, { params: sampling, values, inForce });
  ui.paramsRow.hidden = varied.includes("method") || !params.length;
  ui.groupsRow.hidden = varied.includes("prompts");
  while (ui.groups.childElementCount < catalogue.groups.length) ui.groups.append(h("button", { type: "button" }));
  catalogue.groups.forEach((name, i) => {
    const chip = ui.groups.children[i];
    chip.dataset.group = name;
    kit.write(chip, name);
    chip.setAttribute("aria-pressed", String(choice.groups.includes(name)));
  });
  form.limit(ui, (ui.numbers = catalogue.numbers));
  for (const name of Object.keys(catalogue.numbers)) {
    ui[name].parentElement.hidden = varied.includes(name);
    if (document.activeElement !== ui[name] && ui[name].value !== `${choice[name]}`) ui[name].value = choice[name];
  }
  kit.write(ui.cells, plan.problem ? "" : `${plan.cells} cells`);
  ui.measure.disabled = data.measuring || Boolean(plan.problem);
  ui.measure.title = data.measuring ? "a sweep is being measured" : plan.problem;
  ui.stop.disabled = !data.measuring;
  ui.stop.title = data.measuring ? "" : "no sweep is being measured";
  ui.anew.disabled = data.measuring || !data.kept;
  ui.anew.title = data.kept ? "" : "no cell of this sweep is measured yet";
  kit.write(ui.note, data.note);
  ui.note.classList.toggle("is-empty", !data.note);
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), ui = {};
  const labelled = (name, words, control) => {
    control.id = `${uid}-${name}`;
    return [h("label", { htmlFor: control.id }, words), (ui[name] = control)];
  };
  const choose = (name, empty = "") => (event) => emit(el, "wb:choose", { [name]: event.target.value || empty });
  const row = (name, words) =>
    (ui[`${name}Row`] = h(
      "div",
      { className: "wb-pick" },
      ...labelled(name, words, h("select", { onchange: choose(name, null) })),
    ));
  const number = (name, words) =>
    h(
      "div",
      {},
      ...labelled(
        name,
        words,
        h("input", {
          type: "number",
          step: 1,
          onchange: (event) => emit(el, "wb:choose", { [name]: form.whole(ui.numbers[name], event.target.value) }),
        }),
      ),
    );
  const press = (button, className, words) =>
    (ui[button] = h("button", { type: "button", className, onclick: () => emit(el, "wb:press", { button }) }, words));
  ui.axes = [0, 1].map((i) => axis(ui, el, i, uid));
  ui.groups = h("div", { className: "wb-chips", onclick: (event) => {
    const name = event.target.dataset.group, { groups } = ui.data.choice;
    if (name)
      emit(el, "wb:choose", {
        groups:
          groups.includes(name) && groups.length > 1
            ? groups.filter((g) => g !== name)
            : [...new Set([...groups, name])],
      });
  } });
  ui.groups.setAttribute("role", "group");
  ui.groups.setAttribute("aria-label", "Kinds of prompts");
  ui.groupsRow = h(
    "div",
    { className: "wb-pick" },
    h("span", { className: "wb-side-label" }, "Kinds of prompts"),
    ui.groups,
  );
  ui.params = h("div", { className: "wb-form" });
  ui.paramsRow = h(
    "details",
    { className: "wb-moresampling" },
    h("summary", {}, "Parameters in every cell"),
    ui.params,
  );
  ui.sampling = h("div", { className: "wb-form" });
  ui.note = h("p", { className: "wb-note" });
  ui.note.setAttribute("role", "status");
  const mac = /Mac|iP(hone|ad)/.test(navigator.platform ?? "");
  press("measure", "wb-go", "Measure ").append((ui.cells = h("small")), h("kbd", {}, mac ? "⌘ ↵" : "Ctrl ↵"));
  el.append(
    h(
      "details",
      { className: "wb-settings", open: !kit.isNarrow() },
      h("summary", {}, "Axes and settings"),
      ...ui.axes.map((each) => each.el),
      row("method", "Method"),
      row("target", "Target"),
      row("drafter", "Drafter"),
      ui.groupsRow,
      h("div", { className: "wb-pair" }, number("limit", "Prompts per kind"), number("repeats", "Repeats")),
      h("div", { className: "wb-pair" }, number("max_new_tokens", "Max tokens"), number("seed", "Seed")),
      ui.paramsRow,
      h("details", { className: "wb-moresampling" }, h("summary", {}, "Sampling in every cell"), ui.sampling),
    ),
    h(
      "div",
      { className: "wb-buttons" },
      ui.measure,
      press("anew", "", "Measure again"),
      press("stop", "", "Stop"),
      ui.note,
      h(
        "p",
        { className: "wb-estimate" },
        "Each cell is compared with plain decoding, one run at a time on the device. Finished cells are kept; a stopped sweep continues.",
      ),
    ),
  );
  return ui;
}

function axis(ui, el, i, uid) {
  const fields = {}, title = ["Rows", "Columns"][i];
  const change = (axes) => emit(el, "wb:choose", { axes });
  fields.name = h("select", { id: `${uid}-axis${i}`, onchange: () => {
    const { choice, catalogue } = ui.data, name = fields.name.value, otherAxes = choice.axes.filter((_, k) => k !== i);
    if (name === NONE) return change(otherAxes);
    const fresh = { name, text: sweepchoice.suggestion(sweepchoice.spec(name, choice.method, catalogue)) };
    change(i === 0 ? [fresh, ...choice.axes.slice(1)] : [choice.axes[0], fresh]);
  } });
  fields.values = h("input", {
    type: "text",
    spellcheck: false,
    autocomplete: "off",
    oninput: () =>
      change(ui.data.choice.axes.map((each, k) => (k === i ? { ...each, text: fields.values.value } : each))),
  });
  fields.values.setAttribute("aria-label", `${title}: values, separated by commas; 1..6 is a range`);
  fields.note = h("small", { className: "wb-detail" });
  fields.el = h(
    "div",
    { className: "wb-pick wb-axis" },
    h("label", { htmlFor: fields.name.id }, title),
    fields.name,
    fields.values,
    fields.note,
  );
  return fields;
}
