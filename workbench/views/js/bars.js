/** A few labelled bars, each with an optional interval and an optional part in a second colour. */

const BOX = { left: 30, top: 26, bottom: 20, height: 160 };

/** Geometry of the bars. Pure. @returns {{x: number, width: number, y: number, height: number, part: number}[]} */
export function layout(bars, max, width, left = BOX.left) {
  const room = (width - left - 8) / Math.max(bars.length, 4), tall = BOX.height - BOX.top - BOX.bottom;
  return bars.map((bar, i) => {
    const height = max ? (bar.value / max) * tall : 0;
    return {
      x: left + 6 + i * room, width: Math.max(3, Math.min(34, room * 0.66)), height,
      y: BOX.height - BOX.bottom - height, part: bar.value ? height * ((bar.part ?? 0) / bar.value) : 0,
    };
  });
}

/** Draw into `el`.
 *  @param {{bars: {label: string, value: number, text: string, part?: number, low?: number, high?: number}[],
 *           max: number, ticks: number[], axis: string, summary: string}} data */
export function render(el, data) {
  const state = (el._bars ??= build(el));
  const width = Math.max(200, el.clientWidth || 280), left = data.ticks.length ? BOX.left : 0;
  const tall = BOX.height - BOX.top - BOX.bottom, y = (v) => BOX.height - BOX.bottom - (v / (data.max || 1)) * tall;
  set(state.svg, { width, height: BOX.height, viewBox: `0 0 ${width} ${BOX.height}`, "aria-label": data.summary });
  fit(state.grid, data.ticks.length, () => group("line", "text"));
  data.ticks.forEach((v, i) => {
    const [rule, text] = state.grid.children[i].children;
    set(rule, { class: "wb-grid", x1: left, x2: width, y1: y(v), y2: y(v) });
    set(text, { class: "wb-mute", x: 0, y: y(v) + 4 });
    write(text, v.toFixed(1));
  });
  const placed = layout(data.bars, data.max, width, left), room = (width - left - 8) / Math.max(data.bars.length, 4);
  const every = (texts, least) => Math.max(1, Math.ceil(Math.max(least, ...texts.map((t) => 6.6 * t.length + 3)) / room));
  const values = data.bars.map((bar) => (room < 34 ? bar.text.replace(/^0\./, ".").replace(/^1\.00$/, "1") : bar.text));
  const labelEvery = every(data.bars.map((bar) => bar.label), 14), valueEvery = every(values, 0);
  fit(state.bars, data.bars.length, () => group("rect", "rect", "line", "text", "text"));
  data.bars.forEach((bar, i) => {
    const b = placed[i], [whole, part, whisker, label, value] = state.bars.children[i].children, middle = b.x + b.width / 2;
    set(whole, { class: "wb-bar-whole", x: b.x, y: b.y, width: b.width, height: b.height });
    set(part, { class: "wb-bar-part", x: b.x, y: b.y, width: b.width, height: b.part });
    const has = bar.low !== undefined;
    set(whisker, { class: "wb-whisker", display: has ? "inline" : "none", x1: middle, x2: middle, y1: y(bar.low ?? 0), y2: y(bar.high ?? 0) });
    set(label, { class: "wb-mute", x: middle, y: BOX.height - 5, "text-anchor": "middle" });
    set(value, { x: has && b.width > 20 ? middle + 3 : middle, y: Math.max(11, b.y - 5), "text-anchor": has && b.width > 20 ? "start" : "middle" });
    write(label, i % labelEvery === 0 ? bar.label : "");
    write(value, i % valueEvery === 0 ? values[i] : "");
  });
  set(state.axis, { x: width, y: BOX.height - 5, "text-anchor": "end" });
  write(state.axis, data.bars.length && placed.at(-1).x + 60 < width - 6 * data.axis.length ? data.axis : "");
}

function build(el) {
  const svg = el.appendChild(s("svg", { role: "img" }));
  const [grid, bars] = [svg.appendChild(s("g")), svg.appendChild(s("g"))];
  return { svg, grid, bars, axis: svg.appendChild(s("text", { class: "wb-mute" })) };
}

function group(...tags) {
  const g = s("g");
  g.append(...tags.map((tag) => s(tag)));
  return g;
}

function fit(parent, n, make) {
  while (parent.childElementCount < n) parent.append(make());
  [...parent.children].forEach((child, i) => set(child, { display: i >= n ? "none" : "inline" }));
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
