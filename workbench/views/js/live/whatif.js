/** The "Explain this speed" dialog: where the run's time went, and the speed that other drafts would give. The figures
 *  come from `workbench.trace.whatif` through the host; nothing is decoded again. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as plots from "../shared/plots.js";
import * as repeats from "./repeats.js";
import * as store from "../shared/store.js";
import * as tables from "../shared/table.js";
import * as traces from "./traces.js";

const PARTS = [
    ["draft", "--wb-draft"],
    ["verify", "--wb-verify"],
    ["accept", "--wb-corrected"],
    ["other", "--wb-overhead"],
  ],
  NAMES = { draft: "draft", verify: "verify", accept: "overhead: verification rule", other: "overhead: other" };
const RANKS = [
  ["rank 1", 1, 1, "--wb-accepted"],
  ["rank 2", 2, 2, "--wb-corrected"],
  ["rank 3 or later", 3, Infinity, "--wb-bonus"],
];
const LOST = [
  ["not among the recorded ranks", "beyond", "--wb-rejected"],
  ["ranking not recorded", "unknown", "--wb-pending"],
];
const two = (v) => (v === null || v === undefined ? "–" : v.toFixed(2)), share = (v) => `${Math.round(100 * v)} %`;

/** Return the bars of the time budget: one round, and the plain steps that emit the same number of tokens. Pure.
 *  @returns {{names: string[], parts: Record<string, number[]>, totals: number[]}} milliseconds */
export function budgetBars(b) {
  const names = ["one round"], parts = Object.fromEntries(PARTS.map(([name]) => [name, [1e3 * b[`${name}_s`]]]));
  if (b.plain_s !== null) {
    names.push(`${b.tau.toFixed(2)} steps of plain decoding`);
    const verify = 1e3 * b.tau * b.plain_verify_s,
      plain = { draft: 0, verify, accept: 0, other: 1e3 * b.tau * b.plain_s - verify };
    for (const [name] of PARTS) parts[name].push(plain[name]);
  }
  return { names, parts, totals: names.map((_, i) => PARTS.reduce((sum, [name]) => sum + parts[name][i], 0)) };
}

/** Count, per depth, the tests that a sibling of each rank would have passed. Pure. @returns {{name: any, colour: any,
 *  counts: number[]}[]} */
export function rankBars(rescues) {
  const of = (entry, from, to) =>
    Object.entries(entry.ranks).reduce((sum, [rank, n]) => sum + (rank >= from && rank <= to ? n : 0), 0);
  return [
    ...RANKS.map(([name, from, to, colour]) => ({ name, colour, counts: rescues.map((entry) => of(entry, from, to)) })),
    ...LOST.map(([name, key, colour]) => ({ name, colour, counts: rescues.map((entry) => entry[key]) })),
  ].filter((bar) => bar.counts.some(Boolean));
}

/** State the effect of the tree's width in a sentence. Pure. */
export function widthWords(widths, rescues) {
  if (!widths.length) return "No drafts in this run.";
  const saved = rescues.reduce((sum, entry) => sum + (entry.ranks[2] ?? 0), 0),
    tests = rescues.reduce((sum, entry) => sum + entry.tested, 0),
    unknown = rescues.reduce((sum, entry) => sum + entry.unknown, 0);
  const taus = widths.map((w) => `${w.tau.toFixed(2)} at width ${w.width}`).join(", ");
  const unranked = unknown === 1 ? "One test without a recorded ranking counts" : `${unknown} tests without a recorded ranking count`;
  const lost = unknown ? ` ${unranked} as failed.` : "";
  return `The draft of rank 2 was the target's token in ${saved} of ${tests} tests. Estimated τ of a tree, from the acceptance rate at each depth: ${taus}.${lost}`;
}

/** Return the measured error of predictions, each with its key and a name, as sentences to append. Pure.
 *  @param {{errors?: Record<string, string>}} found
 *  @param {...[string, string]} named */
export function errorWords(found, ...named) {
  return named
    .filter(([key]) => found.errors?.[key])
    .map(([key, name]) => ` ${name[0].toUpperCase()}${name.slice(1)}: ${found.errors?.[key]}`)
    .join("");
}

/** Open the dialog. */
export async function open(page) {
  const state = (page.whatif ??= build(page));
  if (!state.dialog.open) state.dialog.showModal();
  const run = page.run && store.visible(page.run).length ? store.toTrace(page.run) : null;
  kit.write(state.status, run ? "Computing …" : "No run yet. Start one, or open a trace.");
  state.body.hidden = true;
  if (!run) return;
  const plain = page.view?.plainRounds ? [store.toTrace(page.plain)] : [];
  const answer = await page.host
    .call("whatif", {
      trace: run,
      others: [...plain, ...state.others],
      pairs: repeats.ratiosOf(page.pairs, page.run),
    })
    .catch(() => ({ error: { message: "The app did not answer.", remedy: "Check that the app is still running." } }));
  if (answer.error) return void kit.write(state.status, `${answer.error.message} ${answer.error.remedy ?? ""}`);
  kit.write(state.status, "");
  state.body.hidden = false;
  state.found = answer;
  draw(state);
}

