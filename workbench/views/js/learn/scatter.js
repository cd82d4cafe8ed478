/** Scatter plot: dots with intervals, labels where there is room, and selection by pointer and arrow keys.
 *
 *  @typedef {{id: string, x: number, y: number, low?: number|null, high?: number|null, mark: string, colour: string,
 *    hollow?: boolean, label: string, title: string, faint?: boolean}} Dot  `low`, `high`: interval of y; `title`: name
 *    for screen readers; `faint`: does not match the filters
 *  @typedef {{title: string, log?: boolean, from?: number, words?: (value: number) => string, line?: number}} Axis
 *    `from`: value that the axis includes; `line`: value of a dashed reference line
 */

import { niceStep } from "../shared/axis.js";
import * as kit from "../shared/kit.js";
import { MARKS } from "../shared/linechart.js";

const LEFT = 46, RIGHT = 14, TOP = 24, BOTTOM = 40, LETTER = 6.3, LINE = 13, DOT = 9;
const STEPS = [1, 1.5, 2, 3, 4, 5, 7];
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Return range and ticks of an axis over values. Pure. A logarithmic axis omits values that are not above 0.
 *  @param {number[]} values  @param {{log?: boolean, from?: number, line?: number}} axis
 *  @returns {{from: number, to: number, ticks: number[], share: (value: number) => number}} `share`: position from 0
 *    to 1 */
export function scale(values, { log = false, from, line }) {
  const extra = [from, line].filter((value) => value !== undefined);
  const known = [...values, ...extra].filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = known.length ? Math.min(...known) : log ? 1 : 0, high = known.length ? Math.max(...known) : 1;
  if (log) {
    [low, high] = low === high ? [low / 1.5, high * 1.5] : [low / 1.06, high * 1.06];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
      for (const each of high / low > 30 ? [1] : high / low > 6 ? [1, 2, 5] : STEPS) ticks.push(each * 10 ** power);
    for (const half of high / low > 6 ? [] : [0.6, 0.8, 1.2]) ticks.push(half);
    const inside = ticks.filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b);
    return { from: low, to: high, ticks: inside, share: (value) => Math.log(value / low) / Math.log(high / low) };
  }
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const step = niceStep(high - low, 6);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil(high / step - 1e-9) * step;
  const ticks = Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
  return { from: low, to: high, ticks, share: (value) => (value - low) / (high - low) };
}

/** Place the labels of dots so that none covers a dot or another label; a label without room is omitted. Pure.
 *  @param {{x: number, y: number, label: string}[]} dots  in pixels
 *  @param {{left: number, right: number, top: number, bottom: number}} box
 *  @returns {({x: number, y: number, anchor: string}|null)[]} */
export function placeLabels(dots, box) {
  const around = ({ x, y }) => ({ left: x - DOT / 2, right: x + DOT / 2, top: y - DOT / 2, bottom: y + DOT / 2 });
  const taken = dots.map(around);
  const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return dots.map(({ x, y, label }) => {
    const wide = LETTER * label.length;
    const places = [
      { x: x + DOT, y: y + 4, anchor: "start", left: x + DOT },
      { x: x - DOT, y: y + 4, anchor: "end", left: x - DOT - wide },
      { x, y: y - DOT, anchor: "middle", left: x - wide / 2 },
      { x, y: y + DOT + 8, anchor: "middle", left: x - wide / 2 },
    ];
    for (const place of places) {
      const area = { left: place.left, right: place.left + wide, top: place.y - LINE + 3, bottom: place.y + 2 };
      const fits = area.left >= box.left && area.right <= box.right;
      const isInside = fits && area.top >= box.top && area.bottom <= box.bottom;
      if (!isInside || taken.some((other) => meets(area, other))) continue;
      taken.push(area);
      return { x: place.x, y: place.y, anchor: place.anchor };
    }
    return null;
  });
}

/** Return the index of the nearest dot in a direction, within about 60 degrees; the same index if there is none. Pure.
 *  @param {{x: number, y: number}[]} dots  in pixels */
export function neighbour(dots, at, [dx, dy]) {
  let best = at, least = Infinity;
  dots.forEach(({ x, y }, i) => {
    const across = (x - dots[at].x) * dx + (y - dots[at].y) * dy;
    const aside = Math.abs((x - dots[at].x) * dy) + Math.abs((y - dots[at].y) * dx);
    const isAhead = i !== at && across > 0 && aside <= 2 * across;
    if (isAhead && across + 2 * aside < least) [best, least] = [i, across + 2 * aside];
  });
  return best;
}

/** Draw into `el`. Emits `wb:dot` ({id}) when a dot is pointed at or focused, `wb:opendot` when it is clicked.
 *  @param {any} el  @param {{dots: Dot[], x: Axis, y: Axis, summary: string, height?: number}} data */
