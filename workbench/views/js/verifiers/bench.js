/** The verifier bench: p and q of one position, k drafts, a rule; acceptance, residual and output. Same in the app and
 *  in a notebook: `change` is called with every new state. */

import * as acceptance from "./acceptance.js";
import * as chart from "../shared/linechart.js";
import * as outputChart from "./outputchart.js";
import * as alerts from "../shared/alerts.js";
import * as controller from "../shared/controller.js";
import * as frame from "../shared/frame.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as pq from "../shared/pq.js";
import * as round from "./round.js";
import * as rounds from "./rounds.js";
import * as side from "./side.js";
import * as states from "./state.js";
import * as tables from "../shared/table.js";
import * as words from "./words.js";
import { distance, withEntry, overlap } from "./distributions.js";

/** Colour, mark and dash of each line of the chart. */
const LOOKS = {
  "bound/without": ["ink", "circle", "2 3", true],
  "bound/independent": ["ink", "plus", "1 4"],
  "greedy-draft/head": ["vision", "diamond", ""],
  "optimal-two/without": ["overhead", "up", "7 3"],
  "recursive/without": ["accepted", "circle", ""],
  "optimal-two/independent": ["overhead", "down", "1 4"],
  "k-seq/independent": ["corrected", "square", ""],
  "independent/independent": ["rejected", "cross", ""],
  "deterministic/fixed": ["bonus", "bar", "8 3 2 3"],
};
const APPROXIMATE = {
  "lenient/independent": ["rejected", "circle", "12 5", true],
  "typical/independent": ["vision", "square", "12 5", true],
};
const LENIENCES = Array.from({ length: 10 }, (_, i) => 1 - i / 10);

/** Build the bench in `el`.
 *  @param {any} el  @param {any} given  `state`; `problems` of its address; `host`; `change(state)`: called with every
 *    new state; `tools(build)`: buttons of its header; and what `controller.open` takes
 *  @returns {Promise<any>} the page: `state`, `set(change)`, `figures()` */
export function open(el, { state, problems = [], host = {}, change = () => {}, tools = () => [], ...view }) {
  const build = frame.builder(), stage = cards(build);
  const given = { host, current: "Verifiers", side: "p, q, drafts and rule", from: false, tools: tools(build) };
  frame.frame(el, build, given, stage);
  return controller.open(el, {
    ...view,
    parts: build.parts,
    host,
    title: "Verifiers",
    state: { state, problems, curves: null, probs: null, key: "" },
    draw,
    begin: (page) => {
      page.set = (changes) => {
        Object.assign(page.state, changes);
        Object.assign(page, { problems: [], note: "" });
        change(page.state);
        page.draw();
      };
      page.figures = () => report(page);
      draw(page); // at once: nothing has to arrive first
    },
    wire: (page, on) => {
      on("wb:k", ({ k }) => page.set({ k, rounds: 0 }));
      on("wb:set", page.set);
      on("wb:bar", ({ which, at, value }) => {
        const { p, q } = acceptance.tempered(page.state);
        page.set(states.withProbs(page.state, which, withEntry(which === "p" ? p : q, at, value)));
      });
    },
  });
}

function cards(build) {
  const { parts, part, card } = build, paragraph = (name) => build.paragraph(name, "wb-says");
  const legend = panel.legend([["wb-sw-p", "p target"], ["wb-sw-q", "q drafter"], ["wb-sw-common", "overlap"]]);
  const stage = part(
    "stage",
    "div",
    { className: "wb-stage" },
    build.alerts(),
    h(
      "div",
      { className: "wb-two is-bench" },
      card("pq", "p and q of one position", legend, part("pq", "div", { className: "wb-pq" }), paragraph("note")),
      card("round", "One round, draft by draft", null, part("round", "div", { className: "wb-testbox" })),
    ),
    build.chart("accept", "Acceptance rate of k drafts", null, "wb-curves"),
    h(
      "div",
      { className: "wb-two is-bench" },
      card("why", "Upper bound on acceptance, and greedy drafts", null, paragraph("bound"), paragraph("crossing"), paragraph("unsound")),
      card("drawn", "Sampled output", null, part("drawn", "div", { className: "wb-drawn" }), paragraph("drawnWords")),
    ),
    h(
      "div",
      { className: "wb-two is-even" },
      build.chart("chains", "Chain of k positions", null, "wb-curves"),
      build.chart("lenient", "Lenience: gain and cost", null, "wb-curves"),
    ),
  );
  parts.accept.after(paragraph("axis"), paragraph("prices"));
  parts.axis.textContent = "Click the axis, or use the slider, to choose k. Bold lines: the chosen way of sampling drafts.";
  parts.chains.after(paragraph("chainWords"));
  parts.lenient.after(paragraph("lenientWords"));
  kit.set(parts.round, { role: "region", "aria-label": "Acceptance tests of one round", tabindex: 0 });
  return stage;
}

