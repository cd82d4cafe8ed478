/** Prompt sets in Compare: choose a saved set or the last prompts, remove single prompts, save the chosen ones. */

import { emit, h } from "../shared/kit.js";
import * as history from "../shared/prompthistory.js";

const LAST = "last prompts";

/** Return the sets to choose from: the last prompts, then saved sets. Pure.
 *  @param {import("../shared/prompthistory.js").Stored} stored */
export function offered({ last, sets }) {
  const used = last.length ? [{ name: LAST, prompts: last, isSaved: false }] : [];
  return [...used, ...sets.map((set) => ({ ...set, isSaved: true }))];
}

/** Build the part of the panel. Emits `wb:choose` {texts}.
 *  @param {any} el  of the panel  @param {() => string[]} current  prompts that "Save" keeps */
export function build(el, current) {
  const select = h("select", { ariaLabel: "Prompt set" }), chips = h("div", { className: "wb-chips wb-promptset" });
  const name = h("input", { placeholder: "name of the set", maxLength: 40, ariaLabel: "Name of the prompt set" });
  const save = h("button", { type: "button", className: "wb-link" }, "Save prompts as a set");
  const remove = h("button", { type: "button", className: "wb-link", hidden: true }, "Delete this set");
  const status = h("small", { role: "status" }), ui = { texts: [] };
  const fill = (chosen = "") => {
    const sets = offered(history.read());
    const options = sets.map((set) => h("option", { value: set.name }, `${set.name} (${set.prompts.length})`));
    select.replaceChildren(h("option", { value: "" }, sets.length ? "Prompt set …" : "No saved prompts yet"), ...options);
    select.value = chosen;
    remove.hidden = !sets.some((set) => set.isSaved && set.name === select.value);
  };
  select.addEventListener("focus", () => fill(select.value));
  select.addEventListener("change", () => {
    const set = offered(history.read()).find((each) => each.name === select.value);
    remove.hidden = !set?.isSaved;
    emit(el, "wb:choose", { texts: set?.prompts ?? [] });
  });
  save.addEventListener("click", () => {
    const title = name.value.trim(), prompts = current();
    if (!title || title === LAST || !prompts.length) {
      status.textContent = prompts.length ? " Type another name." : " Choose or type a prompt first.";
      return name.focus();
    }
    history.update(({ sets }) => ({ sets: history.withSet(sets, title, prompts) }));
    fill(title);
    name.value = "";
    status.textContent = ` Saved “${title}” in this browser.`;
  });
  remove.addEventListener("click", () => {
    history.update(({ sets }) => ({ sets: sets.filter((set) => set.name !== select.value) }));
    fill();
  });
  chips.addEventListener("click", (event) => {
    const at = /** @type {HTMLElement} */ (event.target).dataset.text;
    if (at !== undefined) emit(el, "wb:choose", { texts: ui.texts.filter((_, i) => i !== Number(at)) });
  });
  fill();
  const draw = (texts) => {
    if (`${texts}` === `${ui.texts}` && chips.childElementCount === texts.length) return;
    ui.texts = texts;
    chips.replaceChildren(
      ...texts.map((text, i) => {
        const chip = h("button", { type: "button", title: text, ariaLabel: `Remove ${history.short(text)}` }, `${history.short(text)} ×`);
        chip.dataset.text = `${i}`;
        return chip;
      }),
    );
  };
  return { element: h("div", { className: "wb-promptsets" }, select, remove, chips, h("div", {}, name, save), status), draw };
}
