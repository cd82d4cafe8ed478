/** Side panel of the bench. It holds no state: it shows `data` and emits `wb:set` {…changes}. */

import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import { DRAFTS } from "./acceptance.js";
import { RULES, sound } from "./rules.js";
import * as states from "./state.js";
import { WAYS } from "./sampling.js";

const MANY = 10000;

/** Draw into `el`. @param {any} el  @param {{state: states.State, unsound: string, note: string}} data */
export function render(el, data) {
  const { state, unsound, note } = data, ui = (el._ui ??= build(el));
  ui.state = state;
  pressed(ui.examples, (chip) => `example: ${chip.dataset.value}` === state.from);
  kit.write(ui.from, `p and q: ${state.from}`);
  pressed(ui.ways, (chip) => chip.dataset.value === state.way);
  kit.write(ui.wayWords, WAYS[state.way].says);
  pressed(ui.rules, (chip) => {
    const fits = sound(chip.dataset.value, state.way, state.k);
    chip.classList.toggle("is-off", !fits);
    chip.title = fits ? RULES[chip.dataset.value].says : "not exact for these drafts: choose the rule to see the error";
    chip.setAttribute("aria-label", `${RULES[chip.dataset.value].title}${fits ? "" : ", not exact for these drafts"}`);
    return chip.dataset.value === state.rule;
  });
  kit.write(ui.ruleWords, unsound || RULES[state.rule].says);
  ui.ruleWords.classList.toggle("is-unsound", Boolean(unsound));
  kit.write(ui.paper, RULES[state.rule].paper);
  for (const name of ["k", "tp", "tq", "tokens"]) {
    const value = name === "tokens" ? state.words.length : state[name], { input, output } = ui[name];
    if (Number(input.value) !== value) input.value = value;
    input.style.setProperty("--fill", `${(100 * (value - input.min)) / (input.max - input.min)}%`);
    kit.write(output, Number.isInteger(Number(input.step)) ? `${value}` : Number(value).toFixed(2));
  }
  kit.write(ui.note, note);
  ui.note.classList.toggle("is-empty", !note);
  if (document.activeElement !== ui.seed) ui.seed.value = `${state.seed}`;
}

function pressed(chips, is) {
  for (const chip of chips.children) chip.setAttribute("aria-pressed", String(is(chip)));
}

function build(el) {
  const uid = Math.random().toString(36).slice(2, 7), ui = {};
  const chips = (name, label, entries, choose) => {
    ui[name] = h("div", { className: "wb-chips" });
    kit.set(ui[name], { role: "group", "aria-label": label });
    for (const [value, text] of entries) {
      const chip = h("button", { type: "button", onclick: () => choose(value) }, text);
      chip.dataset.value = value;
      ui[name].append(chip);
    }
    return h("div", { className: "wb-pick" }, h("span", { className: "wb-side-label" }, label), ui[name]);
  };
  const slider = (name, label, min, max, step, choose) => {
    const input = h("input", { type: "range", min, max, step, id: `${uid}-${name}` }), output = h("output");
    input.addEventListener("input", () => choose(Number(input.value)));
    ui[name] = { input, output };
    return h("div", { className: "wb-turn" }, h("label", { htmlFor: input.id }, label), output, input);
  };
  const set = (change) => emit(el, "wb:set", change), anew = (change) => set({ ...change, rounds: 0 });
  const button = (text, className, act) => h("button", { type: "button", className, onclick: act }, text);
  ui.seed = h("input", { type: "number", min: 0, max: 2 ** 31, step: 1, id: `${uid}-seed` });
  ui.seed.addEventListener("change", () => {
    const value = Math.round(Number(ui.seed.value));
    anew({ seed: value >= 0 && value <= 2 ** 31 ? value : 1 });
  });
  const more = (n) => set({ rounds: Math.min(states.MOST_ROUNDS, ui.state.rounds + n) });
  el.append(
    h(
      "details",
      { className: "wb-settings", open: !kit.isNarrow() },
      h("summary", {}, "p, q, drafts and rule"),
      chips("examples", "Worked examples", states.EXAMPLES.map(({ name }) => [name, name]), (name) =>
        set(states.example(states.EXAMPLES.findIndex((each) => each.name === name)))),
      (ui.from = h("p", { className: "wb-detail" })),
      slider("tokens", "Tokens", ...states.TOKENS, 1, (n) => set(states.resized(ui.state, n))),
      slider("k", "Drafts k", 1, DRAFTS, 1, (k) => anew({ k })),
      chips("ways", "Sampling of drafts", Object.entries(WAYS).map(([name, { title }]) => [name, title]), (sampling) => anew({ way: sampling })),
      (ui.wayWords = h("p", { className: "wb-detail" })),
      chips("rules", "Rule", Object.entries(RULES).map(([name, { title }]) => [name, title]), (rule) => anew({ rule })),
      (ui.ruleWords = h("p", { className: "wb-detail" })),
      (ui.paper = h("small", { className: "wb-detail" })),
      slider("tp", "Temperature of p", states.COLDEST, states.HOTTEST, 0.05, (tp) => anew({ tp, from: "edited by hand", note: "" })),
      slider("tq", "Temperature of q", states.COLDEST, states.HOTTEST, 0.05, (tq) => anew({ tq, from: "edited by hand", note: "" })),
      h("div", { className: "wb-turn" }, h("label", { htmlFor: ui.seed.id }, "Sampling seed"), ui.seed),
    ),
    h(
      "div",
      { className: "wb-buttons" },
      button(`Sample ${MANY.toLocaleString("en")} rounds`, "wb-go", () => more(MANY)),
      button("Sample one round", "", () => more(1)),
      button("Reset", "", () => set({ rounds: 0 })),
      (ui.note = h("p", { className: "wb-note is-empty" })),
    ),
  );
  kit.set(ui.note, { role: "status" });
  return ui;
}
