/** Wall clock: what each round spent on draft, verify and host, over plain decoding on the same time scale. */

const GAP = 3;
const LEFT = 62;

/** The rounds in view: `count` of them, ending at the newest while live, around `anchor` otherwise. Pure. */
export function span(n, anchor, count) {
  const from = Math.max(0, Math.min(anchor === n - 1 ? n - count : anchor - (count >> 1), n - count));
  return { from, to: Math.min(n, from + count) };
}

/** Lay the rounds in view and the plain passes for the same text along one axis. Pure.
 *  @param {object[]} rounds  of the run
 *  @param {object[]|null} plain  rounds of the baseline
 *  @returns {{boxes: object[], plain: object[], scale: number, tokens: number, seconds: number, plainSeconds: number|null}} */
export function layout(rounds, plain, view, width) {
  const inView = rounds.slice(view.from, view.to), n = Math.max(inView.length, view.room ?? 0);
  const seconds = inView.reduce((a, r) => a + r.seconds, 0);
  const scale = (width - LEFT - GAP * n) / (seconds * (n / Math.max(1, inView.length)) || 1);
  let x = LEFT;
  const boxes = inView.map((r) => {
    const parts = [["draft", r.draft_s], ["verify", r.verify_s], ["host", Math.max(0, r.seconds - r.draft_s - r.verify_s)]];
    let at = x;
    const segments = parts.map(([name, s]) => ({ name, x: at, width: (at += s * scale, s * scale) }));
    const box = { index: r.index, x, width: at - x, segments, emitted: r.emitted.length };
    x = at + GAP;
    return box;
  });
  const before = rounds.slice(0, view.from).reduce((a, r) => a + r.emitted.length, 0);
  const tokens = inView.reduce((a, r) => a + r.emitted.length, 0);
  // As many plain passes as tokens in view, from the same place of the text where the baseline reaches so far.
  const start = plain ? Math.max(0, Math.min(before, plain.length - tokens)) : 0;
  const passes = plain ? plain.slice(start, start + tokens) : [];
  const marks = [];
  let px = LEFT;
  for (const r of passes) {
    if (px > width) break;
    marks.push({ x: px, width: Math.max(1, Math.min(r.seconds * scale, width - px) - 1) });
    px += r.seconds * scale;
  }
  const plainSeconds = passes.length === tokens && tokens ? passes.reduce((a, r) => a + r.seconds, 0) : null;
  return { boxes, plain: marks, scale, tokens, seconds, plainSeconds };
}

/** Sums over a brushed stretch of rounds. Pure. */
export function totals(rounds, [from, to]) {
  const part = rounds.slice(from, to + 1), ms = (f) => (1e3 * part.reduce((a, r) => a + f(r), 0)).toFixed(1);
  const tokens = part.reduce((a, r) => a + r.emitted.length, 0);
  return `rounds ${from + 1}–${to + 1}: ${tokens} tokens in ${ms((r) => r.seconds)} ms = ${ms((r) => r.draft_s)} draft + ${ms((r) => r.verify_s)} verify + ${ms((r) => r.seconds - r.draft_s - r.verify_s)} host`;
}

/** Draw into `el`; emits `wb:pick` {round} on a click and `wb:brush` {from, to} after a drag.
 *  @param {{rounds: object[], plain: object[]|null, anchor: number, shown: number, brush: number[]|null}} data */
export function render(el, data) {
  const state = (el._lane ??= build(el));
  const width = Math.max(280, el.clientWidth || 900), count = Math.max(5, Math.min(16, Math.floor((width - LEFT) / 64)));
  const view = { ...span(data.rounds.length, data.anchor, count), room: count };
  const drawn = layout(data.rounds, data.plain, view, width);
  state.boxes = drawn.boxes;
  set(state.svg, { width, height: 74, viewBox: `0 0 ${width} 74`, "aria-label": sentence(drawn, view) });
  fit(state.plain, drawn.plain.length, () => s("rect", { class: "wb-fill-verify", opacity: 0.32, y: 8, height: 14 }));
  drawn.plain.forEach((m, i) => set(state.plain.children[i], { x: m.x.toFixed(1), width: m.width.toFixed(1) }));
  write(state.none, data.plain ? "" : width < 560 ? "not measured: press Baseline" : "not measured yet: Baseline decodes this prompt plainly, with the same seed");
  fit(state.run, drawn.boxes.length, box);
  drawn.boxes.forEach((b, i) => {
    const g = state.run.children[i], chosen = b.index === data.shown;
    const brushed = data.brush && b.index >= data.brush[0] && b.index <= data.brush[1];
    set(g, { class: `wb-box${chosen ? " is-shown" : ""}${brushed ? " is-brushed" : ""}` });
    set(g.children[0], { x: (b.x - 2).toFixed(1), width: (b.width + 3).toFixed(1) });
    b.segments.forEach((part, k) => set(g.children[k + 1], { x: part.x.toFixed(1), width: Math.max(0, part.width).toFixed(1) }));
    set(g.children[4], { x: (b.x + b.width / 2).toFixed(1) });
    write(g.children[4], b.width > 18 ? `+${b.emitted}` : "");
  });
}

function sentence(drawn, view) {
  const plain = drawn.plainSeconds === null ? "" : `; plain decoding took ${(1e3 * drawn.plainSeconds).toFixed(0)} ms for as many`;
  return `Wall clock of rounds ${view.from + 1} to ${view.to}: ${drawn.tokens} tokens in ${(1e3 * drawn.seconds).toFixed(0)} ms${plain}`;
}

function build(el) {
  const svg = el.appendChild(s("svg", { role: "img" }));
  const word = (text, y, className) => {
    const t = svg.appendChild(s("text", { x: 0, y, class: className }));
    t.textContent = text;
    return t;
  };
  word("plain", 19, "wb-mute");
  word("this run", 53, "");
  const state = { svg, none: word("", 19, "wb-mute"), plain: svg.appendChild(s("g")), run: svg.appendChild(s("g")), boxes: [] };
  set(state.none, { x: LEFT });
  const roundAt = (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    return (state.boxes.findLast((b) => b.x <= x) ?? state.boxes[0])?.index;
  };
  let start = null;
  const tell = (name, detail) => el.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
  svg.addEventListener("pointerdown", (event) => (start = roundAt(event)));
  svg.addEventListener("pointermove", (event) => {
    const now = roundAt(event);
    if (start === null || start === undefined || now === undefined || !event.buttons) return;
    if (now !== start) tell("wb:brush", { from: Math.min(start, now), to: Math.max(start, now) });
  });
  svg.addEventListener("pointerup", (event) => {
    if (start !== null && start !== undefined && roundAt(event) === start) tell("wb:pick", { round: start });
    start = null;
  });
  return state;
}

function box() {
  const g = s("g");
  g.append(s("rect", { class: "wb-frame", y: 35, height: 26, rx: 3 }));
  for (const name of ["draft", "verify", "host"]) g.append(s("rect", { class: `wb-fill-${name}`, y: 39, height: 18 }));
  g.append(s("text", { class: "wb-mute", y: 73, "text-anchor": "middle" }));
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
