/** Chart of τ against the number of vision tokens that the drafter keeps: one line per compressor, with 95 % confidence
 *  intervals. */

import * as kit from "../shared/kit.js";
import * as chart from "../shared/linechart.js";

/** Least distance of two numbers of tokens on the axis, as a share of its length. */
const NEAR = 0.05;
const EMPTY =
  "Not measured yet. Run “workbench bench --suite vision” to measure every drafter and compressor on held-out scenes; it writes assets/boards/vision.json.";
const COLOURS = ["vision", "accepted", "corrected", "bonus", "rejected"];

/** Return the axes. Pure. The horizontal axis is a square root: most of the change is at few tokens.
 *  @param {{tokens: number, tau: number, low: number, high: number}[]} all */
export function axes(all) {
  const most = Math.max(1, ...all.map((p) => p.tokens)), low = Math.min(...all.map((p) => p.low)),
    high = Math.max(...all.map((p) => p.high));
  const step = high - low > 1.6 ? 1 : high - low > 0.8 ? 0.5 : 0.25, from = Math.floor(low / step) * step,
    to = Math.max(from + step, Math.ceil(high / step) * step);
  const counts = [...new Set(all.map((p) => Math.round(p.tokens)))].sort((a, b) => a - b);
  const place = (n) => Math.sqrt(n / most);
  const apart = counts.filter((n, i) => i === 0 || Math.round(most) === n || place(n) - place(counts[i - 1]) >= NEAR);
  return {
    x: {
      from: 0,
      to: most,
      place,
      ticks: apart.map((at) => ({ at, text: `${at}` })),
      title: "number of vision tokens of the drafter (square-root scale)",
      words: (n) => `${Math.round(n)} vision tokens`,
    },
    y: chart.levels(
      Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step),
      1,
      (v) => `τ ${v.toFixed(2)}`,
    ),
  };
}

/** Draw into `el`. @param {{board: {series: object[], points: object[], note: string}|null, chosen: {tokens:
 *  number}|null}} data  `chosen`: the displayed run  @returns {string} the chart in words */
export function render(el, data) {
  const lines = data.board?.series ?? [], single = data.board?.points ?? [];
  const all = [...lines.flatMap((s) => s.points), ...single];
  const text = (p) => `${Math.round(p.tokens)} tokens ${p.tau.toFixed(2)}`;
  el.classList.toggle("is-empty", !all.length);
  kit.set(el, { "data-empty": EMPTY });
  const words = [
    ...lines.map((s) => `${s.name}: ${s.points.map(text).join(", ")}`),
    ...single.map((p) => `${p.name}: ${text(p)}`),
  ].join("; ");
  const summary = `Mean accepted length by number of vision tokens kept. ${words || "Not measured yet"}`;
  const series = [
    ...lines.map(({ name, points }, i) => ({ name, points, ...chart.look(i), colour: COLOURS[i % COLOURS.length] })),
    ...single.map((p, i) => ({ name: p.name, points: [p], ...chart.look(i), colour: "mute", hollow: true, wide: 0 })),
  ].map((one) => ({ ...one, end: one.name, points: one.points.map((p) => [p.tokens, p.tau, p.low, p.high]) }));
  if (!all.length) return summary;
  const { x, y } = axes(all), cursor = data.chosen ? Math.min(data.chosen.tokens, x.to) : null;
  chart.render(el, { series, x, y, summary, cursor, height: 236 });
  return summary;
}
