/** Bar chart of a few labelled bars, each with an optional interval and an optional part in a second colour. */

import * as kit from "./kit.js";

const BOX = { left: 30, top: 34, bottom: 36 };
/** Minimum distance of a theory mark from the base of a number, in pixels; if nearer, the number moves above the mark.
 *  */
const NEAR = 18;

/** Return the geometry of the bars. Pure. @returns {{x: number, width: number, y: number, height: number, part:
 *  number}[]} */
export function layout(bars, max, width, left = BOX.left, high = 160) {
  const room = (width - left - 8) / Math.max(bars.length, 4), tall = high - BOX.top - BOX.bottom;
  return bars.map((bar, i) => {
    const height = max ? (bar.value / max) * tall : 0;
    return {
      x: left + 6 + i * room, width: Math.max(3, Math.min(34, room * 0.66)), height,
      y: high - BOX.bottom - height, part: bar.value ? height * ((bar.part ?? 0) / bar.value) : 0,
    };
  });
}

/** Draw into `el`.
 *  @param {{bars: {label: string, value: number, text: string, part?: number, low?: number, high?: number}[],
 *           max: number, ticks: number[], digits?: number, axis: string, up: string, summary: string, overlay?:
 *           number[]|null}} data  `axis` and `up`: titles of the two axes; `overlay`: theoretical value of each bar,
 *    drawn over them as a dashed line with one mark per bar */
export function render(el, data) {
  const width = Math.max(180, kit.size(el).width || 280),
    high = Math.max(140, kit.size(el).height || 160),
    left = data.ticks.length ? BOX.left : 0;
  const state = kit.frame(el, { width, height: high, label: data.summary }, (svg) => ({
    grid: svg.appendChild(kit.s("g")),
    bars: svg.appendChild(kit.s("g")),
    theory: svg.appendChild(kit.s("path", { class: "wb-theory" })),
    theoryMarks: svg.appendChild(kit.s("path", { class: "wb-theorymarks" })),
    values: svg.appendChild(kit.s("g")),
    up: svg.appendChild(kit.s("text", { class: "wb-mute", x: 0, y: 9 })),
    axis: svg.appendChild(kit.s("text", { class: "wb-mute" })),
  }));
  const tall = high - BOX.top - BOX.bottom, y = (v) => high - BOX.bottom - (v / (data.max || 1)) * tall;
  kit.fit(state.grid, data.ticks.length, () => kit.group("line", "text"));
  data.ticks.forEach((v, i) => {
    const [rule, text] = state.grid.children[i].children;
    kit.set(rule, { class: "wb-grid", x1: left, x2: width, y1: y(v), y2: y(v) });
    kit.set(text, { class: "wb-mute", x: 0, y: y(v) + 4 });
    kit.write(text, v.toFixed(data.digits ?? 1));
  });
  kit.write(state.up, data.bars.length ? data.up : "");
  const placed = layout(data.bars, data.max, width, left, high),
    room = (width - left - 8) / Math.max(data.bars.length, 4);
  const every = (texts, least) =>
    Math.max(1, Math.ceil(Math.max(least, ...texts.map((t) => 6.6 * t.length + 3)) / room));
  const values = data.bars.map((bar) => (room < 34 ? bar.text.replace(/^0\./, ".").replace(/^1\.00$/, "1") : bar.text));
  const labelEvery = every(data.bars.map((bar) => bar.label), 14), valueEvery = every(values, 0);
  const expected = data.overlay?.map((v) => y(Math.min(v, data.max))) ?? [];
  kit.fit(state.bars, data.bars.length, () => kit.group("rect", "rect", "line", "text"));
  kit.fit(state.values, data.bars.length, () => kit.s("text"));
  data.bars.forEach((bar, i) => {
    const b = placed[i],
      [whole, part, whisker, label] = state.bars.children[i].children,
      value = state.values.children[i],
      middle = b.x + b.width / 2;
    kit.set(whole, { class: "wb-bar-whole", x: b.x, y: b.y, width: b.width, height: b.height });
    kit.set(part, { class: "wb-bar-part", x: b.x, y: b.y, width: b.width, height: b.part });
    const has = bar.low !== undefined;
    kit.set(whisker, {
      class: "wb-whisker",
      display: has ? "inline" : "none",
      x1: middle,
      x2: middle,
      y1: y(bar.low ?? 0),
      y2: y(bar.high ?? 0),
    });
    kit.set(label, { class: "wb-mute", x: middle, y: high - 21, "text-anchor": "middle" });
    const foot = above(b.y, has ? y(bar.high ?? 0) : b.y, expected[i] ?? null);
    kit.set(value, { x: middle, y: foot, "text-anchor": "middle" });
    kit.write(label, i % labelEvery === 0 ? bar.label : "");
    kit.write(value, i % valueEvery === 0 ? values[i] : "");
  });
  const theory = overlayPaths(data.overlay ?? [], placed, (v) => y(Math.min(v, data.max)));
  kit.set(state.theory, { d: theory.line });
  kit.set(state.theoryMarks, { d: theory.marks });
  kit.set(state.axis, { x: (left + width) / 2, y: high - 5, "text-anchor": "middle" });
  kit.write(state.axis, data.bars.length ? data.axis : "");
}

/** Return the baseline height of a bar's number: above its interval and above a theory mark that would cover it. Pure.
 *  @param {number} top  of the bar  @param {number} whisker  upper end of its interval
 *  @param {number|null} [mark]  height of the theory mark */
export function above(top, whisker, mark = null) {
  const end = Math.min(top, whisker), covered = mark !== null && mark < end + 6 && mark > end - NEAR;
  return Math.max(11, (covered ? Math.min(end, mark - 4) : end) - 5);
}

/** Return a line through the middles of the bars, with a small diamond at each. Pure. @returns {{line: string, marks:
 *  string}} path data */
export function overlayPaths(values, placed, y) {
  const at = values.slice(0, placed.length).map((v, i) => [(placed[i].x + placed[i].width / 2).toFixed(1), y(v)]);
  return {
    line: at.map(([x, v], i) => `${i ? "L" : "M"}${x} ${v.toFixed(1)}`).join(""),
    marks: at.map(([x, v]) => `M${x} ${(v - 3.5).toFixed(1)}l3.5 3.5l-3.5 3.5l-3.5 -3.5z`).join(""),
  };
}
