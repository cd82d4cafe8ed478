/** Finished charts of a comparison, by Plotly: what a token costs, and at which acceptance drafting pays. Each has its
 *  numbers as a table and one sentence that says the same. */

import * as comparetable from "./table.js";
import * as kit from "../shared/kit.js";
import * as plots from "../shared/plots.js";
import * as tables from "../shared/table.js";

const PHASES = [["draft", "--wb-draft"], ["verify", "--wb-verify"], ["overhead", "--wb-overhead"]];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"],
  MARKS = ["circle", "square", "diamond", "triangle-up", "x"];

/** Bars of what a token costs. Pure. @returns {{names: string[], parts: Record<string, (number|null)[]>, totals:
 *  (number|null)[]}} */
export function costBars(lanes) {
  const shown = lanes.filter((lane) => lane.figures.n);
  return {
    names: shown.map((lane) => lane.name),
    parts: Object.fromEntries(PHASES.map(([part]) => [part, shown.map((lane) => lane.figures.ms_per_token[part])])),
    totals: shown.map((lane) => lane.figures.ms_per_token.decode),
  };
}

/** The acceptance at which a curve gives a speed-up: where the measured point stands on it. Pure.
 *  @param {[number, number][]} curve  rising, acceptance and speed-up  @param {number} value  a speed-up
 *  @returns {number|null}  null: the curve does not come there */
export function reached(curve, value) {
  for (let i = 1; i < curve.length; i += 1) {
    const [[x0, y0], [x1, y1]] = [curve[i - 1], curve[i]];
    if (value >= y0 && value <= y1) return y1 > y0 ? x0 + ((value - y0) / (y1 - y0)) * (x1 - x0) : x0;
  }
  return null;
}

/** What the break-even chart says of a lane. Pure. */
export function paysWords(lane) {
  const { pays, figures } = lane;
  if (!pays) return `${lane.name}: nothing was drafted`;
  const limit = pays.always
    ? "pays at any acceptance"
    : pays.break_even === null
      ? "does not pay at any acceptance, at these costs"
      : `pays above ${pays.break_even.toFixed(2)} acceptance`;
  const measured = figures.speedup?.value ?? null,
    at = measured === null ? null : reached(pays.curve, measured);
  const said = measured === null ? "" : `; measured ${measured.toFixed(2)}×${at === null ? "" : `, as at ${at.toFixed(2)}`}`;
  return `${lane.name} ${limit}${said}`;
}

/** Bars: draft, verify and overhead of one token. */
export function costs(page) {
  const { parts, made } = page,
    bars = costBars(made.lanes),
    pin = page.pin?.figures.ms_per_token.decode ?? null;
  const against = (i) =>
    pin === null || page.pin.key === comparetable.key(made, made.lanes.filter((lane) => lane.figures.n)[i])
      ? ""
      : ` (${comparetable.signed(bars.totals[i] - pin, 1)})`;
  const labels = bars.totals.map((total, i) => (total === null ? "" : `${total.toFixed(1)}${against(i)}`));
  kit.write(parts.costsNote, page.pin ? `ms, mean; difference to ${page.pin.name}` : "ms, mean");
  const said = bars.names.map((name, i) => `${name} ${labels[i]} ms`).join(", ");
  table(
    page,
    "costs",
    `One token costs: ${said}.`,
    ["lane", "draft ms", "verify ms", "overhead ms", "all ms"],
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
    max = Math.max(...long), // phases that overlap add up to more than the whole
    ticks = bars.names.map((name) => wrapped(words(name))),
    tall = Math.max(36, 8 + 15 * Math.max(...ticks.map((lines) => lines.length))),
    places = order.map((_, k) => k); // a lane is its place: names may be alike once they are cut
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
    label: `One token costs: ${said}`,
  }));
}

