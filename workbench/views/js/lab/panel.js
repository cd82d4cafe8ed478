/** Side panel of the Lab: head, target, data, training time. It holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:choose` {head or target} · `wb:param` {name, value, note} (from the form) · `wb:press` {button}. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import * as words from "./words.js";

const FIRST = ["minutes", "answer_tokens", "loss"];

/** Draw into `el`. @param {any} el  @param {{offer: any, choice: any, busy: string|null, note: string, draw: Function}}
 *  data  `busy`: id of the run that trains */
export function render(el, data) {
  const { offer, choice, busy } = data, ui = (el._ui ??= build(el));
  controls.select(ui.head, offer.heads.map((o) => ({ value: o.name, text: o.title === o.name ? o.name : `${o.title} (${o.name})` })), choice.head);
  controls.select(ui.target, controls.options(offer.targets), choice.target);
  const values = Object.fromEntries(offer.params.map((p) => [p.name, choice.options[p.name] ?? p.default]));
  const some = (first) => offer.params.filter((p) => FIRST.includes(p.name) === first);
  for (const [part, params] of [[ui.params, some(true)], [ui.more, some(false)]])
    data.draw(part, { params, values, inForce: values });
  const changed = some(false).filter((p) => values[p.name] !== p.default).length;
  kit.write(ui.moreNote, changed ? `${changed} changed` : "");
  const target = offer.targets.find((t) => t.name === choice.target);
  kit.write(ui.estimate, words.estimate(values, { ...choice, rate: target?.rate ?? null }));
  const off = offer.barred || (busy ? "A run is training: wait until it ends, or stop it." : "");
  ui.train.disabled = Boolean(off);
  ui.train.title = off;
  kit.write(ui.why, offer.barred ? "" : off);
  kit.write(ui.note, data.note);
  ui.note.classList.toggle("is-empty", !data.note);
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), ui = {};
  const row = (name, title) => {
    ui[name] = h("select", {
      id: `${uid}-${name}`,
      onchange: (event) => emit(el, "wb:choose", { [name]: event.target.value }),
    });
    return h("div", { className: "wb-pick" }, h("label", { htmlFor: ui[name].id }, title), ui[name]);
  };
  const small = (name, className) => (ui[name] = h("p", { className }));
  ui.params = h("div", { className: "wb-form" });
  ui.more = h("div", { className: "wb-form" });
  ui.moreNote = h("small", {});
  ui.train = h(
    "button",
    { type: "button", className: "wb-go", onclick: () => emit(el, "wb:press", { button: "train" }) },
    "Train",
  );
  el.append(
    h(
      "details",
      { className: "wb-settings", open: !kit.isNarrow() },
      h("summary", {}, "Head and training time"),
      row("head", "Head"),
      row("target", "Target"),
      ui.params,
      h("details", { className: "wb-moresampling" }, h("summary", {}, "More data and training settings ", ui.moreNote), ui.more),
    ),
    h("div", { className: "wb-buttons" }, small("estimate", "wb-estimate"), ui.train, small("why", "wb-estimate"), small("note", "wb-note")),
  );
  ui.note.setAttribute("role", "status");
  return ui;
}
