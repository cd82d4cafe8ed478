/** Toolbar of a narrow page, whose panel is far above the tokens: run, pause, step, stop, and the method of the next
 *  rounds. It emits the same events as the panel; see `controls.js`. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";

const NAMES = ["run", "pause", "step", "stop"];

/** Build the toolbar; the stylesheet shows it on narrow pages only. */
export function build(parts) {
  const method = kit.h("select", {
    onchange: (event) => kit.emit(parts.bar, "wb:choose", { what: "method", value: event.target.value }),
  });
  method.setAttribute("aria-label", "Method for the next rounds");
  const buttons = NAMES.map((name) => {
    const button = kit.h(
      "button",
      { type: "button", onclick: () => kit.emit(parts.bar, "wb:press", { button: button.dataset.near }) },
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

/** Return the toolbar's buttons, each with the reason why it is disabled. Pure. @param {object} all  of
 *  `controls.buttons` */
export function offered(all) {
  return NAMES.map((name) => ({ name, ...all[name] }));
}

/** Draw the panel's state into the toolbar. @param {object} data  as `controls.render` takes it */
export function render(el, data) {
  controls.select(el._method, controls.options(data.catalogue.methods), data.choice.method);
  offered(controls.buttons(data.run)).forEach(({ label, off }, i) => {
    const button = el._buttons[i];
    kit.write(button, label);
    Object.assign(button, { disabled: Boolean(off), title: off });
  });
}

/** Return whether the page must scroll to the tokens: only on a narrow page, where they are in one column with the
 *  panel. On a wide page they are beside it, and the part above them (the images in Vision) stays visible. Pure.
 *  @param {{top: number, bottom: number}} card  @param {boolean} narrow  @param {number} height  of the window */
export function outOfSight(card, narrow, height) {
  return narrow && !(card.top >= 0 && card.top < height / 2 && card.bottom > 0);
}

/** Scroll the tokens into view if they are not visible. */
export function toTokens({ ribbonCard }) {
  if (!outOfSight(ribbonCard.getBoundingClientRect(), kit.isNarrow(), innerHeight)) return;
  ribbonCard.scrollIntoView({
    block: "start",
    behavior: kit.prefersStill() ? "auto" : "smooth",
  });
}