export function render(el, { dots, x, y, summary, height = 400 }) {
  const width = Math.max(260, kit.size(el).width || 260);
  const state = kit.frame(el, { width, height, label: summary, role: "group" }, (svg) => build(svg, el));
  const ends = dots.flatMap((dot) => [dot.y, dot.low ?? dot.y, dot.high ?? dot.y]);
  const across = scale(dots.map((dot) => dot.x), x), up = scale(ends, y);
  const box = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const px = (value) => box.left + across.share(value) * (box.right - box.left);
  const py = (value) => box.bottom - up.share(value) * (box.bottom - box.top);
  const drawn = dots.filter((dot) => (!x.log || dot.x > 0) && (!y.log || dot.y > 0));
  state.placed = drawn.map((dot) => ({ ...dot, px: px(dot.x), py: py(dot.y) }));
  const spots = state.placed.map(({ px: left, py: top, label, faint }) => ({ x: left, y: top, label: faint ? "" : label }));
  const labels = placeLabels(spots, box);
  drawAxes(state, { x, y, across, up, px, py, box, width, height });
  if (!state.placed.some((dot) => dot.id === state.at))
    state.at = (state.placed.find((dot) => !dot.faint) ?? state.placed[0])?.id;
  kit.resize(state.dots, drawn.length, () => {
    const g = kit.group("title", "path", "circle", "path", "text");
    kit.set(g, { role: "link" });
    return g;
  });
  state.placed.forEach((dot, i) => {
    const g = state.dots.children[i], [title, span, area, mark, text] = g.children, label = labels[i];
    const hasInterval = (dot.low ?? null) !== null && (dot.high ?? null) !== null;
    kit.set(g, {
      class: `wb-series wb-dot is-${dot.colour}${dot.hollow ? " is-hollow" : ""}${dot.faint ? " is-faint" : ""}`,
      tabindex: dot.id === state.at ? 0 : -1, "aria-label": dot.title, "data-dot": dot.id,
    });
    kit.write(title, dot.title);
    kit.set(span, { class: "wb-dotspan", d: hasInterval ? `M${dot.px.toFixed(1)} ${py(dot.low).toFixed(1)}V${py(dot.high).toFixed(1)}` : "" });
    kit.set(area, { class: "wb-dotarea", cx: dot.px, cy: dot.py, r: 12 });
    kit.set(mark, { class: `wb-seriesmark is-${dot.mark}`, d: `M${dot.px.toFixed(1)} ${dot.py.toFixed(1)}${MARKS[dot.mark]}` });
    kit.set(text, label ? { x: label.x, y: label.y, "text-anchor": label.anchor } : { x: 0, y: 0 });
    kit.write(text, label ? dot.label : "");
  });
}

function drawAxes({ grid, names }, { x, y, across, up, px, py, box, width, height }) {
  const number = (value) => `${Number(value.toPrecision(3))}`;
  const lines = [
    ...across.ticks.map((tick) => ({ d: `M${px(tick)} ${box.top}V${box.bottom}`, at: [px(tick), box.bottom + 16, "middle"], text: (x.words ?? number)(tick) })),
    ...up.ticks.map((tick) => ({ d: `M${box.left} ${py(tick)}H${box.right}`, at: [box.left - 7, py(tick) + 4, "end"], text: (y.words ?? number)(tick) })),
    ...(y.line === undefined ? [] : [{ d: `M${box.left} ${py(y.line)}H${box.right}`, at: [0, 0, "start"], text: "", isLine: true }]),
  ];
  kit.fit(grid, lines.length, () => kit.group("path", "text"));
  lines.forEach(({ d, at: [left, top, anchor], text, isLine }, i) => {
    const [rule, word] = grid.children[i].children;
    kit.set(rule, { d, class: isLine ? "wb-dotline" : "wb-dotgrid" });
    kit.set(word, { x: left, y: top, "text-anchor": anchor, class: "wb-mute" });
    kit.write(word, text);
  });
  kit.set(names.children[0], { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle", class: "wb-mute" });
  kit.set(names.children[1], { x: Math.min(4, width), y: 12, class: "wb-mute" });
  kit.write(names.children[0], x.title);
  kit.write(names.children[1], y.title);
}

function build(svg, el) {
  const state = { at: null, placed: [], grid: kit.s("g", { "aria-hidden": "true" }), names: kit.group("text", "text"), dots: kit.s("g") };
  kit.set(state.names, { "aria-hidden": "true" });
  svg.append(state.grid, state.names, state.dots);
  const dotOf = (event) => event.target.closest?.("[data-dot]")?.getAttribute("data-dot") ?? null;
  const show = (event) => dotOf(event) !== null && kit.emit(el, "wb:dot", { id: dotOf(event) });
  svg.addEventListener("pointerover", show);
  svg.addEventListener("focusin", (event) => {
    const now = el._frame;
    now.at = dotOf(event) ?? now.at;
    for (const each of now.dots.children) kit.set(each, { tabindex: each.getAttribute("data-dot") === now.at ? 0 : -1 });
    show(event);
  });
  svg.addEventListener("click", (event) => dotOf(event) !== null && kit.emit(el, "wb:opendot", { id: dotOf(event) }));
  svg.addEventListener("keydown", (event) => {
    const now = el._frame, at = now.placed.findIndex((dot) => dot.id === dotOf(event));
    if (at < 0) return;
    if (event.key === "Enter" || event.key === " ") kit.emit(el, "wb:opendot", { id: now.placed[at].id });
    else if (ARROWS[event.key]) {
      const spots = now.placed.map((dot) => ({ x: dot.px, y: dot.py }));
      now.dots.children[neighbour(spots, at, ARROWS[event.key])].focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return state;
}