function build(page) {
  const parts = {};
  const dialog = h("dialog", { className: "wb-keys wb-whatif" }),
    close = h("button", { type: "button", className: "wb-go" }, "Close");
  const file = h("input", { type: "file", accept: ".json,.jsonl,application/json", hidden: true }),
    add = h("button", { type: "button", className: "wb-tool" }, "Compare with another run …");
  file.setAttribute("aria-label", "Trace file of another run");
  const status = h("p", { className: "wb-summary" }),
    words = h("ul", { className: "wb-whywords" }),
    definitions = h("div", { className: "wb-table wb-whytable", tabIndex: 0 });
  definitions.setAttribute("role", "region");
  definitions.setAttribute("aria-label", "Definitions of acceptance");
  const chart = (...args) => panel.chart(parts, ...args);
  const combined = h("p", { className: "wb-summary" }),
    theory = h("p", { className: "wb-summary" }),
    widths = h("p", { className: "wb-summary" }),
    cut = h("p", { className: "wb-summary" });
  const body = h(
    "div",
    { className: "wb-whybody", hidden: true },
    words,
    h(
      "div",
      { className: "wb-whytwo" },
      chart(
        "budget",
        "Time of one round",
        panel.legend(PARTS.map(([name]) => [`wb-why-${name}`, NAMES[name]])),
        "wb-plot",
      ),
      chart("steps", "Speed-up by the formula, then with measured τ, verification time and overhead", null, "wb-plot"),
    ),
    h(
      "div",
      { className: "wb-whytwo" },
      chart("lengths", "Other draft lengths", null, "wb-plot"),
      chart("ranks", "Rank of the target's token among the drafts", null, "wb-plot"),
    ),
    cut,
    widths,
    combined,
    theory,
    h("h3", {}, "Definitions of acceptance rate and accepted length, for this run"),
    definitions,
  );
  dialog.append(
    h("h3", {}, "Explanation of this speed"),
    status,
    body,
    h("div", { className: "wb-buttons" }, add, close),
    file,
  );
  dialog.setAttribute("aria-label", "Explanation of this speed");
  page.el.append(dialog);
  const state = {
    page,
    dialog,
    parts,
    status,
    body,
    words,
    definitions,
    combined,
    theory,
    widths,
    cut,
    others: [],
    found: null,
  };
  close.addEventListener("click", () => dialog.close());
  add.addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    try {
      state.others = [traces.read(await file.files[0].text(), page.catalogue?.schema ?? Infinity).trace];
      await open(page);
    } catch (error) {
      kit.write(status, `${error.message} ${error.remedy ?? ""}`);
    } finally {
      file.value = "";
    }
  });
  dialog.addEventListener("wb:redraw", (event) => {
    event.stopPropagation();
    if (state.found) draw(state);
  });
  return state;
}

