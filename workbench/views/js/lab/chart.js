/** Chart of curves over training steps: lines differ in colour and mark, with hollow marks from the fifth on;
 *  teacher-forced ones are dashed. Names are at the line ends. Nothing is averaged. */

import * as kit from "../shared/kit.js";
import { ceiling, line, thin } from "../live/lines.js";

const BOX = { left: 42, top: 12, bottom: 22 }, LETTER = 6.4, ROW = 13, KEY = 16;
export const STYLES = 4;
const MARKS = ["M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", "M-3 -3h6v6h-6z", "M0 -4l4 4l-4 4l-4 -4z", "M0 -4l3.6 6.5h-7.2z"];

/** Whether a curve's marks are hollow: when its colour repeats, or it is dashed and has a solid counterpart. Pure.
 *  @param {{style: number, dashed?: boolean}} curve */
export const hollow = ({ style, dashed }) => Boolean(dashed) !== (Math.floor(style / STYLES) % 2 === 1);

/** Return the heights of names: each at the end of its line, moved only to avoid overlaps. Pure.
 *  @param {number[]} ends  wanted heights, in pixels  @param {number} low  @param {number} high  limits
 *  @returns {number[]} */
export function spread(ends, low, high) {
  const order = ends.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  order.forEach((one, k) => (one.y = Math.max(one.y, k ? order[k - 1].y + ROW : low)));
  for (let k = order.length - 1; k >= 0; k -= 1)
    order[k].y = Math.min(order[k].y, k < order.length - 1 ? order[k + 1].y - ROW : high);
  const found = ends.map(() => 0);
  for (const { y, i } of order) found[i] = y;
  return found;
}

/** Return the grid of an axis that ends at `top`, or at a round value above the maximum. Pure.
 *  @param {number[]} values  @param {number|null} top  @param {number} from */
export function axis(values, top, from = 0) {
  const max = top ?? Math.max(from + 0.5, ceiling(Math.max(0, ...values)));
  return { from, max, ticks: [0, 0.25, 0.5, 0.75, 1].map((share) => from + share * (max - from)) };
}

/** Return the number of digits with which evenly spaced values print evenly spaced. Pure. @param {number[]} values
 *  @param {number} least */
export function exact(values, least) {
  let digits = least;
  while (digits < 3 && values.some((v) => Math.abs(v - Number(v.toFixed(digits))) > 1e-9)) digits += 1;
  return digits;
}

/** Draw into `el`.
 *  @param {{series: import("./curves.js").Series[], top?: number|null, from?: number, digits: number, summary: string}}
 *    data  `top` and `from`: ends of the axis */
export function render(el, data) {
  const width = Math.max(240, kit.size(el).width || 480), height = Math.max(150, kit.size(el).height || 200),
    { series } = data;
  const state = kit.frame(el, { width, height, label: data.summary }, (svg) => ({
    grid: svg.appendChild(kit.s("g")),
    lines: svg.appendChild(kit.s("g")),
    first: svg.appendChild(kit.s("text", { class: "wb-mute" })),
    last: svg.appendChild(kit.s("text", { class: "wb-mute", "text-anchor": "end" })),
  }));
  const words = Math.min(0.36 * width, Math.max(0, ...series.map((s) => LETTER * (s.end ?? "").length)) + KEY);
  const right = width - words, steps = series.flatMap((s) => s.points.map(([step]) => step));
  const end = Math.max(1, ...steps), start = Math.min(end - 1, ...steps);
  const { from, max, ticks } = axis(series.flatMap((s) => s.points.map(([, v]) => v)), data.top ?? null, data.from);
  const digits = exact(ticks, data.digits);
  const x = (step) => BOX.left + 6 + ((step - start) / (end - start)) * (right - BOX.left - 12);
  const tall = height - BOX.top - BOX.bottom;
  const y = (v) => height - BOX.bottom - ((Math.min(Math.max(v, from), max) - from) / (max - from)) * tall;
  kit.fit(state.grid, ticks.length, () => kit.group("line", "text"));
  ticks.forEach((v, i) => {
    const [rule, text] = state.grid.children[i].children;
    kit.set(rule, { class: "wb-grid", x1: BOX.left, x2: right, y1: y(v), y2: y(v) });
    kit.set(text, { class: "wb-mute", x: BOX.left - 5, y: y(v) + 4, "text-anchor": "end" });
    kit.write(text, v.toFixed(digits));
  });
  const heights = spread(series.map((s) => y(s.points.at(-1)?.[1] ?? from)), BOX.top, height - BOX.bottom);
  kit.fit(state.lines, series.length, () => kit.group("path", "path", "path", "text", "title"));
  series.forEach((one, i) => {
    const g = state.lines.children[i], [path, marks, key, text, title] = g.children;
    const points = thin(one.points, 2 * (right - BOX.left)), sparse = points.length <= 40;
    kit.set(g, { class: `wb-curve is-${one.style % STYLES}${hollow(one) ? " is-hollow" : ""}${one.dashed ? " is-dashed" : ""}` });
    kit.set(path, { class: "wb-curveline", d: line(points, x, y) });
    const mark = MARKS[one.style % STYLES].slice(1);
    const at = sparse ? points : points.slice(-1);
    kit.set(marks, { class: "wb-curvemark", d: at.map(([s, v]) => marked(mark, x(s), y(v))).join("") });
    const named = words > KEY ? "inline" : "none";
    kit.set(key, { class: "wb-curvemark", d: marked(mark, right + 8, heights[i]), display: named });
    kit.set(text, { x: right + KEY, y: heights[i] + 4, display: named });
    kit.write(text, one.end ?? "");
    kit.write(title, one.name);
  });
  kit.set(state.first, { x: BOX.left, y: height - 5 });
  kit.set(state.last, { x: right, y: height - 5 });
  kit.write(state.first, steps.length ? `step ${start}` : "");
  kit.write(state.last, steps.length ? `${end}` : "");
}

/** Return a mark's path, moved. Pure. @param {string} mark  path data after its first, absolute M */
export function marked(mark, x, y) {
  const [, dx, dy, rest] = /^(-?[\d.]+) (-?[\d.]+)(.*)$/.exec(mark) ?? ["", "0", "0", ""];
  return `M${(x + Number(dx)).toFixed(1)} ${(y + Number(dy)).toFixed(1)}${rest}`;
}
