/** The Vision tab's own part of the side panel: the picture and where it comes from, painting over it, and the drafter
 *  beside. What to run and how is Live's (`controls.js`). Holds no state: it shows `data` and emits events.
 *
 *  Events: `wb:picture` {url, alt, name} · `wb:file` {file} · `wb:paste` · `wb:alt` {alt} · `wb:vision` {what, value} ·
 *  `wb:unpaint`.
 */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as visionpad from "./pad.js";

const TOOLS = [["", "look"], ["hide", "hide"], ["blur", "blur"], ["restore", "restore"]];
const SCOPES = [["both", "for both"], ["drafter", "only the drafter"]];
const SOURCES = [["gallery", "gallery"], ["upload", "upload"], ["paste", "paste"], ["draw", "draw"]];

/** What to do next with the brush. Pure. */
export function hint({ tool, scope, painted, active, features }) {
  if (tool === "restore") return "Drag over painted patches to bring them back.";
  if (tool && !painted) return `Now drag over an object in the first picture to ${tool} it.`;
  const when = active ? "From the next round on" : "Press Run:";
  if (tool && scope === "drafter" && features)
    return `${when} only the drafter's patches are without it. This drafter also reads the target's features, which know it still; with “Draft model with vision” its word is rejected.`;
  if (tool && scope === "drafter")
    return `${when} only the drafter is without it; the target sees it still and rejects what is guessed wrong.`;
  if (tool)
    return `${when} both are without it. With “only the drafter” the target still sees it, and rejects what is guessed wrong.`;
  return active
    ? "Pause, choose hide, drag over an object that is not named yet, then Step: see what becomes of its word."
    : "Try it in mid-run: press Step twice, choose hide, drag over an object that is not named yet, and Step on.";
}

/** Draw into `el`: the parts are put around those of the controls, which must have been drawn.
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
  ui.unpaint.title = data.painted ? "" : "nothing is painted over";
  kit.write(ui.hint, hint(data));
  if (document.activeElement !== ui.alt && ui.alt.value !== data.alt) ui.alt.value = data.alt;
  choose(ui.beside, [{ value: "", text: "none", disabled: false }, ...controls.options(data.besides)], data.beside);
  ui.besideModel.parentElement.hidden = !data.besideDrafter;
  choose(ui.besideModel, controls.options(data.drafters), data.besideDrafter);
  kit.write(ui.besideNote, data.besideNote);
  kit.write(ui.note, data.note);
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), tell = (name, detail) => kit.tell(el, name, detail);
  const chips = (label, entries, act) => {
    const group = h("div", { className: "wb-chips" }, ...entries.map(([value, word]) => {
      const button = h("button", { type: "button", onclick: () => act(value) }, word);
      button.dataset.value = word === "look" ? "look" : value;
      return button;
    }));
    kit.set(group, { role: "group", "aria-label": label });
    return group;
  };
  const file = h("input", { type: "file", accept: "image/png,image/jpeg,image/webp,image/gif", hidden: true });
  file.setAttribute("aria-label", "Picture file");
  file.addEventListener("change", () => {
    if (file.files[0]) tell("wb:file", { file: file.files[0] });
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
      h("h3", {}, "Draw a picture"),
      h("button", { type: "button", className: "wb-tool", onclick: () => pad.close() }, "close"),
    ),
    padBody,
  );
  visionpad.build(padBody);
  padBody.addEventListener("wb:sketch", () => pad.close());
  const sources = chips("Where the picture comes from", SOURCES, (source) => {
    if (source === "upload") file.click();
    else if (source === "paste") tell("wb:paste");
    else if (source === "draw") pad.showModal();
    else kit.tell(scenes, "wb:opengallery", (scenes.hidden = !scenes.hidden));
  });
  const alt = h("input", {
    type: "text",
    id: `${uid}-alt`,
    maxLength: 400,
    placeholder: "for those who cannot see the picture",
  });
  alt.addEventListener("input", () => tell("wb:alt", { alt: alt.value }));
  const tools = chips("Paint over the picture", TOOLS, (value) => tell("wb:vision", { what: "tool", value })),
    scopes = chips("Who sees what is painted", SCOPES, (value) => tell("wb:vision", { what: "scope", value }));
  const unpaint = h("button", { type: "button", className: "wb-tool", onclick: () => tell("wb:unpaint") }, "clean");
  const select = (what) => {
    const control = h("select", { id: `${uid}-${what}` });
    control.addEventListener("change", () => tell("wb:vision", { what, value: control.value }));
    control.dataset.what = what;
    return control;
  };
  const beside = select("beside"),
    besideModel = select("besideDrafter"),
    besideNote = h("small", { className: "wb-detail" }),
    note = h("small", { className: "wb-detail" }),
    hinted = h("small", { className: "wb-detail wb-hint" });
  note.setAttribute("aria-live", "polite");
  const box = h("div", { className: "wb-pick wb-picking" }, h("label", {}, "Picture"), sources, scenes, file, note,
    h("div", {}, h("label", { htmlFor: alt.id }, "Alternative text"), alt),
    h("div", {}, h("span", { className: "wb-labelled" }, "Paint over it ", unpaint), tools, scopes, hinted));
  const second = h(
    "div",
    { className: "wb-pick" },
    h("label", { htmlFor: beside.id }, "Second drafter, beside it"),
    beside,
    h("div", { className: "wb-under" }, h("label", { htmlFor: besideModel.id }, "Its draft model"), besideModel),
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
        { type: "button", title: scene.alt, onclick: () => kit.tell(ui.scenes, "wb:picture", scene) },
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
