/** Line chart over k = 1, 2, …: each line has its own colour, dash and mark, and its name at its end. */

import * as kit from "../shared/kit.js";

const LABEL = 240, GAP = 16;
const MARKS = {
  circle: (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z`,
  ring: (x, y) => `M${x - 3.4} ${y}a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z`,
  square: (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`,
  diamond: (x, y) => `M${x} ${y - 4}l4 4l-4 4l-4 -4z`,
  up: (x, y) => `M${x} ${y - 4}l4 7h-8z`,
  down: (x, y) => `M${x} ${y + 4}l4 -7h-8z`,
  cross: (x, y) => `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`,
  plus: (x, y) => `M${x - 4} ${y}h8m-4 -4v8`,
  bar: (x, y) => `M${x - 4} ${y}h8`,
};

/** Spread labels by `gap` within limits, each as near to its place as possible. Pure.
 *  @param {number[]} places  from top to bottom @returns {number[]} */
export function spreadLabels(places, gap, low, high) {
  const found = [];
  for (const place of places) found.push(Math.max(place, (found.at(-1) ?? low - gap) + gap));
  for (let i = found.length - 1, least = high; i >= 0; i -= 1, least = found[i + 1] - gap)
    found[i] = Math.min(found[i], least);
  return found;
}

const round = (v) => Math.round(10 * v) / 10;

/** Draw into `el`; emits `wb:k` {k} when the axis is clicked.
 *  @param {{lines: {title: string, values: number[], style: string, mark: string, strong: boolean}[], k: number, low:
 *    number, high: number, ticks: number[], summary: string, height: number, names?: string[], axis?: string,
 *    digits?: number}} data */
export function render(el, data) {
  const full = Math.max(260, kit.size(el).width || 600), beside = full >= 560;
  const n = data.lines[0].values.length, width = beside ? full - (el._label ?? LABEL) : full;
  const high = data.height + (beside ? 0 : GAP * data.lines.length + 8);
  const state = kit.frame(el, { width: full, height: high, label: data.summary }, (svg) => {
    svg.addEventListener("click", (event) => {
      const at = Math.round(state.k(event.clientX - svg.getBoundingClientRect().left));
      if (state.pickable && at >= 1 && at <= state.n) kit.emit(el, "wb:k", { k: at });
    });
    const layers = ["grid", "column", "lines", "labels"].map((name) => [name, svg.appendChild(kit.s("g"))]);
    return Object.fromEntries(layers);
  });
  const left = 34, bottom = data.height - 24, step = (width - left - 26) / Math.max(1, n - 1);
  const x = (k) => left + 10 + (k - 1) * step;
  const y = (v) => bottom - ((v - data.low) / (data.high - data.low)) * (bottom - 14);
  Object.assign(state, { n, pickable: data.k > 0, k: (at) => 1 + (at - left - 10) / step });
  kit.fit(state.grid, data.ticks.length + n, () => kit.group("line", "text"));
  [...state.grid.children].forEach((mark, i) => {
    const [line, text] = mark.children, tick = data.ticks[i], k = i - data.ticks.length + 1;
    if (tick !== undefined) {
      kit.set(line, { class: "wb-grid", x1: left, x2: width - 8, y1: y(tick), y2: y(tick) });
      kit.set(text, { class: "wb-mute", x: 0, y: y(tick) + 4, "text-anchor": "start" });
      kit.write(text, Number.isInteger(10 * tick) ? tick.toFixed(1) : tick.toFixed(2));
    } else if (k <= n) {
      kit.set(line, { class: "", x1: 0, x2: 0, y1: 0, y2: 0 });
      kit.set(text, { class: "wb-mute", x: x(k), y: data.height - 6, "text-anchor": "middle" });
      kit.write(text, data.names ? data.names[k - 1] : k === 1 ? "k = 1" : `${k}`);
    }
  });
  kit.fit(state.column, data.k > 0 ? 1 : 0, () => kit.s("rect", { class: "wb-column", rx: 6, width: 18 }));
  if (data.k > 0) kit.set(state.column.firstChild, { x: x(data.k) - 9, y: 4, height: bottom - 2 });
  kit.fit(state.lines, data.lines.length, () => {
    const group = kit.s("g");
    group.append(kit.s("path"), kit.s("path"));
    return group;
  });
  data.lines.forEach((line, i) => {
    const [path, marks] = state.lines.children[i].children;
    state.lines.children[i].setAttribute("class", `wb-rates ${line.style}${line.strong ? " is-strong" : ""}`);
    const points = line.values.map((v, j) => [round(x(j + 1)), round(y(v))]);
    kit.set(path, { d: `M${points.map((at) => at.join(" ")).join("L")}`, class: "wb-ratesline" });
    kit.set(marks, {
      d: data.names ? "" : points.map(([px, py]) => MARKS[line.mark](px, py)).join(""),
      class: `wb-ratesmark is-${line.mark}`,
    });
  });
  const at = data.k > 0 ? data.k - 1 : n - 1;
  const ranked = data.lines
    .map((line, i) => ({ line, i, end: y(line.values.at(-1)), v: line.values[at] }))
    .sort((a, b) => Math.round(a.end - b.end) || b.v - a.v);
  const places = beside
    ? spreadLabels(ranked.map((each) => each.end), GAP, 12, bottom)
    : ranked.map((_, i) => data.height + GAP * (i + 0.5));
  kit.fit(state.labels, ranked.length, () => kit.group("path", "path", "text"));
  ranked.forEach(({ line, end, v }, i) => {
    const group = state.labels.children[i], [lead, mark, text] = group.children, from = beside ? width + 6 : 8;
    group.setAttribute("class", `wb-rates ${line.style}${line.strong ? " is-strong" : ""}`);
    kit.set(lead, { class: "wb-lead", d: beside ? `M${x(n) + 5} ${end}L${from - 8} ${places[i]}` : "" });
    kit.set(mark, { class: `wb-ratesmark is-${line.mark}`, d: MARKS[line.mark](from, places[i]) });
    kit.set(text, { x: from + 9, y: places[i] + 4 });
    kit.write(text, `${line.title} ${v.toFixed(data.digits ?? 3)}`);
  });  if (!beside) return;
  // a notebook may use another font, and a cut number would be wrong
  const key = JSON.stringify(data.lines.map(({ title, strong }) => [title, strong]));
  if (el._named === key) return;
  el._named = key;
  const texts = [...state.labels.children].map((label) => label.lastChild);
  const longest = Math.ceil(Math.max(...texts.map((text) => text.getComputedTextLength?.() ?? 0))) + 18;
  if (longest <= (el._label ?? LABEL)) return;
  el._label = longest;
  render(el, data);
}
