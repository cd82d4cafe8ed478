/** Strip of key figures; each one shows its formula on hover and focus. */

import * as kit from "../shared/kit.js";

const dash = "—";

/** Return the key figures as text. Pure.
 *  @param {object} f  figures of the run (`figures.summary`)
 *  @param {object|null} plain  figures of the measured baseline, when it belongs to the same prompt and settings
 *  @param {{value: string, unit: string, label: string, worked: string}} speed  the speed-up, of `speedup.figure`
 *  @param {Record<string, [string, string]>} definitions  name → [title, formula], from `workbench.trace.metrics`
 *  @param {{method: {rate: number}, plain: {rate: number}}|null} typical  the measured pair closest to the estimate
 *  @returns {{id: string, value: string, unit: string, label: string, formula: string, worked?: string}[]} */
export function items(f, plain, definitions, speed, typical = null) {
  const formula = (name) => definitions[name]?.[1] ?? "";
  const fixed = (v, digits) => (v === null || v === undefined ? dash : v.toFixed(digits));
  const overhead = f.overhead_seconds, waited = f.waited_seconds;
  const ms = (s) => ((1e3 * s) / f.rounds).toFixed(f.seconds / f.rounds >= 0.1 ? 0 : 1);
  const seconds = (s) => `${s.toFixed(s < 1 ? 3 : 2)} s`;
  return [
    { id: "speedup", ...notePaced(speed, f), formula: formula("speedup_vs_autoregressive") },
    {
      id: "tau",
      value: fixed(f.tau, 2),
      unit: f.rounds ? `${f.tokens}/${f.rounds}` : "",
      label: "τ, tokens per round",
      formula: formula("tau"),
      worked: f.rounds ? `${f.tokens} tokens / ${f.rounds} rounds` : "",
    },
    {
      id: "acceptance",
      value: f.acceptance_rate === null ? dash : `${Math.round(100 * f.acceptance_rate)} %`,
      unit: f.tested ? `${f.accepted}/${f.tested}` : "",
      label: `acceptance rate${approximationNote(f)}`,
      formula: formula("acceptance_rate"),
      worked: f.drafted
        ? `${f.accepted} accepted / ${f.tested} tested; of all ${f.drafted} drafted: ${Math.round((100 * f.accepted) / f.drafted)} %`
        : "",
    },
    {
      id: "rate",
      value: fixed(typical?.method.rate ?? f.tokens_per_second, 0),
      unit: "tok/s",
      formula: formula("tokens_per_second"),
      label: typical ? `plain ${typical.plain.rate.toFixed(0)} tok/s; pair of runs closest to the estimated speed-up` : `${plain?.tokens_per_second ? `plain ${plain.tokens_per_second.toFixed(0)} tok/s` : "tokens per second"}${f.delayed_rounds ? "; some rounds delayed" : ""}`,
      worked: f.rounds ? `${typical ? "this run: " : ""}${f.tokens} tokens / ${seconds(f.seconds)}${pacedWords(f)}` : "",
    },
    {
      id: "passes",
      value: `${f.target_forwards || dash}`,
      unit: f.target_forwards === 1 ? "pass" : "passes",
      label:
        f.tokens > f.target_forwards
          ? `of the target; ${f.tokens - f.target_forwards} passes saved`
          : `of the target for ${f.tokens} ${f.tokens === 1 ? "token" : "tokens"}`,
      formula: "target forward passes after the prefill / tokens emitted; plain decoding needs one pass per token",
      worked: "",
    },
    {
      id: "cost",
      value: !f.rounds ? dash : ms(f.seconds),
      unit: "ms per round",
      formula: `seconds from the end of prefill to the last token / rounds; overhead: ${formula("overhead_share")}`,
      label: f.rounds
        ? `${ms(f.draft_seconds)} draft + ${ms(f.verify_seconds)} verify + ${ms(overhead)} overhead${waited ? ` + ${ms(waited)} waiting for other runs` : ""}`
        : "draft + verify + overhead",
      worked: f.rounds
        ? `(${seconds(f.draft_seconds)} draft + ${seconds(f.verify_seconds)} verify + ${seconds(overhead)} overhead${waited ? ` + ${seconds(waited)} in forward passes for other runs` : ""}) / ${f.rounds} rounds`
        : "",
    },
  ];
}

/** Add a note to the speed-up of a run whose rounds were paced; the rounds of a baseline never are. Pure. */
function notePaced(speed, f) {
  return f.delayed_rounds && speed.value !== dash
    ? { ...speed, label: `${speed.label}; some rounds delayed`, worked: `${speed.worked}${pacedWords(f)}` }
    : speed;
}

function pacedWords({ delayed_rounds: n, rounds }) {
  return n
    ? `; ${n} of ${rounds} rounds started after a pause (Show at, Pause or Step) and took longer than at full speed`
    : "";
}

/** Return the label of an approximate rule: tokens gained over the exact rule, and distance from the target
 *  distribution; empty for other runs. Pure. */
function approximationNote({ acceptance_gain: gain, distribution_error: error, bounded, unpriced }) {
  if (typeof gain !== "number") return "";
  const much = Math.abs(gain).toFixed(2), sign = Number(much) === 0 ? "±" : gain < 0 ? "−" : "+";
  return `; ${sign}${much} tokens per round over the exact rule, ${distanceText({ error, bounded, unpriced })}`;
}

/** Describe the total variation distance per token; mark rounds with an upper bound only, and count rounds without a
 *  figure. Pure. */
function distanceText({ error, bounded, unpriced }) {
  if (typeof error !== "number") return "total variation distance not known";
  const rest = unpriced ? `; not known for ${unpriced} ${unpriced === 1 ? "round" : "rounds"}` : "";
  const much = bounded ? "at most " : rest ? "at least " : "";
  return `total variation distance ${much}${error.toFixed(3)} per token${rest}`;
}

/** Draw into `el`. A figure shows its formula while it is hovered or focused; a click or Enter keeps it open.
 *  @param {{items: ReturnType<typeof items>}} data */
export function render(el, data) {
  const state = (el._items ??= []);
  data.items.forEach((item, i) => {
    const cell = (state[i] ??= build(el, item.id, i));
    kit.write(cell.value, item.value);
    kit.write(cell.unit, item.unit);
    kit.write(cell.label, item.label);
    kit.write(cell.formula, item.formula);
    kit.write(cell.worked, item.worked);
  });
}

function build(el, id, i) {
  const parts = {
    value: kit.h("span", { className: "wb-value" }),
    unit: kit.h("small"),
    label: kit.h("span", { className: "wb-label" }),
    formula: kit.h("span"),
    worked: kit.h("small"),
  };
  const tip = kit.h(
    "span",
    { className: "wb-formula", id: `wb-formula-${(el._uid ??= Math.random().toString(36).slice(2, 8))}-${i}` },
    parts.formula,
    parts.worked,
  );
  const button = kit.h(
    "button",
    { type: "button", className: "wb-figure" },
    kit.h("b", {}, parts.value, " ", parts.unit),
    parts.label,
    tip,
  );
  tip.setAttribute("role", "tooltip");
  button.dataset.figure = id;
  button.setAttribute("aria-describedby", tip.id);
  button.setAttribute("aria-expanded", "false");
  const open = (on) => button.setAttribute("aria-expanded", String(on));
  button.addEventListener("click", () => open(button.getAttribute("aria-expanded") !== "true"));
  button.addEventListener("blur", () => open(false));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || button.getAttribute("aria-expanded") !== "true") return;
    open(false);
    event.stopPropagation();
  });
  el.append(button);
  return parts;
}
