/** The controls at hand on a narrow page, where the panel is far above the tokens: run, pause, step, stop, and the
 *  method of the coming rounds. They emit what the panel's own do; see `controls.js`. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";

const NAMES = ["run", "pause", "step", "stop"];

/** Build it; a stylesheet shows it where the page is narrow. */
export function build(parts) {
  const method = kit.h("select", {
    onchange: (event) => kit.tell(parts.bar, "wb:choose", { what: "method", value: event.target.value }),
  });
  method.setAttribute("aria-label", "Method of the coming rounds");
  const buttons = NAMES.map((name) => {
    const button = kit.h(
      "button",
      { type: "button", onclick: () => kit.tell(parts.bar, "wb:press", { button: button.dataset.near }) },
      name,
    );
    button.dataset.near = name;
    return button;
  });
  parts.bar = kit.h("div", { className: "wb-bar-near" }, method, ...buttons);
  Object.assign(parts.bar, { _method: method, _buttons: buttons });
  kit.set(parts.bar, { role: "group", "aria-label": "Run and method" });
  return parts.bar;
}

/** Its buttons, each with the reason why it cannot be pressed. Pure. @param {object} all  of `controls.buttons` */
export function offered(all) {
  return NAMES.map((name) => ({ name, ...all[name] }));
}

/** Show what the panel shows. @param {object} data  as `controls.render` takes it */
export function render(el, data) {
  controls.select(el._method, controls.options(data.catalogue.methods), data.choice.method);
  offered(controls.buttons(data.run)).forEach(({ label, off }, i) => {
    const button = el._buttons[i];
    kit.write(button, label);
    Object.assign(button, { disabled: Boolean(off), title: off });
  });
}

/** Whether tokens must be brought into sight: only a narrow page has them below its panel, and beside the panel what is
 *  above them (Vision's pictures) is looked at, too. Pure. @param {{top: number, bottom: number}} card  @param
 *  {{bottom: number}} side */
export function outOfSight(card, side, height) {
  return side.bottom <= card.top + 1 && !(card.top >= 0 && card.top < height / 2 && card.bottom > 0);
}

/** Bring the tokens into sight where they are not. */
export function toTokens({ ribbonCard, side }) {
  if (!outOfSight(ribbonCard.getBoundingClientRect(), side.getBoundingClientRect(), innerHeight)) return;
  ribbonCard.scrollIntoView({
    block: "start",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
}
