/** Wall clock: the time of each phase of each round, above plain decoding on the same time scale. */

import { timeTicks } from "../shared/axis.js";
import * as kit from "../shared/kit.js";

const LEFT = 62, ROW = 26, TOP = 35, LABELS = 14, AXIS = 19;
const KINDS = { draft: "draft", verify: "verify", wait: "wait" };

/** Return the range of rounds in view: `count` rounds ending at the newest while live, around `anchor` otherwise. Pure.
 *  */
export function span(n, anchor, count) {
  const from = Math.max(0, Math.min(anchor === n - 1 ? n - count : anchor - (count >> 1), n - count));
  return { from, to: Math.min(n, from + count) };
}

/** Return the phases of a round: as recorded, or one after the other where a trace has only their sums. Gaps between
 *  phases, verifying and committing count as overhead; while the batch drafted for other sequences, the run waited.
 *  Pure. @returns {{kind: string, lane: string, start: number, end: number}[]} */
export function phasesOf(round) {
  const end = round.started_s + round.seconds, out = [];
  if (!round.phases?.length) {
    const waits = round.waited_s ?? 0,
      sums = [
        round.draft_s,
        waits,
        round.verify_s,
        Math.max(0, round.seconds - round.draft_s - waits - round.verify_s),
      ];
    let at = round.started_s;
    return ["draft", "wait", "verify", "overhead"]
      .map((kind, i) => ({ kind, lane: "device", start: at, end: (at += sums[i]) }))
      .filter((p) => p.kind !== "wait" || waits);
  }
  for (const p of round.phases)
    out.push({ kind: KINDS[p.name] ?? "overhead", lane: p.lane, start: p.start_s, end: p.end_s });
  const last = Math.max(...out.map((p) => p.end));
  if (last < end) out.push({ kind: "overhead", lane: out.at(-1).lane, start: last, end });
  return out;
}

/** Return the lanes to draw: null (one lane) if no two phases overlap, otherwise the named lanes. Pure. */
export function lanes(rounds) {
  const names = [...new Set(rounds.flatMap((r) => phasesOf(r).map((p) => p.lane)))];
  const overlap = rounds.some((r) => {
    const sorted = phasesOf(r).sort((a, b) => a.start - b.start);
    return sorted.some((p, i) => i > 0 && p.start < sorted[i - 1].end - 1e-6);
  });
  return overlap && names.length > 1 ? names : null;
}

/** Place the rounds in view, and the baseline's forward passes for the same text, on one time axis. Pure.
 *  @param {object[]} rounds  of the run
 *  @param {object[]|null} plain  rounds of the baseline
 *  @param {Map<number, number>} stalls  of `stalls.stalls(rounds)`  @param {Map<number, number>} plainStalls  the same
 *    for the baseline
 *  @returns {{boxes: object[], plain: object[], lanes: string[]|null, scale: number, tokens: number, seconds: number,
 *    plainSeconds: number|null, ticks: {x: number, text: string}[]}} */
export function layout(rounds, plain, view, width, stalls = new Map(), plainStalls = new Map()) {
  const inView = rounds.slice(view.from, view.to), n = Math.max(inView.length, view.room ?? 0), named = lanes(inView);
  const seconds = inView.reduce((a, r) => a + r.seconds, 0);
  const before = rounds.slice(0, view.from).reduce((a, r) => a + r.emitted.length, 0);
  const tokens = inView.reduce((a, r) => a + r.emitted.length, 0);
  // One forward pass of the baseline per token in view, from the same place of the text if the baseline is that long.
  const first = plain ? Math.max(0, Math.min(before, plain.length - tokens)) : 0;
  const passes = plain ? plain.slice(first, first + tokens) : [];
  const plainSeconds = passes.length === tokens && tokens ? passes.reduce((a, r) => a + r.seconds, 0) : null;
  // the longer of both rows fills the width, so that their lengths show the speed-up
  const whole = Math.max(seconds, plainSeconds ?? 0) * (n / Math.max(1, inView.length)) || 1,
    scale = (width - LEFT - 1) / whole;
  let x = LEFT;
  const boxes = inView.map((r) => {
    const segments = phasesOf(r).map((p) => ({
      kind: p.kind, row: named ? named.indexOf(p.lane) : 0, x: x + Math.max(0, p.start - r.started_s) * scale,
      width: Math.max(0, Math.min(p.end - r.started_s, r.seconds) - Math.max(0, p.start - r.started_s)) * scale,
    }));
    const box = {
      index: r.index,
      x,
      width: r.seconds * scale,
      segments,
      emitted: r.emitted.length,
      stalled: stalls.get(r.index) ?? null,
    };
    x += box.width;
    return box;
  });
  const marks = [];
  let px = LEFT;
  for (const [i, r] of passes.entries()) {
    if (px > width) break;
    marks.push({
      x: px,
      width: Math.max(1, Math.min(r.seconds * scale, width - px) - 1),
      stalled: plainStalls.has(first + i),
    });
    px += r.seconds * scale;
  }
  const ticks = inView.length
    ? timeTicks(whole, scale, whole < 1 ? "ms" : "s").map((tick) => ({ ...tick, x: tick.x + LEFT }))
    : [];
  return { boxes, plain: marks, lanes: named, scale, tokens, seconds, plainSeconds, ticks };
}

