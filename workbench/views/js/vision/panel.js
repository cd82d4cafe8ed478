/** Vision part of the side panel: the image and its source, painting over it, and the second drafter. Live's
 *  `controls.js` draws the rest. Holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:picture` {url, alt, name} · `wb:file` {file} · `wb:paste` · `wb:alt` {alt} · `wb:vision` {what, value} ·
 *  `wb:unpaint`.
 */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as visionpad from "./pad.js";

const TOOLS = [["", "view"], ["hide", "hide"], ["blur", "blur"], ["restore", "restore"]];
const SCOPES = [["both", "for both models"], ["drafter", "for the drafter only"]];
const SOURCES = [["gallery", "gallery"], ["upload", "upload"], ["paste", "paste"], ["draw", "draw"]];

/** Suggest the next step with the brush. Pure. */
export function hint({ tool, scope, painted, active, features }) {
  if (tool === "restore") return "Drag over painted patches to restore them.";
  if (tool && !painted) return `Drag over an object in the first image to ${tool} it.`;
  const when = active ? "From the next round on," : "Press Run:";
  if (tool && scope === "drafter" && features)
    return `${when} the object is hidden in the drafter's patches only. This drafter also uses the target's hidden states, which still contain it. With the method “Draft model with vision”, drafts that name it are rejected.`;
  if (tool && scope === "drafter")
    return `${when} the object is hidden from the drafter only; the target still gets it and rejects wrong drafts.`;
  if (tool)
    return `${when} the object is hidden from both models. With “for the drafter only” the target still gets it and rejects wrong drafts.`;
  return active
    ? "Pause, choose hide, drag over an object that the text has not named yet, then press Step."
    : "Try it during a run: press Step twice, choose hide, drag over an object that the text has not named yet, and continue with Step.";
}

/** Draw into `el`, around the elements of the controls, which must exist.
 *  @param {{scenes: object[], chosen: string, alt: string, tool: string, scope: string, painted: number, besides:
 *    object[], beside: string, besideNote: string, features: boolean, drafters: object[], besideDrafter: string, note:
 *    string, active: boolean}} data */
