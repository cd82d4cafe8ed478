/** Line chart of all pages: axes with ticks and units, intervals, names at the lines' ends, and a crosshair that shows
 *  the values under the pointer. Lines differ in dash and mark as well as in colour.
 *
 *  @typedef {[number, number|null, (number|null)?, (number|null)?]} Point  x, y, and the interval's ends
 *  @typedef {{name: string, points: Point[], colour: string, dash?: string, mark?: string, hollow?: boolean,
 *    wide?: number, end?: string, sparse?: boolean}} Series  `name`: in the crosshair; `colour`: a class of the
 *    stylesheet, "is-" and this; `mark`: one of `MARKS`, at each point or, with `sparse`, at the last; `wide`: width of
 *    the line, 0: marks only; `end`: text at the line's end
 *  @typedef {{from: number, to: number, ticks: {at: number, text: string, anchor?: string}[], title?: string,
 *    place?: (value: number) => number, words?: (value: number) => string}} Axis  `place`: scale, else linear; `words`:
 *    a value with its unit
 */

import { niceStep } from "./axis.js";
import * as kit from "./kit.js";

const TOP = 12, MARKS_TOP = 26, BOTTOM = 20, TITLE = 14, PAD = 6;
/** Height of the row of band names, and of the row of mark labels under it, in pixels. */
const BAND = 17, MARK = 13;
const LETTER = 6.1, NAME = 6.4, ROW = 15, KEY = 26, LEAD = 20, TIP_ROW = 15;
/** Largest share of the width that names beside the lines may take; wider ones go below the chart. */
const MOST_NAMES = 0.42;
/** Most points of a line with a mark each. */
const FEW = 40;

/** Marks as path data around the origin. */
export const MARKS = {
  circle: "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
  square: "m-3 -3h6v6h-6z",
  diamond: "m0 -4l4 4l-4 4l-4 -4z",
  up: "m0 -4l4 7h-8z",
  down: "m0 4l4 -7h-8z",
  cross: "m-3 -3l6 6m0 -6l-6 6",
  plus: "m-4 0h8m-4 -4v8",
  bar: "m-4 0h8",
};
const SOLID = ["circle", "square", "diamond", "up"], COLOURS = ["a", "b", "c", "d"];
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 4"];

/** Return the look of the i-th of several lines: the palette's colours of methods, which differ for colour-blind
 *  readers too, each with its own mark and dash; from the fifth line on, marks are hollow. Pure. */
export function look(i) {
  return {
    colour: `method-${COLOURS[i % COLOURS.length]}`,
    mark: SOLID[i % SOLID.length],
    dash: DASHES[Math.floor(i / COLOURS.length + i) % DASHES.length],
    hollow: Math.floor(i / COLOURS.length) % 2 === 1,
  };
}

