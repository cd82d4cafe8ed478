/** Acceptance over time: the last few rounds, and all so far; a mark wherever a setting changed. */

const BOX = { left: 30, right: 104, top: 26, bottom: 20, height: 160 };

/** Path data of a line with holes where there is no value. Pure. */
export function line(points, x, y) {
  let d = "", open = false;
  points.forEach(([px, py]) => {
    if (py === null) open = false;
    else {
      d += `${open ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
      open = true;
    }
  });
  return d;
}

/** Put labels of marks into rows so that none covers another; a label without room has row null. Pure.
 *  @param {{index: number, text: string}[]} marks  @param {(index: number) => number} x  @param {number} width */
export function place(marks, x, width, rows = 2) {
  const ends = Array(rows).fill(-Infinity);
  return marks.map((mark) => {
    const wide = 5 + 6.1 * mark.text.length, left = x(mark.index) + 4 + wide > width;
    const start = left ? x(mark.index) - wide : x(mark.index) + 4;
    const row = ends.findIndex((end) => end <= start);
    if (row >= 0) ends[row] = start + wide;
    return { ...mark, row: row < 0 ? null : row, left };
  });
}

/** Draw into `el`; emits `wb:pick` {round} on a click.
 *  @param {{points: {index: number, windowed: number|null, cumulative: number|null}[], marks: object[],
 *           shown: number, window: number}} data */
export function render(el, data) {
  const state = (el._curve ??= build(el));
  const width = Math.max(260, el.clientWidth || 560), n = data.points.length;
  const last = Math.max(20, n) - 1;
  const x = (i) => BOX.left + 6 + (i / last) * (width - BOX.left - BOX.right - 6);
  const y = (v) => BOX.height - BOX.bottom - v * (BOX.height - BOX.top - BOX.bottom);
  state.round = (px) => Math.max(0, Math.min(n - 1, Math.round(((px - BOX.left - 6) / (width - BOX.left - BOX.right - 6)) * last)));
  set(state.svg, { width, height: BOX.height, viewBox: `0 0 ${width} ${BOX.height}`, "aria-label": sentence(data) });
  state.grid.forEach(({ rule, text, v }) => {
    set(rule, { x1: BOX.left, x2: width - BOX.right, y1: y(v), y2: y(v) });
    set(text, { x: 0, y: y(v) + 4 });
  });
  set(state.windowed, { d: line(data.points.map((p) => [p.index, p.windowed]), x, y) });
  set(state.cumulative, { d: line(data.points.map((p) => [p.index, p.cumulative]), x, y) });
  set(state.cursor, { x1: x(data.shown), x2: x(data.shown), y1: BOX.top, y2: BOX.height - BOX.bottom, display: n ? "inline" : "none" });
  set(state.axis, { x: BOX.left, y: BOX.height - 4 });
  write(state.axis, n ? `round 1 – ${n}` : "");
  ends(state, data.points.at(-1), Math.min(x(Math.max(0, n - 1)) + 6, width - BOX.right + 6), y, data.window);
  drawMarks(state.marks, place(data.marks, x, width - 4), x);
}

function ends(state, point, x, y, window) {
  const low = point?.windowed ?? null, all = point?.cumulative ?? null;
  let yw = low === null ? 0 : y(low) + 4, yc = all === null ? 0 : y(all) + 4;
  if (low !== null && all !== null && Math.abs(yw - yc) < 14) [yw, yc] = low >= all ? [yc - 14, yc] : [yc + 14, yc];
  set(state.endWindowed, { x, y: Math.max(BOX.top - 6, yw) });
  set(state.endCumulative, { x, y: yc });
  write(state.endWindowed, low === null ? "" : `last ${window}: ${low.toFixed(2)}`);
  write(state.endCumulative, all === null ? "" : `cumulative ${all.toFixed(2)}`);
}

function drawMarks(parent, marks, x) {
  while (parent.childElementCount < marks.length) {
    const g = parent.appendChild(s("g", { class: "wb-change" }));
    g.append(s("line"), s("text"), s("title"));
  }
  [...parent.children].forEach((g, i) => {
    const mark = marks[i];
    set(g, { display: mark ? "inline" : "none" });
    if (!mark) return;
    const at = x(mark.index), [rule, text, title] = g.children;
    set(rule, { x1: at, x2: at, y1: 2, y2: BOX.height - BOX.bottom });
    set(text, { x: mark.left ? at - 4 : at + 4, y: 9 + 12 * (mark.row ?? 0), "text-anchor": mark.left ? "end" : "start" });
    write(text, mark.row === null ? "" : mark.text);
    write(title, `${mark.text} at round ${mark.index + 1}`);
  });
}

function sentence({ points, marks, window }) {
  const end = points.at(-1), percent = (v) => (v === null || v === undefined ? "nothing tested" : `${Math.round(100 * v)} %`);
  const changes = marks.length ? `; changes: ${marks.map((m) => `${m.text} at round ${m.index + 1}`).join("; ")}` : "";
  return `Acceptance over ${points.length} rounds: ${percent(end?.cumulative)} of tested drafts in all, ${percent(end?.windowed)} in the last ${window} rounds${changes}`;
}

function build(el) {
  const svg = el.appendChild(s("svg", { role: "img" }));
  const grid = [0, 0.5, 1].map((v) => {
    const text = svg.appendChild(s("text", { class: "wb-mute" }));
    text.textContent = v.toFixed(1);
    return { v, text, rule: svg.appendChild(s("line", { class: "wb-grid" })) };
  });
  const add = (tag, className) => svg.appendChild(s(tag, { class: className }));
  const state = {
    svg, grid, marks: add("g", ""), cursor: add("line", "wb-cursor"), windowed: add("path", "wb-windowed"),
    cumulative: add("path", "wb-cumulative"), axis: add("text", "wb-mute"), endWindowed: add("text", ""), endCumulative: add("text", ""),
  };
  svg.addEventListener("click", (event) => {
    const round = state.round(event.clientX - svg.getBoundingClientRect().left);
    el.dispatchEvent(new CustomEvent("wb:pick", { bubbles: true, detail: { round } }));
  });
  return state;
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== `${value}`) element.setAttribute(name, value);
  }
}

function s(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(element, attributes);
  return element;
}

export default { render };
