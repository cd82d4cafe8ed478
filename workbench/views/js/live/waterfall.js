/** The dialog "Where the time goes", which "Why this fast?" opens: every round of a run on one axis in milliseconds,
 *  under plain decoding's passes. */

import * as axis from "../shared/axis.js";
import * as figures from "../shared/figures.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as lane from "./lane.js";
import * as race from "./race.js";
import * as whatif from "./whatif.js";

const LEFT = 68, RIGHT = 48, ROW = 18, BAR = 12, AXIS = 40;
/** Phases of a round, with the words of the legend. */
const KINDS = { draft: "draft", verify: "verify", accept: "accept and commit", overhead: "planning and other overhead", wait: "waiting for other runs" };
const NAMES = { draft: "draft", verify: "verify", wait: "wait", judge: "accept", commit: "accept" };
/** Shortest visible time in seconds, step of the zoom, and share of the view that an arrow key moves. */
const LEAST_S = 2e-4, ZOOM = 1.25, PAN = 0.15;

const ms = (seconds) => `${(1e3 * seconds).toFixed(seconds < 0.09995 ? 2 : 1)} ms`;
const tokens = (n) => `${n} token${n === 1 ? "" : "s"}`;

/** Return the time shares in one line: "verify 64 % · draft 16 % · overhead 20 %"; empty without rounds. Pure. */
export function shareWords(f) {
  if (!f.rounds || !(f.seconds > 0)) return "";
  const order = ["verify", "draft", "overhead"], at = ({ name }) => (order.indexOf(name) + 4) % 4;
  const parts = race.shares(f).sort((a, b) => at(a) - at(b));
  return parts.map(({ name, share }) => `${name} ${Math.round(100 * share)} %`).join(" · ");
}

/** State how the speed-up follows from τ and the cost of a round, from measured figures only. Pure.
 *  @param {object} f  figures of the run (`figures.summary`)  @param {{tokens_per_second: number}|null} plain  of its
 *    measured baseline */
export function arithmetic(f, plain) {
  if (!f.rounds || !(f.seconds > 0)) return "No rounds yet.";
  const tau = f.tokens / f.rounds, round = f.seconds / f.rounds;
  if (!plain?.tokens_per_second)
    return `τ ${tau.toFixed(2)} tokens per round; a round takes ${ms(round)}. The speed-up needs a measured baseline.`;
  const pass = 1 / plain.tokens_per_second, cost = round / pass;
  return `τ ${tau.toFixed(2)} tokens per round ÷ ${cost.toFixed(2)} (a round takes ${ms(round)}, a pass of plain decoding ${ms(pass)}) = ${(tau / cost).toFixed(2)}× in this run.`;
}

/** Return the phases of a round without gaps; time outside the recorded phases is "overhead". Pure.
 *  @returns {{kind: string, start: number, end: number}[]}  seconds, as `started_s` */
export function phases(round) {
  if (!round.phases?.length) return lane.phasesOf(round).map(({ kind, start, end }) => ({ kind, start, end }));
  const end = round.started_s + round.seconds, out = [];
  let at = round.started_s;
  for (const p of [...round.phases].sort((a, b) => a.start_s - b.start_s)) {
    if (p.start_s > at) out.push({ kind: "overhead", start: at, end: p.start_s });
    out.push({ kind: NAMES[p.name] ?? "overhead", start: p.start_s, end: p.end_s });
    at = Math.max(at, p.end_s);
  }
  if (at < end) out.push({ kind: "overhead", start: at, end });
  return out;
}

/** Return the seconds from the start of the first round to the end of the last one. Pure. */
export const duration = (rounds) =>
  rounds.length ? rounds.at(-1).started_s + rounds.at(-1).seconds - rounds[0].started_s : 0;

/** Return a window of time scaled about `at` and moved by `by`, inside [0, whole]. Pure.
 *  @param {{from: number, to: number}} view  seconds  @param {number} whole
 *  @param {{factor?: number, at?: number, by?: number}} change
 *    `factor`: above 1 zooms in */
export function moved(view, whole, { factor = 1, at = (view.from + view.to) / 2, by = 0 }) {
  const length = Math.min(whole, Math.max(Math.min(LEAST_S, whole), (view.to - view.from) / factor));
  const share = (at - view.from) / (view.to - view.from || 1);
  const from = Math.max(0, Math.min(whole - length, at - share * length + by));
  return { from, to: from + length };
}