/** Sum up a selected range of rounds. Pure. */
export function totals(rounds, [from, to]) {
  const part = rounds.slice(from, to + 1), ms = (f) => (1e3 * part.reduce((a, r) => a + f(r), 0)).toFixed(1);
  const tokens = part.reduce((a, r) => a + r.emitted.length, 0), waited = part.some((r) => r.waited_s);
  return `rounds ${from + 1}–${to + 1}: ${tokens} tokens in ${ms((r) => r.seconds)} ms = ${ms((r) => r.draft_s)} draft + ${ms((r) => r.verify_s)} verify + ${ms((r) => r.overhead_s)} overhead${waited ? ` + ${ms((r) => r.waited_s ?? 0)} waiting for other runs` : ""}`;
}

/** Draw into `el`; emits `wb:pick` {round} on a click and `wb:brush` {from, to} after a drag.
 *  @param {{rounds: object[], plain: object[]|null, none: string, anchor: number, shown: number, brush: number[]|null,
 *           stalls?: Map<number, number>, plainStalls?: Map<number, number>, bands?: object[]}} data  `bands`: from
 *    `figures.methodSegments`, drawn over the rounds where there are several */
export function render(el, data) {
  const width = Math.max(280, kit.size(el).width || 900),
    count = Math.max(5, Math.min(16, Math.floor((width - LEFT) / 64)));
  const view = { ...span(data.rounds.length, data.anchor, count), room: count };
  const drawn = layout(data.rounds, data.plain, view, width, data.stalls, data.plainStalls),
    rows = drawn.lanes?.length ?? 1;
  const height = TOP + ROW * rows + LABELS + AXIS, bands = (data.bands?.length ?? 0) > 1 ? data.bands : [];
  const state = kit.frame(el, { width, height, label: sentence(drawn, view) }, (svg) => build(svg, el));
  el._boxes = drawn.boxes;
  kit.fit(state.plain, drawn.plain.length, () => kit.s("rect", { class: "wb-fill-plain", y: 8, height: 14 }));
  drawn.plain.forEach((m, i) =>
    kit.set(state.plain.children[i], {
      class: `wb-fill-plain${m.stalled ? " is-stalled" : ""}`,
      x: m.x.toFixed(1),
      width: m.width.toFixed(1),
    }),
  );
  kit.write(state.none, data.plain ? "" : data.none);
  kit.fit(state.names, rows, () => kit.s("text", { x: 0 }));
  (drawn.lanes ?? ["this run"]).forEach((name, i) => {
    kit.set(state.names.children[i], { y: TOP + 18 + ROW * i });
    kit.write(state.names.children[i], name);
  });
  kit.fit(state.run, drawn.boxes.length, () => {
    const g = kit.group("g", "rect", "line", "rect", "text");
    kit.set(g.children[1], { class: "wb-frame", y: TOP, rx: 3 });
    kit.set(g.children[2], { class: "wb-lanecut" });
    kit.set(g.children[3], { y: TOP - 5, height: 4 });
    kit.set(g.children[4], { class: "wb-mute", "text-anchor": "middle" });
    return g;
  });
  drawn.boxes.forEach((b, i) => {
    const g = state.run.children[i], [parts, frame, cut, strip, label] = g.children;
    const band = bands.find((each) => b.index >= each.from && b.index <= each.to);
    const brushed = data.brush && b.index >= data.brush[0] && b.index <= data.brush[1];
    kit.set(g, {
      class: `wb-box${b.index === data.shown ? " is-shown" : ""}${brushed ? " is-brushed" : ""}${b.stalled ? " is-stalled" : ""}`,
    });
    kit.set(frame, { x: b.x.toFixed(1), width: Math.max(1, b.width - 1).toFixed(1), height: ROW * rows });
    kit.set(cut, { x1: b.x + b.width, x2: b.x + b.width, y1: TOP + 2, y2: TOP + ROW * rows - 2 });
    kit.set(strip, {
      x: b.x.toFixed(1),
      width: Math.max(1, b.width - 1).toFixed(1),
      class: band ? `wb-bandstrip is-${band.slot}` : "",
      visibility: band ? "visible" : "hidden",
    });
    kit.fit(parts, b.segments.length, () => kit.s("rect", { height: 18 }));
    b.segments.forEach((p, k) =>
      kit.set(parts.children[k], {
        class: `wb-fill-${p.kind}`,
        x: p.x.toFixed(1),
        y: TOP + 4 + ROW * p.row,
        width: p.width.toFixed(1),
      }),
    );
    kit.set(label, { x: (b.x + b.width / 2).toFixed(1), y: TOP + ROW * rows + LABELS - 2 });
    kit.write(label, labelOf(b));
  });
  drawAxis(state, drawn, view, width, height);
}

