/** Charts of a comparison: cost per token, and the acceptance rate above which drafting pays off. Each has its
 *  numbers as a table and a one-sentence summary. */

import * as comparetable from "./table.js";
import * as kit from "../shared/kit.js";
import * as chart from "../shared/linechart.js";
import * as plots from "../shared/plots.js";
import * as tables from "../shared/table.js";

const PHASES = [["draft", "--wb-draft"], ["verify", "--wb-verify"], ["overhead", "--wb-overhead"]];

/** Return the bars of the cost per token. Pure. @returns {{names: string[], parts: Record<string, (number|null)[]>,
 *  totals:
 *  (number|null)[]}} */
export function costBars(lanes) {
  const shown = lanes.filter((lane) => lane.figures.n);
  return {
    names: shown.map((lane) => lane.name),
    parts: Object.fromEntries(PHASES.map(([part]) => [part, shown.map((lane) => lane.figures.ms_per_token[part])])),
    totals: shown.map((lane) => lane.figures.ms_per_token.decode),
  };
}

/** Return the acceptance rate at which a curve reaches a speed-up: the place of the measured point on it. Pure.
 *  @param {[number, number][]} curve  rising, acceptance and speed-up  @param {number} value  a speed-up
 *  @returns {number|null}  null: the curve does not reach it */
export function reached(curve, value) {
  for (let i = 1; i < curve.length; i += 1) {
    const [[x0, y0], [x1, y1]] = [curve[i - 1], curve[i]];
    if (value >= y0 && value <= y1) return y1 > y0 ? x0 + ((value - y0) / (y1 - y0)) * (x1 - x0) : x0;
  }
  return null;
}

/** Describe a lane in the break-even chart. Pure. */
export function paysWords(lane) {
  const { pays, figures } = lane;
  if (!pays) return `${lane.name}: no drafts`;
  const limit = pays.always
    ? "pays off at any acceptance rate"
    : pays.break_even === null
      ? "does not pay off at any acceptance rate, at these costs"
      : `pays off above an acceptance rate of ${pays.break_even.toFixed(2)}`;
  const measured = figures.speedup?.value ?? null,
    at = measured === null ? null : reached(pays.curve, measured);
  const rateText = at === null ? "" : `, which corresponds to an acceptance rate of ${at.toFixed(2)}`;
  const measuredText = measured === null ? "" : `; measured ${measured.toFixed(2)}×${rateText}`;
  return `${lane.name} ${limit}${measuredText}`;
}

/** Draw the bars of draft, verify and overhead time per token. */
export function costs(page) {
  const { parts, comparison } = page,
    bars = costBars(comparison.lanes),
    pin = page.pin?.figures.ms_per_token.decode ?? null;
  const against = (i) =>
    pin === null || page.pin.key === comparetable.key(comparison, comparison.lanes.filter((lane) => lane.figures.n)[i])
      ? ""
      : ` (${comparetable.signed(bars.totals[i] - pin, 1)})`;
  const labels = bars.totals.map((total, i) => (total === null ? "" : `${total.toFixed(1)}${against(i)}`));
  kit.write(parts.costsNote, page.pin ? `ms, mean; difference from ${page.pin.name}` : "ms, mean");
  const totals = bars.names.map((name, i) => `${name} ${labels[i]} ms`).join(", ");
  table(
    page,
    "costs",
    `Time per token: ${totals}.`,
    ["lane", "draft ms", "verify ms", "overhead ms", "total ms"],
    bars.names.map((name, i) => [name, ...PHASES.map(([part]) => number(bars.parts[part][i])), labels[i]]),
  );
  const order = [...bars.names.keys()].reverse(),
    at = (list) => order.map((i) => list[i]),
    long = bars.totals.map((total, i) =>
      Math.max(
        total,
        PHASES.reduce((sum, [part]) => sum + (bars.parts[part][i] ?? 0), 0),
      ),
    ),
    max = Math.max(...long), // overlapping phases add up to more than the total
    ticks = bars.names.map((name) => wrapped(words(name))),
    tall = Math.max(36, 8 + 15 * Math.max(...ticks.map((lines) => lines.length))),
    places = order.map((_, k) => k); // index per lane: cut names may be equal
  plots.plot(page, parts.costs, (css) => ({
    data: PHASES.map(([part, colour]) => ({
      type: "bar",
      orientation: "h",
      name: part,
      y: places,
      x: at(bars.parts[part]),
      customdata: at(bars.names.map(words)),
      marker: { color: css(colour) },
      hovertemplate: `%{customdata}: ${part} %{x:.2f} ms<extra></extra>`,
    })),
    layout: {
      barmode: "stack",
      bargap: 0.45,
      height: 16 + tall * bars.names.length,
      showlegend: false,
      margin: { l: 4, r: 8, t: 4, b: 4 },
      xaxis: { visible: false, range: [0, (pin === null ? 1.3 : 1.6) * max], fixedrange: true },
      yaxis: {
        automargin: true,
        fixedrange: true,
        ticklen: 8,
        tickcolor: "transparent",
        tickvals: places,
        ticktext: at(ticks).map((lines) => lines.join("<br>")),
      },
      annotations: at([...bars.names.keys()]).map((i, k) => ({
        x: long[i],
        y: k,
        text: labels[i],
        showarrow: false,
        xanchor: "left",
        xshift: 6,
      })),
    },
    label: `Time per token: ${totals}`,
  }));
}