/** Place the rounds and the plain passes that lie in a window of time. Pure.
 *  @param {object[]} rounds  @param {object[]|null} plain  rounds of the baseline; both begin at time 0
 *  @param {{from: number, to: number}} view  seconds  @param {number} width  pixels
 *  @returns {{rows: {index: number, end: number, tokens: number, parts: {kind: string, x: number, width: number}[]}[],
 *    plain: {x: number, width: number, tokens: number, seconds: number, start: number}[], ticks: {x: number, text:
 *    string}[]}} */
export function layout(rounds, plain, view, width) {
  const right = width - RIGHT, scale = (right - LEFT) / (view.to - view.from || 1);
  const x = (t) => LEFT + (Math.min(view.to, Math.max(view.from, t)) - view.from) * scale;
  const inside = (start, end) => end > view.from && start < view.to;
  const place = (list, build) => {
    const zero = list?.[0]?.started_s ?? 0;
    return (list ?? []).flatMap((r) => {
      const start = r.started_s - zero;
      return inside(start, start + r.seconds) ? [build(r, start, zero)] : [];
    });
  };
  const rows = place(rounds, (r, start, zero) => ({
    index: r.index,
    end: x(start + r.seconds),
    tokens: r.emitted.length,
    parts: phases(r)
      .filter((p) => inside(p.start - zero, p.end - zero))
      .map((p) => ({ kind: p.kind, x: x(p.start - zero), width: x(p.end - zero) - x(p.start - zero) })),
  }));
  const passes = place(plain, (r, start) => ({
    x: x(start), width: x(start + r.seconds) - x(start), tokens: r.emitted.length, seconds: r.seconds, start,
  }));
  const step = axis.niceStep(view.to - view.from, Math.max(2, Math.min(8, Math.floor((right - LEFT) / 80))));
  const first = Math.ceil(view.from / step - 1e-9), ticks = [];
  for (let i = first; i * step <= view.to + 1e-9 * step; i++)
    ticks.push({ x: x(i * step), text: `${Number((1e3 * i * step).toPrecision(6))}` });
  return { rows, plain: passes, ticks };
}

/** Describe a round: tokens, time and its phases. Pure. */
export function roundWords(round) {
  const sums = {};
  for (const { kind, start, end } of phases(round)) sums[kind] = (sums[kind] ?? 0) + end - start;
  const parts = Object.keys(KINDS).filter((kind) => sums[kind] > 0).map((kind) => `${KINDS[kind]} ${ms(sums[kind])}`);
  const passes = round.phases?.length ? ` (forward passes alone: draft ${ms(round.draft_s)}, verify ${ms(round.verify_s)})` : "";
  return `Round ${round.index + 1}: +${tokens(round.emitted.length)} in ${ms(round.seconds)} = ${parts.join(" + ")}${passes}`;
}

/** Return the data of the dialog: the run in view, else the example whose race is shown. */
function dataOf({ view, example }) {
  if (view?.rounds.length || !example?.plain)
    return {
      rounds: view?.rounds ?? [],
      plain: view?.plainRounds ?? null,
      figures: view?.figures ?? figures.summary([]),
      rate: view?.plainFigures ?? null,
      own: true,
    };
  const { rounds } = example, plain = example.plain.rounds;
  return { rounds, plain, figures: figures.summary(rounds), rate: figures.summary(plain), own: false };
}

/** Open the dialog. */
export function open(page) {
  const state = (page.waterfall ??= build(page));
  state.data = dataOf(page);
  const whole = Math.max(duration(state.data.rounds), 1e-6);
  Object.assign(state, { whole, view: { from: 0, to: whole } });
  Object.assign(state, { at: state.data.own ? (page.view?.shown?.round ?? 0) : 0 });
  if (!state.dialog.open) state.dialog.showModal();
  state.redraw();
}