export function render(el, data) {
  const ui = (el._vision ??= build(el));
  gallery(ui, data);
  press(ui.tools, data.tool || "look");
  press(ui.scopes, data.scope);
  ui.scopes.hidden = !data.tool && !data.painted && !data.active;
  ui.unpaint.disabled = !data.painted;
  ui.unpaint.title = data.painted ? "" : "no patches are painted";
  kit.write(ui.hint, hint(data));
  if (document.activeElement !== ui.alt && ui.alt.value !== data.alt) ui.alt.value = data.alt;
  choose(ui.beside, [{ value: "", text: "none", disabled: false }, ...controls.options(data.besides)], data.beside);
  ui.besideModel.parentElement.hidden = !data.besideDrafter;
  choose(ui.besideModel, controls.options(data.drafters), data.besideDrafter);
  kit.write(ui.besideNote, data.besideNote);
  kit.write(ui.note, data.note);
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), emit = (name, detail) => kit.emit(el, name, detail);
  const chips = (label, entries, act) => {
    const group = h("div", { className: "wb-chips" }, ...entries.map(([value, word]) => {
      const button = h("button", { type: "button", onclick: () => act(value) }, word);
      button.dataset.value = word === "view" ? "look" : value;
      return button;
    }));
    kit.set(group, { role: "group", "aria-label": label });
    return group;
  };
  const file = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp,image/gif", hidden: true });
  file.setAttribute("aria-label", "Image file");
  file.addEventListener("change", () => {
    if (file.files[0]) emit("wb:file", { file: file.files[0] });
    file.value = "";
  });
  const scenes = h("div", { className: "wb-scenes" });
  kit.set(scenes, { role: "group", "aria-label": "Gallery of scenes" });
  const pad = h("dialog", { className: "wb-keys wb-paddialog" }), padBody = h("div");
  pad.setAttribute("aria-label", "Sketch pad");
  pad.append(
    h(
      "div",
      { className: "wb-padhead" },
      h("h3", {}, "Draw an image"),
      h("button", { type: "button", className: "wb-tool", onclick: () => pad.close() }, "close"),
    ),
    padBody,
  );
  visionpad.build(padBody);
  padBody.addEventListener("wb:sketch", () => pad.close());
  const sources = chips("Source of the image", SOURCES, (source) => {
    if (source === "upload") file.click();
    else if (source === "paste") emit("wb:paste");
    else if (source === "draw") pad.showModal();
    else kit.emit(scenes, "wb:opengallery", (scenes.hidden = !scenes.hidden));
  });
  const alt = h("input", {
    type: "text",
    id: `${uid}-alt`,
    maxLength: 400,
    placeholder: "description for screen readers",
  });
  alt.addEventListener("input", () => emit("wb:alt", { alt: alt.value }));
  const tools = chips("Paint over the image", TOOLS, (value) => emit("wb:vision", { what: "tool", value })),
    scopes = chips("Models that get the painted image", SCOPES, (value) => emit("wb:vision", { what: "scope", value }));
  const unpaint = h("button", { type: "button", className: "wb-tool", onclick: () => emit("wb:unpaint") }, "clean");
  const select = (what) => {
    const control = h("select", { id: `${uid}-${what}` });
    control.addEventListener("change", () => emit("wb:vision", { what, value: control.value }));
    control.dataset.what = what;
    return control;
  };
  const beside = select("beside"),
    besideModel = select("besideDrafter"),
    besideNote = h("small", { className: "wb-detail" }),
    note = h("small", { className: "wb-detail" }),
    hinted = h("small", { className: "wb-detail wb-hint" });
  note.setAttribute("aria-live", "polite");
  const box = h("div", { className: "wb-pick wb-picking" }, h("label", {}, "Image"), sources, scenes, file, note,
    h("div", {}, h("label", { htmlFor: alt.id }, "Alternative text"), alt),
    h("div", {}, h("span", { className: "wb-labelled" }, "Paint over the image ", unpaint), tools, scopes, hinted));
  const second = h(
    "div",
    { className: "wb-pick" },
    h("label", { htmlFor: beside.id }, "Second drafter"),
    beside,
    h("div", { className: "wb-seconddrafter" }, h("label", { htmlFor: besideModel.id }, "Second draft model"), besideModel),
    besideNote,
  );
  el.querySelector(".wb-ask").before(box);
  el.querySelector(".wb-form").before(second);
  el.querySelector(".wb-ask label").textContent = "Question";
  el.append(pad);
  return {
    box,
    scenes,
    sources,
    alt,
    tools,
    scopes,
    unpaint,
    beside,
    besideModel,
    besideNote,
    note,
    hint: hinted,
    pad,
  };
}

function gallery(ui, { scenes, chosen }) {
  const key = scenes.map((s) => s.name).join(" ");
  if (ui.scenes._key !== key) {
    ui.scenes._key = key;
    ui.scenes.replaceChildren(...scenes.map((scene) => {
      const button = h(
        "button",
        { type: "button", title: scene.alt, onclick: () => kit.emit(ui.scenes, "wb:picture", scene) },
        h("img", { src: scene.url, alt: scene.alt, width: 56, height: 56 }),
      );
      button.dataset.scene = scene.name;
      return button;
    }));
  }
  for (const button of ui.scenes.children) kit.set(button, { "aria-pressed": String(button.dataset.scene === chosen) });
}

function press(group, value) {
  for (const button of group.children) kit.set(button, { "aria-pressed": String(button.dataset.value === value) });
}

function choose(control, wanted, value) {
  const key = JSON.stringify(wanted);
  if (control._key !== key) {
    control._key = key;
    control.replaceChildren(...wanted.map((o) => h("option", { value: o.value, disabled: o.disabled }, o.text)));
  }
  if (control.value !== (value ?? "")) control.value = value ?? "";
}