/** Recompute the curves when p or q has changed, not for a new k or rule. */
function computed(page) {
  const probs = acceptance.tempered(page.state), key = JSON.stringify(probs);
  if (key !== page.key)
    Object.assign(page, {
      key,
      probs,
      curves: acceptance.curves(probs.p, probs.q),
      priced: acceptance.priced(probs.p, probs.q),
      chains: acceptance.chains(probs.p, probs.q),
      lenient: LENIENCES.map((lenience) => acceptance.lenient(probs.p, probs.q, lenience)),
    });
  return page;
}

/** Count the sampled rounds; cached between redraws. */
function counted(page) {
  const { k, way, rule, seed, rounds: n } = page.state, key = JSON.stringify([page.key, k, way, rule, seed, n]);
  if (page.counted?.key !== key) page.counted = { key, tally: rounds.tally(page.probs, page.state) };
  return page.counted.tally;
}

function draw(page) {
  const { parts, state, probs: { p, q } } = computed(page), shared = overlap(p, q);
  const tally = counted(page), unsound = words.unsound({ p, q }, state);
  side.render(parts.side, { state, unsound, note: page.note });
  alerts.render(parts.alerts, page.problems.length ? [alerts.ignored(page.problems)] : []);
  pq.render(parts.pq, { p, q, words: state.words });
  kit.write(parts.pqNote, `overlap ${shared.toFixed(3)} · TV ${distance(p, q).toFixed(3)}`);
  kit.write(parts.note, [state.note, states.caveat(state)].filter(Boolean).join(" ") || "Drag a bar, or focus it and use the arrow keys. All values are computed exactly; only “Sampled output” is random.");
  round.render(parts.round, { round: tally.last, words: state.words });
  kit.write(parts.roundNote, [`round ${Math.max(1, state.rounds)} of seed ${state.seed}`, tally.last.says].filter(Boolean).join(" · "));
  kit.write(parts.bound, words.boundWords({ p, q }, state));
  kit.write(parts.crossing, words.crossing({ p, q }, state));
  kit.write(parts.unsound, unsound);
  parts.unsound.classList.toggle("is-unsound", Boolean(unsound));
  const summary = words.sampledWords(p, tally, state.rounds);
  outputChart.render(parts.drawn, { p, counts: tally.counts, rounds: state.rounds, words: state.words, summary });
  kit.write(parts.drawnWords, summary);
  kit.write(parts.live, state.rounds ? summary : "");
  kit.write(parts.drawnNote, unsound ? "this combination is not exact" : "");
  curves(page);
  extras(page);
}

function table(parts, name, summary, head, rows) {
  const el = parts[`${name}Table`];
  kit.write(el.firstChild, summary);
  if (!el.hidden) tables.render(el, { head, rows });
}

/** Return a line over k = 1, 2, … with its name and its value at `k` at the end. */
function lineOf({ title, values, strong = true }, [colour, mark, dash = "", hollow = false], k, digits = 3) {
  const points = values.map((v, i) => [i + 1, v]), end = `${title} ${values[k - 1].toFixed(digits)}`;
  return { name: title, title, values, strong, points, colour, mark, dash, hollow, wide: strong ? 2.6 : 1.2, end };
}

const acceptanceWords = (v) => v.toFixed(3);

/** Draw a chart over k = 1, 2, …; a click selects k. */
function overK(el, k, lines, y, summary, height) {
  const n = lines[0].values.length, pick = (at) => kit.emit(el, "wb:k", { k: at });
  const ticks = Array.from({ length: n }, (_, i) => ({ at: i + 1, text: i ? `${i + 1}` : "k = 1" }));
  const x = { from: 1, to: n, ticks, words: (at) => `k = ${at}` };
  chart.render(el, { series: lines, x, y, cursor: k, column: true, pick, summary, height });
}