function build(page) {
  const tool = (text, title, act) => {
    const button = h("button", { type: "button", className: "wb-tool", title, onclick: act }, text);
    button.setAttribute("aria-label", title);
    return button;
  };
  const state = /** @type {any} */ ({
    page,
    words: h("p", { className: "wb-summary wb-falls" }),
    note: h("p", { className: "wb-fallnote" }),
  });
  const change = (what) => {
    state.view = moved(state.view, state.whole, what);
    state.redraw();
  };
  const pan = (share) => change({ by: share * (state.view.to - state.view.from) });
  state.top = h("div", { className: "wb-falltop" });
  state.rows = h("div", { className: "wb-fallrows" });
  state.region = h("div", { className: "wb-fall", tabIndex: 0 }, state.top, state.rows);
  kit.set(state.region, { role: "group", "aria-label": "Rounds over time. Arrow keys select a round or move the view, + and − zoom, 0 resets, Enter shows the round." });
  state.note.setAttribute("role", "status");
  const more = h("button", { type: "button", className: "wb-tool" }, "Explain this speed"), close = h("button", { type: "button", className: "wb-go" }, "Close");
  more.hidden = !page.host.call;
  const reset = () => change({ factor: 1e-9 });
  state.dialog = h(
    "dialog",
    { className: "wb-keys wb-falldialog" },
    h("h3", {}, "Where the time goes"),
    state.words,
    h(
      "div",
      { className: "wb-falltools" },
      panel.legend(Object.entries(KINDS).filter(([kind]) => kind !== "wait").map(([kind, name]) => [`wb-fallkey-${kind}`, name])),
      h("span", { className: "wb-zooms" }, tool("−", "Zoom out (key −)", () => change({ factor: 1 / ZOOM })), tool("reset", "Show the whole run (key 0)", reset), tool("+", "Zoom in (key +)", () => change({ factor: ZOOM }))),
    ),
    state.region,
    state.note,
    h("div", { className: "wb-buttons" }, more, close),
  );
  state.dialog.setAttribute("aria-label", "Where the time goes");
  page.el.append(state.dialog);
  close.addEventListener("click", () => state.dialog.close());
  more.addEventListener("click", () => {
    state.dialog.close();
    whatif.open(page);
  });
  state.redraw = kit.paced(() => draw(state));
  state.dialog.addEventListener("wb:redraw", (event) => {
    event.stopPropagation();
    if (state.data) state.redraw();
  });
  listen(state, { change, pan, reset });
  return state;
}