function draw(state) {
  const { found } = state;
  state.words.replaceChildren(...found.words.map((text) => h("li", {}, text)));
  drawBudget(state, found.budget);
  drawSteps(state, found.budget);
  drawLengths(state, found.lengths);
  drawRanks(state, found);
  kit.write(
    state.cut,
    (found.lengths?.cut_short
      ? `${found.lengths.cut_short} rounds accepted their whole draft. A longer draft might have given more tokens there; the predictions do not include them.${found.lengths.costs.fitted ? "" : " The target's cost per additional token could not be estimated: all its forward passes had the same size."}`
      : "") + (found.lengths ? errorWords(found, ["lengths", "τ of shorter drafts"], ["speeds", "speed of shorter drafts"], ["plain", "speed without drafts"]) : ""),
  );
  kit.write(state.widths, widthWords(found.widths, found.rescues) + (found.widths.length ? errorWords(found, ["width", "τ of a tree"]) : ""));
  kit.write(
    state.combined,
    found.combinations
      .map(
        (c) =>
          `${c.first} gives τ ${two(c.tau_first)} and ${c.second} ${two(c.tau_second)} on the ${c.tokens} tokens that both runs emitted. The better of both at every position, or both in one tree, gives τ ${two(c.tau)}: ${c.first} has the longer accepted path in ${share(c.share_first)} of the rounds, ${c.second} in ${share(c.share_second)}.`,
      )
      .join(" ") + (found.combinations.length ? errorWords(found, ["combination", "τ with the better of the two drafts in each round"]) : ""),
  );
  kit.write(state.theory, theoryWords(found.theory) + errorWords(found, ["by-position", "τ with an acceptance rate per position"], ["iid", "τ with one acceptance rate for all positions"], ["formula", "speed-up by the formula"]));
  tables.render(state.definitions, {
    head: ["used by", "name", "formula", "counts", "value", "note", "source"],
    rows: found.definitions.map((d) => [
      d.user,
      d.name,
      d.formula,
      `${d.part} / ${d.whole}`,
      d.values.length ? d.values.map(two).join(" ") : two(d.value),
      d.note,
      d.source.replace(/^\w+:\/\//, ""),
    ]),
  });
}

/** State τ by both formulas, the best draft length, and the bound for siblings. Pure. */
export function theoryWords(t) {
  if (t.rate === null) return "";
  const best = t.best
    ? t.best.depth
      ? ` At this run's mean costs, ${t.best.depth} draft levels would be fastest: ${two(t.best.speedup)} times plain decoding.`
      : " At this run's mean costs, plain decoding would be fastest; a single run is weak evidence."
    : "";
  const bound = t.transport
    .map(
      (b) =>
        `${b.siblings} sampled sibling${b.siblings > 1 ? "s" : ""}: a draft was accepted at ${share(b.accepted)} of ${b.places} positions; the maximum for any exact rule is ${share(b.bound)}`,
    )
    .join("; ");
  const transport = bound ? ` Optimal transport, ${bound}.` : "";
  return `Theory: measured τ is ${two(t.tau)}. Predicted from the acceptance rate at each position: ${two(t.tau_by_position)}; predicted if every draft were accepted with probability ${share(t.rate)}: ${two(t.tau_iid)}.${best}${transport}`;
}

const plain = (text) => `${text}`.replace(/[<>&]/g, " ");

function plot(state, name, summary, head, rows, make) {
  const { parts, found, page: { host } } = state, el = parts[`${name}Table`];
  kit.write(el.firstChild, summary);
  if (!el.hidden) tables.render(el, { head, rows });
  plots.plot({ el: state.dialog, host, plotly: found.plotly }, parts[name], (css) => ({
    label: summary,
    ...make(css),
  }));
}

const frame = (height, more = {}) => ({ height, margin: { l: 44, r: 10, t: 8, b: 36 }, showlegend: false, ...more });

function drawBudget(state, b) {
  const bars = budgetBars(b),
    barTexts = bars.names
      .map(
        (name, i) =>
          `${name}: ${PARTS.map(([part]) => `${NAMES[part]} ${bars.parts[part][i].toFixed(2)}`).join(", ")}, total ${bars.totals[i].toFixed(2)} ms`,
      )
      .join("; ");
  plot(
    state,
    "budget",
    `${barTexts}.`,
    ["", ...PARTS.map(([part]) => `${NAMES[part]} ms`), "total ms"],
    bars.names.map((name, i) => [
      name,
      ...PARTS.map(([part]) => bars.parts[part][i].toFixed(2)),
      bars.totals[i].toFixed(2),
    ]),
    (css) => ({
      data: PARTS.map(([part, colour]) => ({
        type: "bar",
        orientation: "h",
        name: NAMES[part],
        y: [...bars.names].reverse(),
        x: [...bars.parts[part]].reverse(),
        marker: { color: css(colour) },
        hovertemplate: `%{y}: ${NAMES[part]} %{x:.2f} ms<extra></extra>`,
      })),
      layout: frame(150, {
        barmode: "stack",
        bargap: 0.4,
        margin: { l: 4, r: 10, t: 4, b: 36 },
        xaxis: { title: { text: "ms", font: { size: 12 } }, fixedrange: true, gridcolor: css("--wb-hair") },
        yaxis: { automargin: true, fixedrange: true },
      }),
    }),
  );
}

function drawSteps(state, b) {
  state.parts.stepsCard.hidden = !b.steps.length;
  const steps = b.steps.map((s) => `${s.what}: ${two(s.speedup)}`).join("; ");
  plot(
    state,
    "steps",
    `Speed relative to plain decoding, with more measured effects at each step: ${steps}.`,
    ["measured effects", "speed relative to plain decoding"],
    b.steps.map((s) => [s.what, two(s.speedup)]),
    (css) => ({
      data: [
        {
          type: "bar",
          x: b.steps.map((_, i) => ["formula", "measured τ", "verification", "overhead"][i]),
          y: b.steps.map((s) => s.speedup),
          text: b.steps.map((s) => `${two(s.speedup)}×`),
          textposition: "outside",
          cliponaxis: false,
          customdata: b.steps.map((s) => plain(s.what)),
          marker: { color: b.steps.map((_, i) => css(i === b.steps.length - 1 ? "--wb-accepted" : "--wb-overhead")) },
          hovertemplate: "%{customdata}: %{y:.2f}×<extra></extra>",
        },
      ],
      layout: frame(150, {
        bargap: 0.45,
        margin: { l: 34, r: 10, t: 18, b: 24 },
        xaxis: { fixedrange: true },
        yaxis: { rangemode: "tozero", fixedrange: true, gridcolor: css("--wb-hair"), ticksuffix: "×" },
        shapes: [
          {
            type: "line",
            x0: -0.5,
            x1: b.steps.length - 0.5,
            y0: 1,
            y1: 1,
            line: { color: css("--wb-mute"), width: 1.2, dash: "dot" },
          },
        ],
      }),
    }),
  );
}

function drawLengths(state, lengths) {
  if (!lengths)
    return plot(state, "lengths", "No drafts in this run.", ["draft"], [], () => ({ data: [], layout: frame(190) }));
  const { fixed, oracle, recorded } = lengths,
    byLength = fixed.map((a) => `${a.depth}: ${a.tokens_per_second.toFixed(0)}`).join(", "),
    lengthText = `Tokens per second by maximum draft length: ${byLength}; if every draft had exactly the accepted length: ${oracle.tokens_per_second.toFixed(0)}; as recorded ${recorded.tokens_per_second.toFixed(0)}.`;
  const rows = [...fixed, oracle, recorded].map((a) => [
    a.name,
    two(a.tau),
    a.tokens_per_second.toFixed(1),
    two(a.relative),
  ]);
  plot(state, "lengths", lengthText, ["draft", "τ", "tokens/s, modelled", "× as recorded"], rows, (css) => ({
    data: [
      {
        type: "scatter",
        mode: "lines+markers",
        x: fixed.map((a) => a.depth),
        y: fixed.map((a) => a.tokens_per_second),
        line: { color: css("--wb-accepted"), width: 2 },
        marker: { size: 8 },
        customdata: fixed.map((a) => two(a.tau)),
        hovertemplate: "at most %{x}: %{y:.0f} tokens/s, τ %{customdata}<extra></extra>",
      },
    ],
    layout: frame(190, {
      margin: { l: 44, r: 10, t: 16, b: 38 },
      xaxis: {
        title: { text: "maximum draft length", font: { size: 12 } },
        fixedrange: true,
        dtick: fixed.length > 12 ? undefined : 1,
        gridcolor: css("--wb-hair"),
      },
      yaxis: {
        rangemode: "tozero",
        fixedrange: true,
        gridcolor: css("--wb-hair"),
        range: [0, 1.15 * Math.max(oracle.tokens_per_second, ...fixed.map((a) => a.tokens_per_second))],
      },
      shapes: [
        [oracle, "dash"],
        [recorded, "dot"],
      ].map(([a, dash]) => ({
        type: "line",
        xref: "paper",
        x0: 0,
        x1: 1,
        y0: a.tokens_per_second,
        y1: a.tokens_per_second,
        line: { color: css("--wb-mute"), width: 1.3, dash },
      })),
      annotations: [
        [oracle, "draft length equal to the accepted length", "bottom"],
        [recorded, "as recorded", "top"],
      ].map(([a, text, yanchor]) => ({
        xref: "paper",
        x: 0.01,
        xanchor: "left",
        y: a.tokens_per_second,
        yanchor,
        text,
        showarrow: false,
        font: { size: 11.5 },
      })),
    }),
  }));
}

function drawRanks(state, { rescues, widths }) {
  const bars = rankBars(rescues), depths = rescues.map((entry) => entry.depth);
  plot(
    state,
    "ranks",
    widthWords(widths, rescues),
    ["depth", "tested", ...bars.map((bar) => bar.name)],
    rescues.map((entry, i) => [entry.depth, entry.tested, ...bars.map((bar) => bar.counts[i])]),
    (css) => ({
      data: bars.map((bar, i) => ({
        type: "bar",
        name: bar.name,
        x: depths,
        y: bar.counts,
        marker: {
          color: css(bar.colour),
          pattern: {
            shape: ["", "/", "x", "\\", "."][i % 5],
            fillmode: "overlay",
            fgcolor: css("--wb-bg"),
            size: 6,
            solidity: 0.25,
          },
        },
        hovertemplate: `depth %{x}: ${bar.name} %{y}<extra></extra>`,
      })),
      layout: frame(190, {
        barmode: "stack",
        showlegend: true,
        legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal", font: { size: 11.5 } },
        margin: { l: 34, r: 10, t: 40, b: 38 },
        xaxis: { title: { text: "depth", font: { size: 12 } }, dtick: 1, fixedrange: true },
        yaxis: { fixedrange: true, gridcolor: css("--wb-hair") },
      }),
    }),
  );
}