function curves({ parts, state, curves: found, priced }) {
  const isStrong = ({ way: sampling, rule }) =>
    sampling === state.way && (rule === null || rule === state.rule || state.rule === "recursive");
  const all = !acceptance.LINES.some(isStrong);
  const exact = acceptance.LINES.map((line) =>
    lineOf({ title: line.title, values: found[line.id], strong: all || isStrong(line) }, LOOKS[line.id], state.k),
  );
  const approximate = acceptance.APPROXIMATE.map(({ id }) =>
    lineOf(
      {
        title: `≈ ${id.split("/")[0]}, TV ${priced[id][state.k - 1].error.toFixed(3)}:`,
        values: priced[id].map((each) => each.accepted),
        strong: false,
      },
      APPROXIMATE[id],
      state.k,
    ),
  );
  const lines = [...exact, ...approximate];
  const least = Math.min(...lines.flatMap((line) => line.values)), low = Math.floor(10 * least - 0.01) / 10;
  const ticks = Array.from({ length: 11 }, (_, i) => i / 10).filter(
    (v) => v >= low - 1e-9 && (low > 0.5 || Math.round(10 * v) % 2 === 0),
  );
  const summary = `With ${state.k} drafts: ${lines.map((line) => `${line.title} ${line.values[state.k - 1].toFixed(3)}`).join(", ")}.`;
  kit.write(parts.acceptNote, `values at k = ${state.k}`);
  const y = { ...chart.levels(ticks, 1, acceptanceWords), from: Math.max(0, low) };
  overK(parts.accept, state.k, lines, y, summary, 300);
  table(parts, "accept", summary, ["rule, drafts", ...lines[0].values.map((_, i) => `k = ${i + 1}`)], [
    ...exact.map((line) => [line.title, ...line.values.map((v) => v.toFixed(4))]),
    ...acceptance.APPROXIMATE.flatMap(({ id, title }) => [
      [`≈ ${title}`, ...priced[id].map((each) => each.accepted.toFixed(4))],
      [`TV distance: ${title}`, ...priced[id].map((each) => each.error.toFixed(4))],
    ]),
  ]);
  kit.write(parts.prices, words.prices(found, priced, state));
}

function extras({ parts, state, chains, lenient }) {
  const { token, block } = chains, k = state.k, top = Math.max(1, Math.ceil(block.at(-1)));
  const ticks = Array.from({ length: top + 1 }, (_, i) => i).filter((v) => top < 6 || v % 2 === 0);
  const along = [
    lineOf({ title: "block", values: block }, ["accepted", "circle"], k),
    lineOf({ title: "token by token", values: token }, ["rejected", "cross"], k),
  ];
  const positions = k === 1 ? "one position" : `${k} positions`;
  const summary = `One draft per position, ${positions} with this p and q: on average ${token[k - 1].toFixed(3)} drafts accepted token by token, ${block[k - 1].toFixed(3)} by block verification${k === 1 ? ", the same test" : ""}.`;
  overK(parts.chains, k, along, chart.levels(ticks, 0, acceptanceWords), summary, 210);
  kit.write(parts.chainWords, summary);
  table(parts, "chains", summary, ["rule", ...token.map((_, i) => `k = ${i + 1}`)], along.map((line) => [line.title, ...line.values.map((v) => v.toFixed(4))]));
  const gain = lenient.map((each) => each.accepted - lenient[0].accepted), error = lenient.map((each) => each.error);
  const price = [
    lineOf({ title: "acceptance gained", values: gain }, ["accepted", "circle"], gain.length),
    lineOf({ title: "TV distance", values: error }, ["rejected", "cross"], error.length),
  ].map((line) => ({ ...line, points: line.values.map((v, i) => [1 - LENIENCES[i], v]), sparse: true }));
  const high = Math.max(0.1, Math.ceil(10 * Math.max(...gain, ...error)) / 10);
  const half = LENIENCES.findIndex((l) => Math.abs(l - 0.5) < 1e-9);
  const words = `One draft accepted with min(1, p / (λ·q)): λ = 0.5 raises the acceptance rate by ${gain[half].toFixed(3)}, at a total variation distance of ${error[half].toFixed(3)}. λ = 1 is exact.`;
  const ofLenience = LENIENCES.map((l, i) => ({ at: 1 - l, text: i % 3 ? "" : i ? l.toFixed(1) : "λ = 1" }));
  chart.render(parts.lenient, {
    series: price,
    x: { from: 0, to: 1 - LENIENCES.at(-1), ticks: ofLenience, words: (v) => `λ = ${(1 - v).toFixed(1)}` },
    y: chart.levels([0, high / 2, high], 1, (v) => v.toFixed(3)),
    summary: words,
    height: 210,
  });
  kit.write(parts.lenientWords, words);
  table(parts, "lenient", words, ["λ", ...LENIENCES.map((l) => l.toFixed(1))], price.map((line) => [line.title, ...line.values.map((v) => v.toFixed(4))]));
}

function report(page) {
  const { state, probs: { p, q }, curves: found, priced, chains } = computed(page), tally = counted(page);
  return states.report(state, {
    acceptance: found, approximate: priced, chains, overlap: overlap(p, q),
    bound: acceptance.transport(p, q, state.k, state.way),
    drawn: { rounds: state.rounds, counts: tally.counts, accepted: tally.accepted },
  });
}
