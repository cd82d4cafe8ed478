/** Curves over the rounds of a run (acceptance, tokens per second), with a mark at each change of settings. */

import * as kit from "../shared/kit.js";

const BOX = { left: 30, right: 8, top: 26, bottom: 18 };
/** Height of the row of band names, and of the row of mark labels under it, in pixels. */
const BAND = 17, MARK = 13;
const LEAST_ROUNDS = 20, LETTER = 6.1;

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
 *  averaged. Pure. @param {[number, number|null][]} points */
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

/** Return a round upper limit for an axis. Pure. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1)), lead = value / power;
  return power * ([1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step >= lead) ?? 10);
}

/** Draw into `el`; emits `wb:pick` {round} on a click.
 *  @param {{series: {name: string, points: [number, number|null][]}[], max: number, ticks: number[], digits: number,
 *           level: {value: number, text: string}|null, rounds: number, marks: object[], shown: number, summary:
 *           string, bands?: {name: string, from: number, to: number, slot: string}[]}} data  at most two series;
 *  `level`
 *           is a horizontal reference line; `bands` name the methods of ranges of rounds */
export function render(el, data) {
  const width = Math.max(240, kit.size(el).width || 560),
    height = Math.max(96, kit.size(el).height || 140),
    n = data.rounds;
  const state = kit.frame(el, { width, height, label: data.summary }, (svg) => build(svg, el));
  const last = Math.max(LEAST_ROUNDS, n) - 1,
    wide = width - BOX.left - BOX.right - 6,
    bands = data.bands ?? [],
    top = bands.length ? BAND + (data.marks.length ? MARK : 2) : BOX.top,
    tall = height - top - BOX.bottom;
  const x = (i) => BOX.left + 6 + (i / last) * wide,
    y = (v) => height - BOX.bottom - (Math.min(v, data.max) / (data.max || 1)) * tall;
  el._round = (px) => Math.max(0, Math.min(n - 1, Math.round(((px - BOX.left - 6) / wide) * last)));
  kit.fit(state.grid, data.ticks.length, () => kit.group("line", "text"));
  data.ticks.forEach((v, i) => {
    const [rule, text] = state.grid.children[i].children;
    kit.set(rule, { class: "wb-grid", x1: BOX.left, x2: width - BOX.right, y1: y(v), y2: y(v) });
    kit.set(text, { class: "wb-mute", x: 0, y: y(v) + 4 });
    kit.write(text, v.toFixed(data.digits));
  });
  state.lines.forEach((path, i) => kit.set(path, { d: line(thin(data.series[i]?.points ?? [], 2 * wide), x, y) }));
  kit.set(state.cursor, {
    x1: x(data.shown),
    x2: x(data.shown),
    y1: top,
    y2: height - BOX.bottom,
    display: n ? "inline" : "none",
  });
  const at = data.level ? y(data.level.value) : 0;
  kit.set(state.level, {
    display: data.level ? "inline" : "none",
    x1: BOX.left,
    x2: width - BOX.right,
    y1: at,
    y2: at,
  });
  // the label goes below the line where marks and method names are above
  kit.set(state.levelText, { x: width - BOX.right, y: at - 14 < top ? at + 12 : at - 4, "text-anchor": "end" });
  kit.write(state.levelText, data.level?.text ?? "");
  kit.set(state.axis, { x: BOX.left, y: height - 3 });
  kit.write(state.axis, n ? `round 1 – ${n}` : "");
  drawBands(state.bands, placeBands(bands, x), height);
  drawMarks(state.marks, place(data.marks, x, width - 4, bands.length ? 1 : 2), x, height, bands.length ? BAND : 0);
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

function drawBands(parent, bands, height) {
  kit.fit(parent, bands.length, () => kit.group("line", "rect", "text", "title"));
  bands.forEach((band, k) => {
    const g = parent.children[k], [rule, strip, text, title] = g.children;
    kit.set(g, { class: `wb-method is-${band.slot}` });
    kit.set(rule, {
      x1: band.start, x2: band.start, y1: 0, y2: height - BOX.bottom, visibility: k ? "visible" : "hidden",
    });
    kit.set(strip, { x: band.start, y: 12, height: 4, width: Math.max(1, band.end - band.start - 1) });
    kit.set(text, { x: band.start + 3, y: 9 });
    kit.write(text, band.label);
    kit.write(title, `${band.name}: rounds ${band.from + 1}–${band.to + 1}`);
  });
}

function drawMarks(parent, marks, x, height, down) {
  kit.fit(parent, marks.length, () => {
    const g = kit.group("line", "text", "title");
    kit.set(g, { class: "wb-change" });
    return g;
  });
  marks.forEach((mark, i) => {
    const at = x(mark.index), [rule, text, title] = parent.children[i].children;
    kit.set(rule, { x1: at, x2: at, y1: 2 + down, y2: height - BOX.bottom });
    kit.set(text, { x: mark.start, y: 9 + down + 12 * mark.row });
    kit.write(text, mark.label);
    kit.write(title, `${mark.text} at round ${mark.index + 1}`);
  });
}

function build(svg, el) {
  const add = (tag, className) => svg.appendChild(kit.s(tag, { class: className }));
  svg.addEventListener("click", (event) =>
    kit.emit(el, "wb:pick", { round: el._round(event.clientX - svg.getBoundingClientRect().left) }),
  );
  return {
    grid: add("g", ""),
    bands: add("g", ""),
    marks: add("g", ""),
    cursor: add("line", "wb-cursor"),
    level: add("line", "wb-level"),
    lines: [add("path", "wb-windowed"), add("path", "wb-cumulative")],
    axis: add("text", "wb-mute"),
    levelText: add("text", "wb-mute"),
  };
}
