/** Wall-clock lanes of a notebook: several traces on one clock; the kernel sees the selection. */

import * as clock from "../live/clock.js";
import * as kit from "../shared/kit.js";
import * as panel from "../shared/panel.js";

/** Draw a widget's lanes into `root`, and synchronise its selection. */
export function mount(root, { model, on }) {
  const box = kit.h("div", { className: "wb-lanes", tabIndex: 0 });
  const key = panel.legend(["draft", "verify", "overhead"].map((name) => [`wb-phase-${name}`, name]));
  const note = kit.h("em");
  root.classList.add("is-embedded");
  root.append(
    kit.h("section", { className: "wb-card" }, kit.h("h3", {}, kit.h("span", {}, "Wall clock"), key, note), box),
  );
  const draw = () =>
    clock.render(box, { traces: model.get("_given").traces, selection: model.get("selection") ?? {}, note });
  const pick = (selection) => {
    model.set("selection", selection);
    model.save_changes();
    draw();
  };
  box.addEventListener("click", (event) => {
    const at = event.target.closest("[data-round]");
    if (at) pick({ trace: Number(at.dataset.trace), round: Number(at.dataset.round) });
  });
  box.addEventListener("keydown", (event) => {
    const wanted = step(model.get("selection") ?? {}, event.key, model.get("_given").traces);
    if (!wanted) return;
    event.preventDefault();
    pick(wanted);
  });
  for (const name of ["change:_given", "change:selection"]) on(name, draw);
  root.addEventListener("wb:redraw", draw);
  draw();
}

/** Return the selection after a key. Pure. @returns {object|null} null: the key has no meaning */
export function step({ trace = 0, round = 0 }, key, traces) {
  if (key === "Escape") return {};
  const [along, across] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key] ?? [
    0, 0,
  ];
  if (!along && !across) return null;
  const lane = Math.max(0, Math.min(traces.length - 1, trace + across));
  return { trace: lane, round: Math.max(0, Math.min(traces[lane].rounds.length - 1, round + along)) };
}