/** Draw the speed-up that the measured costs allow at each acceptance rate, and the measured speed-up. */
export function pays(page) {
  const { parts, comparison } = page,
    lanes = comparison.lanes.filter((lane) => lane.pays),
    sentences = comparison.lanes
      .filter((lane) => !lane.plain && !lane.error)
      .map(paysWords)
      .join("; ");
  kit.write(parts.paysNote, "speed-up at the measured costs, by acceptance rate; markers: measured speed-up");
  const delta = (lane) =>
    page.pin?.figures.speedup && lane.figures.speedup && page.pin.key !== comparetable.key(comparison, lane)
      ? comparetable.signed(lane.figures.speedup.value - page.pin.figures.speedup.value, 2)
      : "";
  table(
    page,
    "pays",
    `${sentences}.`,
    [
      "lane",
      "pays off above acceptance rate",
      "acceptance rate that would give the measured speed-up",
      "accepted / tested, counted per depth and round",
      "measured speed-up",
      "difference",
      "draft ms per round",
      "verify ms per round",
      "depth",
    ],
    lanes.map((lane) => [
      lane.name,
      lane.pays.always ? "0" : number(lane.pays.break_even),
      number(lane.figures.speedup && reached(lane.pays.curve, lane.figures.speedup.value)),
      number(lane.pays.acceptance),
      number(lane.figures.speedup?.value),
      delta(lane) || "–",
      number(lane.pays.draft_ms),
      number(lane.pays.verify_ms),
      lane.pays.depth.toFixed(1),
    ]),
  );
  const series = lanes.flatMap((lane, i) => {
    const { colour, mark, dash } = chart.look(i), { speedup } = lane.figures;
    const at = speedup ? reached(lane.pays.curve, speedup.value) : null;
    const curve = { name: lane.name, points: lane.pays.curve, colour, dash, end: lane.name };
    if (at === null) return [curve];
    const points = [[at, speedup.value, speedup.low, speedup.high]];
    return [curve, { name: `${lane.name}, measured`, points, colour, mark, wide: 0 }];
  });
  const values = series.flatMap((s) => s.points.flatMap(([, value, , high]) => [value, high ?? 0]));
  const verticals = lanes.flatMap(({ pays: { break_even: at } }, i) =>
    at === null ? [] : [{ at, text: `pays off above ${at.toFixed(2)}`, colour: chart.look(i).colour }],
  );
  chart.render(parts.pays, {
    series,
    x: {
      from: 0,
      to: 1,
      ticks: [0, 0.2, 0.4, 0.6, 0.8, 1].map((at) => ({ at, text: at.toFixed(1) })),
      title: "acceptance rate (the same for every drafted token)",
      words: (at) => `acceptance rate ${at.toFixed(2)}`,
    },
    y: chart.levels(chart.steps([1.2, ...values]), 0, (v) => `${v.toFixed(2)}×`),
    level: { value: 1, text: "" },
    verticals,
    summary: sentences,
    height: 250,
  });
}

function number(value) {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

/** Remove HTML characters: Plotly interprets some tags, and names come from the registry and from users. */
function words(text) {
  return `${text}`.replace(/[<>&]/g, " ");
}

/** Break a name into at most three lines of about 24 characters; the distinctive end is kept. Pure.
 *  @param {string} text  @returns {string[]} */
export function wrapped(text) {
  const lines = [""];
  for (const word of text.split(" ").map((each) => (each.length > 24 ? `${each.slice(0, 23)}…` : each))) {
    const last = lines.at(-1) ?? "", longer = last ? `${last} ${word}` : word;
    if (longer.length > 24 && last) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.length > 3 ? [lines[0], `… ${lines.at(-2)}`, lines.at(-1) ?? ""] : lines;
}

function table(page, name, summary, head, rows) {
  const el = page.parts[`${name}Table`];
  kit.write(el.firstChild, summary);
  if (!el.hidden) tables.render(el, { head, rows });
}