/** Lines: the speed-up that the measured costs allow at each acceptance, and what was measured. */
export function pays(page) {
  const { parts, made } = page,
    lanes = made.lanes.filter((lane) => lane.pays),
    said = made.lanes
      .filter((lane) => !lane.plain && !lane.error)
      .map(paysWords)
      .join("; ");
  kit.write(parts.paysNote, "speed-up at the measured costs, by acceptance; marked: the measured speed-up");
  const delta = (lane) =>
    page.pin?.figures.speedup && lane.figures.speedup && page.pin.key !== comparetable.key(made, lane)
      ? comparetable.signed(lane.figures.speedup.value - page.pin.figures.speedup.value, 2)
      : "";
  table(
    page,
    "pays",
    `${said}.`,
    [
      "lane",
      "pays above",
      "measured as at",
      "tested and accepted",
      "measured",
      "difference",
      "draft ms a round",
      "verify ms a round",
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
  const colour = (i, css) => css(`--wb-lane-${(i % 4) + 1}`),
    top = Math.max(
      1.2,
      ...lanes.flatMap((lane) => [lane.figures.speedup?.value ?? 0, ...lane.pays.curve.map(([, y]) => y)]),
    );
  plots.plot(page, parts.pays, (css) => ({
    data: lanes.flatMap((lane, i) => [
      {
        type: "scatter",
        mode: "lines",
        name: lane.name,
        x: lane.pays.curve.map(([x]) => x),
        y: lane.pays.curve.map(([, y]) => y),
        line: { color: colour(i, css), width: 2, dash: DASHES[i % DASHES.length] },
        hovertemplate: `${words(lane.name)}: %{y:.2f}× at acceptance %{x:.2f}<extra></extra>`,
      },
      ...(lane.figures.speedup && reached(lane.pays.curve, lane.figures.speedup.value) !== null
        ? [
            {
              type: "scatter",
              mode: "markers",
              name: `${lane.name}, measured`,
              showlegend: false,
              x: [reached(lane.pays.curve, lane.figures.speedup.value)],
              y: [lane.figures.speedup.value],
              ...(lane.figures.speedup.low !== null && {
                error_y: {
                  type: "data",
                  symmetric: false,
                  array: [lane.figures.speedup.high - lane.figures.speedup.value],
                  arrayminus: [lane.figures.speedup.value - lane.figures.speedup.low],
                  color: colour(i, css),
                  thickness: 1.5,
                },
              }),
              marker: { color: colour(i, css), size: 11, symbol: MARKS[i % MARKS.length] },
              hovertemplate: `${words(lane.name)}, measured: %{y:.2f}× at acceptance %{x:.2f}<extra></extra>`,
            },
          ]
        : []),
    ]),
    layout: {
      height: 290,
      margin: { l: 44, r: 12, t: 34, b: 40 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: {
        range: [0, 1],
        title: { text: "acceptance of a drafted token, were all accepted alike", font: { size: 12 } },
        fixedrange: true,
        gridcolor: css("--wb-hair"),
      },
      yaxis: {
        range: [0, 1.08 * top],
        ticksuffix: "×",
        fixedrange: true,
        gridcolor: css("--wb-line"),
        zeroline: false,
      },
      shapes: [
        { type: "line", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: css("--wb-mute"), width: 1.5 } },
        ...lanes.flatMap((lane, i) =>
          lane.pays.break_even === null
            ? []
            : [
                {
                  type: "line",
                  x0: lane.pays.break_even,
                  x1: lane.pays.break_even,
                  y0: 0,
                  y1: 1,
                  line: { color: colour(i, css), width: 1.2, dash: "dot" },
                },
              ],
        ),
      ],
      annotations: lanes.flatMap((lane, i) =>
        lane.pays.break_even === null
          ? []
          : [
              {
                x: lane.pays.break_even,
                y: (0.05 + 0.085 * (i % 4)) * top,
                text: `pays above ${lane.pays.break_even.toFixed(2)}`,
                showarrow: false,
                xanchor: lane.pays.break_even > 0.7 ? "right" : "left",
                xshift: lane.pays.break_even > 0.7 ? -4 : 4,
                font: { size: 11.5, color: colour(i, css) },
                bgcolor: css("--wb-bg"),
                borderpad: 1,
              },
            ],
      ),
    },
    label: said,
  }));
}

function number(value) {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

/** Plotly reads some tags in its texts: names come from the registry and from users, and are only text. */
function words(text) {
  return `${text}`.replace(/[<>&]/g, " ");
}

/** A name in lines of about 24 characters, three at most; what differs stands at its end, and is kept. Pure.
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
