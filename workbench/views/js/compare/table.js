/** Table of figures: one row per lane, speed-ups with confidence intervals (`speedup.js`), and differences from the
 *  pinned lane. */

import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import * as speedup from "../shared/speedup.js";

const WORDS = {
  speedup: [
    "speed-up",
    "tokens per second / tokens per second of plain decoding, per prompt and repeat; geometric mean of these ratios, each prompt with equal weight",
  ],
  interval: [
    "95 % interval",
    "Student's t interval over prompts; with one or two prompts, over their repeats, so that it holds for these prompts only",
  ],
  tau: [
    "τ",
    "tokens emitted (including bonus and corrected tokens) / verifications by the target; geometric mean, each prompt with equal weight",
  ],
  acceptance_rate: [
    "acceptance rate",
    "accepted drafted tokens / tested drafted tokens (without discarded ones); mean over prompts, each with equal weight",
  ],
  tokens_per_second: [
    "tok/s",
    "tokens emitted / seconds from the end of prefill to the last token; geometric mean, each prompt with equal weight, so that the ratio of two lanes is their speed-up",
  ],
};

/** Return the identity of a lane across comparisons: method, models, settings, date. Pure. */
export function key(comparison, lane) {
  const { target, max_new_tokens, seed, sampling } = comparison.settings;
  return JSON.stringify([lane.text, lane.drafted_by, target, max_new_tokens, seed, sampling, comparison.machine.date]);
}

/** Name the origin of a pinned figure. Pure. */
export function where(comparison) {
  return `${comparison.settings.target}, ${comparison.machine.date}`;
}

/** Format a difference with its sign. Pure. */
export function signed(value, digits, unit = "") {
  const text = Math.abs(value).toFixed(digits);
  return `${Number(text) === 0 ? "±" : value > 0 ? "+" : "−"}${text}${unit}`;
}

const percent = (v) => (v === null ? "–" : `${Math.round(100 * v)} %`);
const fixed = (v, digits) => (v === null || v === undefined ? "–" : v.toFixed(digits));

/** Return the interval, and below it the verdict and the sample size. Pure. @param {object} words  the module `speedup`
 *  */
function interval(found, words) {
  if (!found) return { text: "–", delta: "" };
  return found.low === null
    ? { text: words.basis(found), delta: "" }
    : { text: words.range(found), delta: `${words.verdict(found)}, ${words.basis(found)}` };
}

/** Return the cells of a lane, with differences from `pin` (figures of the reference, or null). Pure.
 *  @param {object} words  the module `speedup`  @returns {{name: string, text: string, delta: string}[]} */
export function cells(figures, pin, words) {
  const delta = (mine, theirs, digits, unit, scale = 1) =>
    pin && mine !== null && mine !== undefined && theirs !== null && theirs !== undefined
      ? signed(scale * (mine - theirs), digits, unit)
      : "";
  const s = figures.speedup, r = figures.tokens_per_second;
  return [
    { name: "speedup", text: fixed(s?.value, 2), delta: delta(s?.value, pin?.speedup?.value, 2) },
    { name: "interval", ...interval(s, words) },
    { name: "tau", text: fixed(figures.tau, 2), delta: delta(figures.tau, pin?.tau, 2) },
    {
      name: "acceptance_rate",
      text: percent(figures.acceptance_rate),
      delta: delta(figures.acceptance_rate, pin?.acceptance_rate, 0, " %", 100),
    },
    { name: "tokens_per_second", text: fixed(r?.value, 0), delta: delta(r?.value, pin?.tokens_per_second?.value, 0) },
  ];
}

/** Recompute the figures of an older comparison from its runs: schema 1 had medians, schema 2 pooled the tokens of all
 *  prompts for τ and acceptance rate. Pure. */
export function recompute(comparison, words) {
  const plain = comparison.lanes.find((lane) => lane.plain),
    byPrompt = ({ runs = [] }) =>
      [...new Set(runs.map((run) => run.prompt))].map((prompt) => runs.filter((run) => run.prompt === prompt)),
    geometric = (lane, of) =>
      words.estimate(byPrompt(lane).map((runs) => runs.filter((run) => run.token_ids.length).map(of)));
  const acceptance = (lane) => {
    const total = (runs, name) => runs.reduce((sum, run) => sum + (run.figures?.[name] ?? 0), 0),
      shares = byPrompt(lane)
        .filter((runs) => total(runs, "tested"))
        .map((runs) => total(runs, "accepted") / total(runs, "tested"));
    return shares.length ? shares.reduce((a, b) => a + b, 0) / shares.length : null;
  };
  const lanes = comparison.lanes.map((lane) => ({
    ...lane,
    figures: {
      ...lane.figures,
      tokens_per_second: geometric(lane, (run) => run.token_ids.length / (run.decode_seconds || run.seconds)),
      tau: lane.runs?.every((run) => run.rounds)
        ? (geometric(lane, (run) => run.token_ids.length / run.rounds)?.value ?? null)
        : lane.figures.tau,
      acceptance_rate: lane.runs?.length ? acceptance(lane) : lane.figures.acceptance_rate,
      speedup: plain && lane.runs ? words.ofRuns(lane.runs, plain.runs ?? []) : null,
    },
  }));
  return { ...comparison, schema: 3, lanes };
}