/** Return the path data of a line, interrupted where a value is null. Pure. */
export function line(points, x, y) {
  let d = "", open = false;
  for (const [px, py] of points) {
    if (py === null) open = false;
    else {
      d += `${open ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
      open = true;
    }
  }
  return d;
}

/** Reduce to about `room` points: keep the minimum and the maximum of each group, so that no peak is lost; nothing is
 *  averaged. Pure. @param {Point[]} points */
export function thin(points, room) {
  if (points.length <= room) return points;
  const size = Math.ceil((2 * points.length) / room), thinned = [];
  for (let i = 0; i < points.length; i += size) {
    const known = points.slice(i, i + size).filter(([, v]) => v !== null);
    if (!known.length) {
      thinned.push(points[i]);
      continue;
    }
    const low = known.reduce((a, b) => (b[1] < a[1] ? b : a)), high = known.reduce((a, b) => (b[1] > a[1] ? b : a));
    thinned.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return thinned;
}

/** Return a round upper limit for an axis. Pure. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1)), lead = value / power;
  return power * ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step >= lead) ?? 10);
}

/** Return a vertical axis with ticks at `values`, printed with as many digits as keep their distances equal. Pure.
 *  @param {number[]} values  @param {number} least  digits  @param {(value: number) => string} [words] */
export function levels(values, least, words = (v) => v.toFixed(least + 1)) {
  let digits = least;
  while (digits < 3 && values.some((v) => Math.abs(v - Number(v.toFixed(digits))) > 1e-9)) digits += 1;
  const ticks = values.map((at) => ({ at, text: at.toFixed(digits) }));
  return { from: values[0], to: values.at(-1), ticks, words };
}

/** Return five values from `from` to `top`, or to a round value above the maximum. Pure. @param {number[]} values
 *  @param {number|null} top */
export function quarters(values, top, from = 0) {
  const max = top ?? Math.max(from + 0.5, ceiling(Math.max(0, ...values)));
  return [0, 0.25, 0.5, 0.75, 1].map((share) => from + share * (max - from));
}

/** Return round values from 0 to at least the largest of `values`. Pure. @param {number[]} values */
export function steps(values) {
  const most = Math.max(0.1, ...values.filter(Number.isFinite)), step = niceStep(most, 4);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/** Move labels apart by `gap` within limits, each as near to its place as possible, in the order of their places. Pure.
 *  @param {number[]} places @returns {number[]} */
export function spread(places, gap, low, high) {
  const order = places.map((y, i) => ({ y, i })).sort((a, b) => a.y - b.y);
  order.forEach((one, k) => (one.y = Math.max(one.y, k ? order[k - 1].y + gap : low)));
  for (let k = order.length - 1; k >= 0; k -= 1)
    order[k].y = Math.min(order[k].y, k < order.length - 1 ? order[k + 1].y - gap : high);
  const found = places.map(() => 0);
  for (const { y, i } of order) found[i] = y;
  return found;
}

/** Place the labels of marks in rows so that none overlaps another. Where space is short a label is cut, down to the
 *  number of the change; the mark's title and the table have the full text. Pure.
 *  @param {{index: number, text: string}[]} marks  @param {(index: number) => number} x  @param {number} width
 *  @returns {{index: number, text: string, label: string, start: number, row: number}[]}  `start`: left end, in
 *    pixels */
export function place(marks, x, width, rows = 2) {
  for (let n = 1; ; n += 1) {
    const placed = marks.map((/** @type {any} */ mark, i) => ({ ...mark, row: i % n, number: `${i + 1}` }));
    for (let row = 0; row < n; row += 1) inRow(placed.filter((mark) => mark.row === row), x, width);
    if (n >= rows || placed.every((mark) => mark.label === mark.text))
      return placed.map(({ number: _, ...mark }) => mark);
  }
}

/** Place the labels of one row: each starts at its mark, moved only as far as its neighbours' numbers require. */
function inRow(row, x, width) {
  const wide = (text) => 5 + LETTER * text.length;
  row.forEach(
    (mark, k) => (mark.start = Math.max(x(mark.index) + 4, k ? row[k - 1].start + wide(row[k - 1].number) : 0)),
  );
  for (let k = row.length - 1; k >= 0; k -= 1)
    row[k].start = Math.min(row[k].start, (row[k + 1]?.start ?? width) - wide(row[k].number));
  row.forEach((mark, k) => {
    const before = k ? row[k - 1].start + wide(row[k - 1].label) : 0,
      end = row[k + 1]?.start ?? width;
    // the last label may extend to the left
    if (k === row.length - 1) mark.start = Math.max(before, Math.min(mark.start, width - wide(mark.text)));
    const letters = Math.floor((end - mark.start - 5) / LETTER);
    mark.label =
      letters >= mark.text.length ? mark.text : letters >= 5 ? `${mark.text.slice(0, letters - 1)}…` : mark.number;
  });
}

/** Return the ends of the bands in pixels, each up to the next one's first round, with as much of the name as fits.
 *  Pure. */
export function placeBands(bands, x) {
  return bands.map((band, k) => {
    const start = x(band.from), end = k + 1 < bands.length ? x(bands[k + 1].from) : Math.max(x(band.to), start + 3);
    return { ...band, start, end, label: cut(band.name, Math.floor((end - start - 4) / LETTER)) };
  });
}

/** Cut a text to `letters` characters; return "" for a cut to fewer than four. Pure. */
function cut(text, letters) {
  if (letters >= text.length) return text;
  return letters >= 4 ? `${text.slice(0, letters - 1)}…` : "";
}

/** Break a name into at most two lines of `letters` letters. Pure. @returns {string[]} */
export function twoLines(text, letters) {
  if (text.length <= letters) return [text];
  const end = text.lastIndexOf(" ", letters), first = text.slice(0, end > 0 ? end : letters);
  return [first, cut(text.slice(first.length).trim(), letters)];
}

/** Return the place of the point nearest to a pixel; null without points. Pure.
 *  @param {Series[]} series  @param {number} pixel  @param {(place: number) => number} x  scale */
export function nearest(series, pixel, x) {
  let best = null, least = Infinity;
  for (const { points } of series)
    for (const [place] of points) {
      const away = Math.abs(x(place) - pixel);
      if (away < least) [best, least] = [place, away];
    }
  return best;
}

/** Return the texts of the crosshair at a horizontal value: the value, then each line that has a point there. Pure.
 *  @param {{series: Series[], x: Axis, y: Axis}} data  @returns {{text: string, colour: string}[]} */
export function reading({ series, x, y }, at) {
  const words = y.words ?? ((v) => `${v}`);
  const values = series.flatMap(({ name, points, colour }) => {
    const point = points.find(([px, py]) => px === at && py !== null);
    if (!point) return [];
    const [, value, low = null, high = null] = point;
    const interval = low === null || high === null ? "" : ` (${words(low)} – ${words(high)})`;
    return [{ text: `${name}: ${words(value)}${interval}`, colour }];
  });
  return [{ text: (x.words ?? ((v) => `${v}`))(at), colour: "" }, ...values];
}

/** Return the geometry of a chart. Pure. @param {any} data  @param {{width: number, height: number}} size */
export function layout({ series, x, y, marks, bands = [], height: fixed }, size) {
  const letters = (texts) => Math.max(0, ...texts.map((text) => text.length));
  const { width } = size, named = series.filter((one) => one.end);
  const beside = named.length ? KEY + NAME * letters(named.map((one) => one.end)) : 0;
  const below = beside > MOST_NAMES * width;
  const names = named.map((one) => (below ? twoLines(one.end, Math.floor((width - KEY) / LETTER)) : [one.end]));
  const rows = below ? ROW * names.flat().length + PAD : 0, high = fixed ?? size.height - rows;
  const box = {
    left: 9 + NAME * letters(y.ticks.map((tick) => tick.text)),
    right: width - (below || !named.length ? 8 : beside + LEAD),
    top: bands.length ? BAND + (marks?.length ? MARK : 2) : marks ? MARKS_TOP : TOP,
    bottom: high - BOTTOM - (x.title ? TITLE : 0),
  };
  const scale = x.place ?? ((v) => v), [first, last] = [scale(x.from), scale(x.to)];
  const wide = Math.max(40, box.right - box.left - 2 * PAD), tall = Math.max(20, box.bottom - box.top);
  return {
    ...box,
    below,
    names,
    high,
    height: high + rows,
    x: (v) => box.left + PAD + ((scale(v) - first) / (last - first || 1)) * wide,
    y: (v) => box.bottom - ((Math.min(Math.max(v, y.from), y.to) - y.from) / (y.to - y.from || 1)) * tall,
  };
}

/** Draw into `el`.
 *  @param {any} el  @param {{series: Series[], x: Axis, y: Axis, summary: string, height?: number,
 *    cursor?: number|null, column?: boolean, level?: {value: number, text: string}|null,
 *    marks?: {index: number, text: string}[],
 *    verticals?: {at: number, text: string, colour: string}[],
 *    bands?: {name: string, from: number, to: number, slot: string}[], pick?: (x: number) => void}} data  `height`: of
 *    the plot, else that of `el`; `cursor`: selected place, drawn as a `column` or a line; `level`: horizontal
 *    reference line; `verticals`: vertical ones; `marks`: changes, labelled; `bands`: names of ranges; `pick`: called
 *    with the nearest point's place on a click */
export function render(el, data) {
  const { series, x, y, bands = [], marks = [], verticals = [] } = data, size = kit.size(el);
  const width = Math.max(240, size.width || 560);
  const box = layout(data, { width, height: Math.max(96, size.height || 160) });
  const state = kit.frame(el, { width, height: box.height, label: data.summary }, (svg) => build(svg, el));
  Object.assign(state, { data, place: box, width });
  const { left, right, bottom, high } = box;
  state.svg.classList.toggle("is-pickable", Boolean(data.pick));
  kit.fit(state.grid, y.ticks.length, () => kit.group("line", "text"));
  y.ticks.forEach(({ at, text }, i) => {
    const [rule, label] = state.grid.children[i].children;
    kit.set(rule, { class: "wb-grid", x1: left, x2: right, y1: box.y(at), y2: box.y(at) });
    kit.set(label, { class: "wb-mute", x: left - 5, y: box.y(at) + 4, "text-anchor": "end" });
    kit.write(label, text);
  });
  kit.fit(state.ticks, x.ticks.length, () => kit.s("text", { class: "wb-mute" }));
  const labels = x.ticks.filter((tick) => tick.text).length;
  const room = Math.floor((right - left) / (labels || 1) / NAME); // letters of a label
  x.ticks.forEach(({ at, text, anchor = "middle" }, i) => {
    kit.set(state.ticks.children[i], { x: box.x(at), y: bottom + 15, "text-anchor": anchor });
    const long = anchor === "middle" && text.length > room;
    kit.write(state.ticks.children[i], long ? cut(text, Math.max(4, room)) : text);
  });
  kit.set(state.title, { x: right, y: high - 4, "text-anchor": "end" });
  kit.write(state.title, x.title ?? "");
  drawCursor(state, data, box);
  drawLevel(state, data.level ?? null, box);
  drawVerticals(state.verticals, verticals, box);
  kit.fit(state.lines, series.length, () => kit.group("path", "path", "path", "title"));
  series.forEach((one, i) => drawLine(state.lines.children[i], one, box));
  drawNames(state.names, series, box);
  drawBands(state.bands, placeBands(bands, box.x), bottom);
  const down = bands.length ? BAND : 0;
  drawMarks(state.marks, place(marks, box.x, width - 4, bands.length ? 1 : 2), box, down);
  drawCrosshair(state);
}

function drawCursor({ cursor, column }, { cursor: at = null, column: wide = false }, { x, top, bottom }) {
  kit.set(cursor, { display: at !== null && !wide ? "inline" : "none" });
  kit.set(column, { display: at !== null && wide ? "inline" : "none" });
  if (at === null) return;
  kit.set(cursor, { x1: x(at), x2: x(at), y1: top, y2: bottom });
  kit.set(column, { x: x(at) - 9, y: top - 8, width: 18, height: bottom - top + 12, rx: 6 });
}

function drawLevel({ level, levelText }, data, { left, right, top, y }) {
  const at = data ? y(data.value) : 0;
  kit.set(level, { display: data ? "inline" : "none", x1: left, x2: right, y1: at, y2: at });
  // the label goes below the line where marks and method names are above
  kit.set(levelText, { x: right, y: at - 14 < top ? at + 12 : at - 4, "text-anchor": "end" });
  kit.write(levelText, data?.text ?? "");
}

function drawVerticals(parent, verticals, { x, top, bottom, right }) {
  kit.fit(parent, verticals.length, () => kit.group("line", "text"));
  verticals.forEach(({ at, text, colour }, i) => {
    const g = parent.children[i], [rule, label] = g.children, place = x(at), left = place > 0.7 * right;
    kit.set(g, { class: `wb-series is-${colour}` });
    kit.set(rule, { class: "wb-seriesline", "stroke-dasharray": "2 3", x1: place, x2: place, y1: top, y2: bottom });
    kit.set(label, { x: place + (left ? -5 : 5), y: bottom - 6 - TIP_ROW * (i % 4), "text-anchor": left ? "end" : "start" });
    kit.write(label, text);
  });
}

function drawLine(g, one, { x, y, left, right }) {
  const { colour, dash = "", mark = "", hollow = false, wide = 2, name } = one, [path, whiskers, marks, title] = g.children;
  const points = thin(one.points, 2 * (right - left)), known = points.filter(([, v]) => v !== null);
  const marked = one.sparse || points.length > FEW ? known.slice(-1) : known;
  const spans = one.points.filter(([, , low = null, high = null]) => low !== null && high !== null);
  kit.set(g, { class: `wb-series is-${colour}${hollow ? " is-hollow" : ""}` });
  kit.set(path, {
    class: "wb-seriesline",
    d: wide ? line(points, x, y) : "",
    "stroke-dasharray": dash || "none",
    "stroke-width": wide,
  });
  kit.set(whiskers, {
    class: "wb-serieswhisker",
    d: spans.map(([px, , low, high]) => `M${x(px).toFixed(1)} ${y(low).toFixed(1)}V${y(high).toFixed(1)}`).join(""),
  });
  kit.set(marks, { class: `wb-seriesmark is-${mark}`, d: marked.map(([px, py]) => at(mark, x(px), y(py))).join("") });
  kit.write(title, name);
}

/** Return a mark's path at a place. Pure. */
function at(mark, x, y) {
  return mark ? `M${x.toFixed(1)} ${y.toFixed(1)}${MARKS[mark]}` : "";
}

/** Draw the names: beside the lines' ends, with a line to an end that had to be left; else below the chart. */
function drawNames(parent, series, { x, y, top, bottom, right, below, high, names }) {
  const named = series.filter((one) => one.end);
  const ends = named.map((one) => one.points.findLast(([, v]) => v !== null) ?? [0, 0]);
  const row = (i) => names.slice(0, i).flat().length;
  const heights = below
    ? named.map((_, i) => high + ROW * (row(i) + 0.5))
    : spread(ends.map(([, v]) => y(v)), ROW, top, bottom);
  kit.fit(parent, named.length, () => kit.group("path", "path", "path", "text", "text"));
  named.forEach(({ colour, hollow, dash = "", mark = "", wide = 2 }, i) => {
    const g = parent.children[i], [lead, sample, key, ...texts] = g.children, from = below ? 12 : right + LEAD + 4;
    const far = !below && Math.abs(heights[i] - y(ends[i][1])) > 3 && x(ends[i][0]) > 0.8 * right;
    kit.set(g, { class: `wb-series is-${colour}${hollow ? " is-hollow" : ""}${wide > 2 ? " is-strong" : ""}` });
    kit.set(lead, {
      class: "wb-serieslead",
      d: far ? `M${x(ends[i][0]) + 5} ${y(ends[i][1])}L${from - 11} ${heights[i]}` : "",
    });
    kit.set(sample, {
      class: "wb-seriesline",
      d: wide ? `M${from - 9} ${heights[i]}h18` : "",
      "stroke-dasharray": dash || "none",
      "stroke-width": wide,
    });
    kit.set(key, { class: `wb-seriesmark is-${mark}`, d: at(mark, from, heights[i]) });
    texts.forEach((text, k) => {
      kit.set(text, { x: from + 14, y: heights[i] + 4 + ROW * k });
      kit.write(text, k < names[i].length ? `${names[i][k]}${k + 1 < names[i].length ? " " : ""}` : "");
    });
  });
}

function drawBands(parent, bands, bottom) {
  kit.fit(parent, bands.length, () => kit.group("line", "rect", "text", "title"));
  bands.forEach((band, k) => {
    const g = parent.children[k], [rule, strip, text, title] = g.children;
    kit.set(g, { class: `wb-method is-${band.slot}` });
    kit.set(rule, { x1: band.start, x2: band.start, y1: 0, y2: bottom, visibility: k ? "visible" : "hidden" });
    kit.set(strip, { x: band.start, y: 12, height: 4, width: Math.max(1, band.end - band.start - 1) });
    kit.set(text, { x: band.start + 3, y: 9 });
    kit.write(text, band.label);
    kit.write(title, `${band.name}: rounds ${band.from + 1}–${band.to + 1}`);
  });
}

function drawMarks(parent, marks, { x, bottom }, down) {
  kit.fit(parent, marks.length, () => {
    const g = kit.group("line", "text", "title");
    kit.set(g, { class: "wb-change" });
    return g;
  });
  marks.forEach((mark, i) => {
    const [rule, text, title] = parent.children[i].children;
    kit.set(rule, { x1: x(mark.index), x2: x(mark.index), y1: 2 + down, y2: bottom });
    kit.set(text, { x: mark.start, y: 9 + down + 12 * mark.row });
    kit.write(text, mark.label);
    kit.write(title, `${mark.text} at round ${mark.index + 1}`);
  });
}

/** Draw the values under the pointer, on the side of the line where there is more room. */
function drawCrosshair(state) {
  const { crosshair, data, place: box, pointer, width } = state;
  const inside = pointer !== null && pointer > box.left - 2 * PAD && pointer < box.right + 2 * PAD;
  const found = inside ? nearest(data.series, pointer, box.x) : null;
  kit.set(crosshair, { display: found === null ? "none" : "inline" });
  if (found === null) return;
  const [rule, back, list] = crosshair.children, rows = reading(data, found), x = box.x(found);
  const wide = 26 + NAME * Math.max(...rows.map((row) => row.text.length)), high = 8 + TIP_ROW * rows.length;
  const start = Math.max(0, Math.min(width - wide, x > width / 2 ? x - wide - 8 : x + 8));
  kit.set(rule, { x1: x, x2: x, y1: box.top, y2: box.bottom });
  kit.set(back, { x: start, y: box.top, width: wide, height: high, rx: 6 });
  kit.fit(list, rows.length, () => kit.group("path", "text"));
  rows.forEach(({ text, colour }, i) => {
    const row = list.children[i], [swatch, words] = row.children, y = box.top + 16 + TIP_ROW * i;
    kit.set(row, { class: `wb-series is-${colour || "none"}` });
    kit.set(swatch, { class: "wb-seriesmark", d: colour ? `M${start + 8} ${y - 8}h7v7h-7z` : "" });
    kit.set(words, { x: start + (colour ? 20 : 8), y });
    kit.write(words, text);
  });
}

function build(svg, el) {
  const add = (tag, className = "") => svg.appendChild(kit.s(tag, className ? { class: className } : {}));
  const state = {
    pointer: null,
    grid: add("g"),
    ticks: add("g"),
    column: add("rect", "wb-column"),
    bands: add("g"),
    marks: add("g"),
    verticals: add("g"),
    cursor: add("line", "wb-cursor"),
    level: add("line", "wb-level"),
    lines: add("g"),
    names: add("g", "wb-seriesnames"),
    title: add("text", "wb-mute"),
    levelText: add("text", "wb-mute"),
    crosshair: add("g", "wb-crosshair"),
  };
  state.crosshair.append(kit.s("line"), kit.s("rect"), kit.s("g"));
  kit.set(state.crosshair, { "aria-hidden": "true", display: "none" });
  const move = (pointer) => {
    const now = el._frame;
    now.pointer = pointer;
    drawCrosshair(now);
  };
  svg.addEventListener("pointermove", (event) => move(event.clientX - svg.getBoundingClientRect().left));
  svg.addEventListener("pointerleave", () => move(null));
  svg.addEventListener("click", (event) => {
    const { data, place: box } = el._frame, pointer = event.clientX - svg.getBoundingClientRect().left;
    const found = nearest(data.series, pointer, box.x);
    if (data.pick && found !== null) data.pick(found);
  });
  return state;
}
