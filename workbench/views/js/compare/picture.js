/** Image part of the Compare panel: the image and the questions about it. Replaces the text prompts for targets that
 *  take images. Emits `wb:picture` {scene} and `wb:choose` {questions}. */

import * as comparechoice from "./choice.js";
import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";

/** Draw into `el`. @param {any} el  @param {{catalogue: object, choice: object, shown: {url: string, alt:
 *  string}|null}} data  shown: image of the Vision tab */
export function render(el, { catalogue, choice, shown }) {
  const ui = (el._ui ??= build(el)), { offered } = comparechoice.picture(choice, catalogue);
  const own =
    choice.scene === comparechoice.OWN
      ? choice.own
      : shown?.url && !catalogue.scenes.some((scene) => scene.url === shown.url)
        ? shown
        : null;
  const pictures = [
    ...catalogue.scenes.map((scene) => ({ name: scene.name, url: scene.url, words: scene.title })),
    ...(own ? [{ name: comparechoice.OWN, url: own.url, words: "Image of the Vision tab" }] : []),
  ];
  ui.choice = choice;
  kit.resize(ui.pictures, pictures.length, () =>
    h("button", { type: "button", className: "wb-thumb" }, h("img", { alt: "" })),
  );
  pictures.forEach(({ name, url, words }, i) => {
    const button = ui.pictures.children[i];
    button.dataset.scene = name;
    if (button.firstChild.src !== url) button.firstChild.src = url;
    button.title = words;
    kit.set(button, { "aria-label": words, "aria-pressed": String(choice.scene === name) });
  });
  kit.resize(ui.questions, offered.length, () => h("button", { type: "button" }));
  offered.forEach((question, i) => {
    kit.write(ui.questions.children[i], question);
    ui.questions.children[i].setAttribute("aria-pressed", String(choice.questions.includes(question)));
  });
}

function build(el) {
  const ui = {};
  ui.pictures = h("div", { className: "wb-thumbs", onclick: (event) => {
    const button = event.target.closest("[data-scene]");
    if (button) emit(el, "wb:picture", { scene: button.dataset.scene });
  } });
  ui.questions = h("div", { className: "wb-chips is-long", onclick: (event) => {
    const button = event.target.closest("button"), { questions } = ui.choice;
    if (button)
      emit(el, "wb:choose", {
        questions: questions.includes(button.textContent)
          ? questions.filter((q) => q !== button.textContent)
          : [...questions, button.textContent],
      });
  } });
  for (const [part, label] of [["pictures", "Image"], ["questions", "Questions about the image"]]) {
    ui[part].setAttribute("role", "group");
    ui[part].setAttribute("aria-label", label);
    el.append(h("span", { className: "wb-side-label" }, label), ui[part]);
  }
  return ui;
}