function listen(state, { change, pan, reset }) {
  const { region } = state;
  const scale = () => (Math.max(1, region.clientWidth - LEFT - RIGHT)) / (state.view.to - state.view.from);
  const timeAt = (event) => state.view.from + (event.clientX - region.getBoundingClientRect().left - LEFT) / scale();
  const roundAt = (event) => {
    const at = event.target.closest?.("[data-row]");
    return at ? Number(at.dataset.row) : null;
  };
  const pick = () => {
    if (!state.data.own || !state.data.rounds[state.at]) return;
    kit.emit(state.page.el, "wb:pick", { round: state.at });
    state.picked = state.at;
    state.redraw();
  };
  region.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) return pan(Math.sign(event.deltaY || event.deltaX) * PAN);
    change({ factor: event.deltaY < 0 ? ZOOM : 1 / ZOOM, at: timeAt(event) });
  }, { passive: false });
  let start = null, dragged = false;
  region.addEventListener("pointerdown", (event) => ((start = event.clientX), (dragged = false)));
  region.addEventListener("pointermove", (event) => {
    if (start !== null && event.buttons && (dragged || Math.abs(event.clientX - start) > 4)) {
      dragged = true;
      change({ by: (start - event.clientX) / scale() });
      start = event.clientX;
    } else if (roundAt(event) !== null && roundAt(event) !== state.at) {
      state.at = roundAt(event);
      state.redraw();
    }
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) region.addEventListener(name, () => (start = null));
  region.addEventListener("click", (event) => {
    if (dragged || roundAt(event) === null) return;
    state.at = roundAt(event);
    pick();
  });
  region.addEventListener("keydown", (event) => {
    const step = (by) => {
      state.at = Math.max(0, Math.min(state.data.rounds.length - 1, state.at + by));
      const { view } = state, { rounds } = state.data, r = rounds[state.at];
      if (!r) return;
      const from = r.started_s - rounds[0].started_s, to = from + r.seconds;
      if (from < view.from || to > view.to) change({ by: (from + to - view.from - view.to) / 2 });
      state.follow = true;
      state.redraw();
    };
    const act = {
      ArrowUp: () => step(-1), ArrowDown: () => step(1), ArrowLeft: () => pan(-PAN), ArrowRight: () => pan(PAN),
      "+": () => change({ factor: ZOOM }), "=": () => change({ factor: ZOOM }), "-": () => change({ factor: 1 / ZOOM }),
      0: reset, Enter: pick,
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
}

function draw(state) {
  const { data, region, view } = state, width = Math.max(260, kit.size(region).width || 700);
  const drawn = layout(data.rounds, data.plain, view, width);
  kit.write(state.words, arithmetic(data.figures, data.rate));
  const head = kit.frame(
    state.top,
    { width, height: AXIS + ROW, label: `Time in milliseconds${data.plain ? `; ${drawn.plain.length} passes of plain decoding in view` : ""}` },
    (svg) => ({ title: svg.appendChild(kit.s("text", { x: 0, y: 13 })), name: svg.appendChild(kit.s("text", { x: 0, y: AXIS + 11 })), ticks: svg.appendChild(kit.s("g")), passes: svg.appendChild(kit.s("g")), none: svg.appendChild(kit.s("text", { class: "wb-mute", x: LEFT, y: AXIS + 11 })) }),
  );
  kit.write(head.title, "time since the first round (ms)");
  kit.write(head.name, "plain");
  kit.write(head.none, data.plain ? (drawn.plain.length ? "" : "plain decoding finished before this time") : "no baseline for this run");
  kit.fit(head.ticks, drawn.ticks.length, () => kit.group("line", "text"));
  drawn.ticks.forEach((tick, i) => {
    const [line, text] = head.ticks.children[i].children;
    kit.set(line, { class: "wb-grid", x1: tick.x, x2: tick.x, y1: AXIS - 8, y2: AXIS + ROW });
    kit.set(text, { x: tick.x, y: AXIS - 11, "text-anchor": "middle" });
    kit.write(text, tick.text);
  });
  kit.fit(head.passes, drawn.plain.length, () => {
    const rect = kit.s("rect", { class: "wb-fill-plain", y: AXIS, height: BAR });
    rect.append(kit.s("title"));
    return rect;
  });
  drawn.plain.forEach((p, i) => {
    const rect = head.passes.children[i];
    kit.set(rect, { x: p.x.toFixed(1), width: Math.max(0.5, p.width - (p.width > 3 ? 1 : 0)).toFixed(1) });
    kit.write(rect.firstChild, `plain decoding: +${tokens(p.tokens)} in ${ms(p.seconds)}, at ${ms(p.start)}`);
  });
  const height = Math.max(ROW, ROW * drawn.rows.length);
  const body = kit.frame(
    state.rows,
    { width, height, label: `${drawn.rows.length} of ${data.rounds.length} rounds in view` },
    (svg) => ({ grid: svg.appendChild(kit.s("g")), rows: svg.appendChild(kit.s("g")) }),
  );
  kit.fit(body.grid, drawn.ticks.length, () => kit.s("line", { class: "wb-grid" }));
  drawn.ticks.forEach((tick, i) => kit.set(body.grid.children[i], { x1: tick.x, x2: tick.x, y1: 0, y2: height }));
  kit.fit(body.rows, drawn.rows.length, () => kit.group("rect", "text", "g", "text"));
  drawn.rows.forEach((row, i) => {
    const g = body.rows.children[i], [hit, name, parts, gain] = g.children, y = ROW * i;
    kit.set(g, { class: `wb-fallrow${row.index === state.at ? " is-at" : ""}${row.index === state.picked ? " is-picked" : ""}`, "data-row": row.index });
    kit.set(hit, { x: 0, y, width, height: ROW });
    kit.set(name, { x: 0, y: y + 13 });
    kit.write(name, `round ${row.index + 1}`);
    kit.fit(parts, row.parts.length, () => kit.s("rect", { height: BAR }));
    row.parts.forEach((p, k) =>
      kit.set(parts.children[k], { class: `wb-fall-${p.kind}`, x: p.x.toFixed(1), y: y + 3, width: Math.max(0.3, p.width).toFixed(1) }),
    );
    kit.set(gain, { x: row.end + 4, y: y + 13 });
    kit.write(gain, `+${row.tokens}`);
  });
  const at = data.rounds[state.at];
  kit.write(state.note, at ? `${roundWords(at)}${state.picked === state.at ? " · selected on the page" : ""}` : "");
  if (state.follow) body.rows.querySelector(".is-at")?.scrollIntoView({ block: "nearest" });
  state.follow = false;
}