/** Warn if the processor was busy when the measurement started, since such figures scatter. Pure. */
export function busy({ load, cores }) {
  return cores && Number(load) > cores
    ? `the machine was busy (load ${load} on ${cores} cores), so the measurements vary more`
    : "";
}

/** Announce a step to a screen reader. Pure. @param {object} words  the module `speedup` */
export function announcement(step, words) {
  const lines = (step.comparison?.lanes ?? [])
    .filter((lane) => lane.figures.speedup && !lane.plain)
    .map((lane) => `${lane.name} ${words.sentence(lane.figures.speedup)}`);
  const failed = (step.comparison?.lanes ?? []).filter((lane) => lane.error).map((lane) => `${lane.name} failed`);
  const head = step.last
    ? step.comparison?.complete
      ? "Measured. "
      : "Stopped. "
    : `${step.done} of ${step.total} runs. `;
  return head + [...lines, ...failed].join("; ");
}

/** Draw the table; rows are kept and updated. */
export function render(page) {
  const { parts, comparison } = page;
  const table = parts.table.querySelector("table") ?? parts.table.appendChild(head(h));
  const body = table.tBodies[0];
  kit.resize(body, comparison.lanes.length, row);
  comparison.lanes.forEach((lane, i) => {
    const line = body.rows[i],
      pinned = page.pin?.key === key(comparison, lane),
      of = cells(lane.figures, pinned ? null : page.pin?.figures, speedup);
    line.dataset.lane = lane.name;
    line.classList.toggle("is-pinned", pinned);
    kit.write(line._name, lane.name);
    const note = lane.error
      ? ""
      : [lane.promise === "exact" ? "" : lane.promise, ...lane.warnings].filter(Boolean).join(" · ");
    kit.write(line._said, note);
    kit.write(line._error, lane.error ? `left out: ${lane.error}` : "");
    of.forEach((cell, k) => {
      const td = line.cells[k + 1];
      kit.write(td.firstChild, lane.plain && cell.name === "interval" ? "reference" : cell.text);
      kit.write(td.lastChild, lane.plain && cell.name === "interval" ? "" : cell.delta);
    });
    line._pin.setAttribute("aria-pressed", String(pinned));
    line._pin.setAttribute(
      "aria-label",
      pinned
        ? `${lane.name} is the reference: remove it`
        : `Make ${lane.name} the reference: all metrics then show the difference from it`,
    );
    line._pin.disabled = !lane.figures.n;
    line._live.setAttribute("aria-label", `Open the run of ${lane.name} in the Live view`);
    line._live.disabled = !page.job || !lane.race?.[page.prompt];
    line._live.title = page.job ? "Open this lane's run in the Live view" : "the trace of this run is no longer stored: measure again";
  });
  const n = Math.max(...comparison.lanes.map((lane) => lane.figures.speedup?.n ?? 0)),
    { repeats } = comparison.settings,
    prompts = comparison.prompts.length;
  const scatter = busy(comparison.machine);
  kit.write(
    parts.tableNote,
    `${scatter && `${scatter} · `}geometric means, ${comparison.complete ? `n = ${repeats} × ${prompts} prompt${prompts > 1 ? "s" : ""}` : `n = ${n} of ${repeats * prompts} so far`}${page.pin ? ` · differences from ${page.pin.name}${comparison.lanes.some((lane) => key(comparison, lane) === page.pin.key) ? "" : ` (${page.pin.from})`}` : ""}`,
  );
}

function head(h) {
  const titles = Object.values(WORDS).map(([title, formula]) =>
    h("th", { className: "wb-n", title: formula, scope: "col" }, title),
  );
  const table = h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, "lane"),
        ...titles,
        h("th", {}, h("span", { className: "wb-unseen" }, "Reference and run")),
      ),
    ),
    h("tbody"),
  );
  return table;
}

function row() {
  const line = h("tr");
  line._name = h("span");
  line._said = h("small");
  line._error = h("small", { className: "wb-failed" });
  line._pin = h(
    "button",
    {
      type: "button",
      className: "wb-tool",
      title: "Make this lane the reference",
      onclick: () => emit(line, "wb:press", { button: "pin", lane: line.dataset.lane }),
    },
    "pin",
  );
  line._live = h(
    "button",
    {
      type: "button",
      className: "wb-tool",
      onclick: () => emit(line, "wb:press", { button: "live", lane: line.dataset.lane }),
    },
    "run ↗",
  );
  line.append(
    h("th", { scope: "row" }, line._name, line._said, line._error),
    ...Object.keys(WORDS).map((name) =>
      h("td", { className: `wb-n is-${name}` }, h("span"), h("small", { className: "wb-delta" })),
    ),
    h("td", { className: "wb-n" }, line._pin, " ", line._live),
  );
  return line;
}
