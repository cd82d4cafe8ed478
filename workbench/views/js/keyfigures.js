/** The strip of key figures; each one opens its formula on hover and focus. */

const dash = "—";

/** What the strip says. Pure.
 *  @param {object} f  figures of the run (`figures.summary`)
 *  @param {object|null} plain  figures of the measured baseline, when it belongs to the same prompt and settings
 *  @param {Record<string, [string, string]>} definitions  name → [title, formula], from `workbench.trace.metrics`
 *  @returns {{id: string, value: string, unit: string, label: string, formula: string}[]} */
export function items(f, plain, definitions) {
  const formula = (name) => definitions[name]?.[1] ?? "";
  const fixed = (v, digits) => (v === null || v === undefined ? dash : v.toFixed(digits));
  const ms = (s) => ((1e3 * s) / f.rounds).toFixed(f.seconds / f.rounds >= 0.1 ? 0 : 1);
  const faster = plain?.tokens_per_second && f.tokens_per_second ? f.tokens_per_second / plain.tokens_per_second : null;
  return [
    { id: "speedup", value: faster === null ? dash : `${faster.toFixed(2)}×`, unit: "", formula: formula("speedup_vs_autoregressive"),
      label: faster === null ? "speed-up: no baseline yet" : faster < 1 ? "of plain: slower on this run" : "faster on this run, n = 1" },
    { id: "tau", value: fixed(f.tau, 2), unit: "", label: "τ tokens a pass", formula: formula("tau") },
    { id: "acceptance", value: f.acceptance_rate === null ? dash : `${Math.round(100 * f.acceptance_rate)} %`,
      unit: f.tested ? `${f.accepted}/${f.tested}` : "", label: "accepted of tested", formula: formula("acceptance_rate") },
    { id: "rate", value: fixed(f.tokens_per_second, 0), unit: "tok/s", formula: formula("tokens_per_second"),
      label: plain?.tokens_per_second ? `plain ${plain.tokens_per_second.toFixed(0)} tok/s` : "tokens per second" },
    { id: "passes", value: `${f.target_forwards || dash}`, unit: "passes", label: `for ${f.tokens} tokens`,
      formula: "forwards of the target after prefill / tokens emitted" },
    { id: "cost", value: !f.rounds ? dash : `${ms(f.draft_seconds)}+${ms(f.verify_seconds)}+${ms(Math.max(0, f.seconds - f.draft_seconds - f.verify_seconds))}`,
      unit: "ms", label: "draft + verify + host", formula: `mean wall time of a round over ${f.rounds} rounds; host: ${formula("overhead_share")}` },
  ];
}

/** Draw into `el`. @param {{items: ReturnType<typeof items>}} data */
export function render(el, data) {
  const state = (el._items ??= []);
  data.items.forEach((item, i) => {
    const cell = (state[i] ??= build(el, item.id, i));
    write(cell.value, item.value);
    write(cell.unit, item.unit);
    write(cell.label, item.label);
    write(cell.formula, item.formula);
  });
}

function build(el, id, i) {
  const make = (tag, className) => Object.assign(document.createElement(tag), { className });
  const button = make("button", "wb-figure"), figure = make("b", ""), value = make("span", "wb-value"), unit = make("small", "");
  const label = make("span", "wb-label"), formula = make("span", "wb-formula");
  button.type = "button";
  button.dataset.figure = id;
  formula.setAttribute("role", "tooltip");
  formula.id = `${(el._uid ??= Math.random().toString(36).slice(2, 8))}-${i}`;
  button.setAttribute("aria-describedby", formula.id);
  figure.append(value, " ", unit);
  button.append(figure, label, formula);
  el.append(button);
  return { value, unit, label, formula };
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export default { render };