/** Draw the time axis under the rounds in view; the baseline has the same scale. */
function drawAxis(state, { ticks }, view, width, height) {
  const top = height - AXIS + 2;
  kit.set(state.line, { x1: LEFT, x2: width, y1: top, y2: top, display: ticks.length ? "inline" : "none" });
  kit.fit(state.ticks, ticks.length, () => kit.group("line", "text"));
  ticks.forEach((tick, i) => {
    const [mark, text] = state.ticks.children[i].children, last = tick.x > width - 34;
    kit.set(mark, { class: "wb-grid", x1: tick.x, x2: tick.x, y1: 8, y2: top + 3 });
    kit.set(text, { class: "wb-mute", x: tick.x, y: height - 4, "text-anchor": last ? "end" : i ? "middle" : "start" });
    kit.write(text, tick.text);
  });
  kit.write(state.from, ticks.length ? `from ${view.from + 1}` : "");
  kit.set(state.from, { y: height - 4 });
}

/** Return the label under a round: its token count and whether it stalled, as far as there is room. Pure. */
export function labelOf({ width, emitted, stalled }) {
  if (!stalled) return width > 18 ? `+${emitted}` : "";
  return width > 90 ? `+${emitted} · stalled, ${stalled.toFixed(0)}×` : width > 18 ? `+${emitted} !` : "!";
}

/** Describe the drawing in one sentence. Pure. */
export function sentence(drawn, view) {
  if (!drawn.boxes.length) return "Wall clock: no rounds yet";
  const stalled = drawn.boxes.filter((b) => b.stalled).map((b) => b.index + 1),
    plain =
      drawn.plainSeconds === null
        ? ""
        : `; plain decoding took ${(1e3 * drawn.plainSeconds).toFixed(0)} ms for the same number of tokens`;
  return `Wall clock of rounds ${view.from + 1} to ${view.to}: ${drawn.tokens} tokens in ${(1e3 * drawn.seconds).toFixed(0)} ms${plain}${stalled.length ? `; round${stalled.length > 1 ? "s" : ""} ${stalled.join(", ")} stalled` : ""}`;
}

function build(svg, el) {
  const word = svg.appendChild(kit.s("text", { x: 0, y: 19, class: "wb-mute" }));
  kit.write(word, "plain");
  const state = {
    line: svg.appendChild(kit.s("line", { class: "wb-grid" })),
    ticks: svg.appendChild(kit.s("g")),
    from: svg.appendChild(kit.s("text", { x: 0, class: "wb-mute" })),
    none: svg.appendChild(kit.s("text", { x: LEFT, y: 19, class: "wb-mute" })), names: svg.appendChild(kit.s("g")),
    plain: svg.appendChild(kit.s("g")), run: svg.appendChild(kit.s("g")),
  };
  const roundAt = (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left, boxes = el._boxes ?? [];
    return (boxes.findLast((b) => b.x <= x) ?? boxes[0])?.index;
  };
  let start = null;
  svg.addEventListener("pointerdown", (event) => (start = roundAt(event) ?? null));
  svg.addEventListener("pointermove", (event) => {
    const now = roundAt(event);
    if (start === null || now === undefined || !event.buttons) return;
    if (now !== start) kit.emit(el, "wb:brush", { from: Math.min(start, now), to: Math.max(start, now) });
  });
  svg.addEventListener("pointerup", (event) => {
    if (start !== null && roundAt(event) === start) kit.emit(el, "wb:pick", { round: start });
    start = null;
  });
  return state;
}
