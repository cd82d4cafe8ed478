/** Card around a drawing: title, note and, for charts, a switch to a table of the numbers. */

import * as kit from "./kit.js";

/** Return a card. Adds `${name}Title` and `${name}Note` to `parts`. */
export function card(parts, name, title, extra, ...body) {
  parts[`${name}Title`] = kit.h("span", {}, title);
  parts[`${name}Note`] = kit.h("em");
  const element = kit.h(
    "section",
    { className: `wb-card wb-card-${name}` },
    kit.h("h3", {}, parts[`${name}Title`], extra ?? "", parts[`${name}Note`]),
    ...body,
  );
  element.setAttribute("aria-label", title);
  return (parts[`${name}Card`] = element);
}

/** Return a card with a chart in `parts[name]`, its table in `parts[name + "Table"]` and the switch between them. */
export function chart(parts, name, title, extra, className) {
  parts[name] = kit.h("div", { className });
  parts[`${name}Table`] = kit.h(
    "div",
    { className: "wb-table", tabIndex: 0, hidden: true },
    kit.h("p", { className: "wb-summary" }),
  );
  parts[`${name}Table`].setAttribute("role", "region");
  parts[`${name}Table`].setAttribute("aria-label", `${title}: table`);
  const element = card(parts, name, title, extra, parts[name], parts[`${name}Table`]);
  element.firstChild.append(toggle("table", `${title}: show as a table`, (on) => {
    parts[`${name}Table`].hidden = !on;
    parts[name].hidden = on;
    kit.emit(element, "wb:redraw");
  }));
  return element;
}

/** Return a toggle button. `turn(on)` is called when it is pressed. */
export function toggle(text, label, turn) {
  const button = kit.h("button", { type: "button", className: "wb-tool", title: label }, text);
  button.setAttribute("aria-label", label);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    turn(on);
  });
  return button;
}

/** Return a region that can be focused and scrolled. */
export function region(parts, name, className, attributes) {
  parts[name] = kit.h("div", { className, tabIndex: 0 });
  kit.set(parts[name], attributes);
  return parts[name];
}

/** Return a legend: a swatch and a label per entry. @param {[string, string][]} entries  class of the swatch, label */
export function legend(entries) {
  return kit.h(
    "span",
    { className: "wb-legend" },
    ...entries.map(([name, word]) => kit.h("span", {}, kit.h("i", { className: name }), word)),
  );
}
