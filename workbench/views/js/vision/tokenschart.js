/** Chart of τ against the number of vision tokens that the drafter keeps: one line per compressor, with 95 % confidence
 *  intervals. */

import * as kit from "../shared/kit.js";

const BOX = { left: 30, right: 8, top: 24, bottom: 34 };
/** Return the maximum width of a label, in pixels. */
const wide = (text) => 8 + 6.2 * text.length;
const STYLES = [
  ["wb-line-a", "", "circle"],
  ["wb-line-b", "6 3", "square"],
  ["wb-line-c", "2 3", "diamond"],
  ["wb-line-d", "8 3 2 3", "triangle"],
  ["wb-line-e", "1 3", "cross"],
];
const MARKS = {
  circle: "m-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0",
  square: "m-3 -3h6v6h-6z",
  diamond: "m0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
  triangle: "m0 -4l4 7.4h-8z",
  cross: "m-3.5 -3.5l7 7m-7 0l7 -7",
};

/** Return scales and ticks. Pure. The horizontal axis is a square root: most of the change is at few tokens.
 *  @param {{tokens: number, tau: number, low: number, high: number, name?: string}[]} all */
export function scale(all, width, height) {
  const right =
    BOX.right +
    Math.max(
      0,
      ...all.filter((p) => p.tokens >= 0.8 * Math.max(...all.map((q) => q.tokens))).map((p) => wide(p.name ?? "")),
    );
  const most = Math.max(1, ...all.map((p) => p.tokens)),
    low = Math.min(...all.map((p) => p.low)),
    high = Math.max(...all.map((p) => p.high));
  const step = high - low > 1.6 ? 1 : high - low > 0.8 ? 0.5 : 0.25,
    from = Math.floor(low / step) * step,
    to = Math.max(from + step, Math.ceil(high / step) * step);
  const across = Math.max(80, width - BOX.left - right), tall = height - BOX.top - BOX.bottom;
  const x = (n) => BOX.left + 8 + Math.sqrt(n / most) * (across - 8),
    y = (v) => height - BOX.bottom - ((v - from) / (to - from)) * tall;
  const levels = Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step),
    counts = [...new Set(all.map((p) => Math.round(p.tokens)))].sort((a, b) => a - b);
  return {
    x,
    y,
    end: BOX.left + across,
    levels,
    counts: counts.filter((n, i) => i === 0 || n === most || x(n) - x(counts[i - 1]) >= 16),
  };
}

/** Return label heights without overlaps, in the given order. Pure. @param {[number, number, number?][]} wanted
 *  x, y and width */
export function spread(wanted, near = 70, least = 12) {
  const out = wanted.map(([, y]) => y), order = wanted.map((_, i) => i).sort((a, b) => wanted[a][1] - wanted[b][1]);
  order.forEach((i, k) => {
    const right = (n) => wanted[n][0] + (wanted[n][2] ?? near),
      covers = (j) => wanted[j][0] < right(i) && wanted[i][0] < right(j);
    const above = order.slice(0, k).filter(covers).sort((a, b) => out[a] - out[b]);
    for (const j of above) if (out[i] < out[j] + least && out[j] < out[i] + least) out[i] = out[j] + least;
  });
  return out;
}

/** Return the heights of names: those of lines (side −1) above all marks; those of single marks (1) below the lines or
 *  below their own mark, whichever is lower; those in the margin (0) beside their mark. Pure.
 *  @param {{x: number, y: number, wide: number, side: number}[]} names  @param {number} top  of the highest mark
 *    @param {number} low  of the lowest */
export function namesAt(names, top, low) {
  const out = names.map((n) => n.y);
  for (const side of [-1, 0, 1]) {
    const of = names.flatMap((n, i) => (n.side === side ? [i] : []));
    const found = spread(
      of.map((i) => [
        names[i].x,
        side < 0
          ? -(Math.min(top, names[i].y) - 12)
          : side > 0
            ? Math.max(names[i].y, names[i].y <= low + 12 ? low : 0) + 14
            : names[i].y,
        names[i].wide,
      ]),
    );
    of.forEach((i, k) => (out[i] = side < 0 ? -found[k] : found[k]));
  }
  return out;
}

/** Draw into `el`. @param {{board: {series: object[], points: object[], note: string}|null, chosen: {tokens:
 *  number}|null}} data  `chosen`: the displayed run */
export function render(el, data) {
  const series = data.board?.series ?? [],
    points = data.board?.points ?? [],
    all = [
      ...series.flatMap((s) => s.points.map((p, i) => ({ ...p, name: i === s.points.length - 1 ? s.name : "" }))),
      ...points,
    ];
  const width = Math.max(260, kit.size(el).width || 560), height = Math.max(150, kit.size(el).height || 190);
  el.classList.toggle("is-empty", !all.length);
  kit.set(el, {
    "data-empty":
      "Not measured yet. Run “workbench bench --suite vision” to measure every drafter and compressor on held-out scenes; it writes assets/boards/vision.json.",
  });
  const summaryText = [
    ...series.map(
      (s) => `${s.name}: ${s.points.map((p) => `${Math.round(p.tokens)} tokens ${p.tau.toFixed(2)}`).join(", ")}`,
    ),
    ...points.map((p) => `${p.name}: ${Math.round(p.tokens)} tokens ${p.tau.toFixed(2)}`),
  ].join("; ");
  const state = kit.frame(
    el,
    { width, height, label: `Mean accepted length by number of vision tokens kept. ${summaryText || "Not measured yet"}` },
    (svg) => {
      const add = (tag, className) => svg.appendChild(kit.s(tag, { class: className }));
      return {
        grid: add("g", ""),
        counts: add("g", ""),
        chosen: add("path", "wb-keep-chosen"),
        leads: add("g", ""),
        lines: add("g", ""),
        points: add("g", ""),
        labels: add("g", ""),
        axis: add("text", "wb-mute"),
      };
    },
  );
  if (!all.length) return;
  const { x, y, end, levels, counts } = scale(all, width, height),
    d = (p) => `${x(p.tokens).toFixed(1)} ${y(p.tau).toFixed(1)}`;
  kit.fit(state.grid, levels.length, () => kit.group("line", "text"));
  levels.forEach((v, i) => {
    const [rule, text] = state.grid.children[i].children;
    kit.set(rule, { class: "wb-grid", x1: BOX.left, x2: end, y1: y(v), y2: y(v) });
    kit.set(text, { class: "wb-mute", x: 0, y: y(v) + 4 });
    kit.write(text, v.toFixed(levels[1] - levels[0] < 0.5 ? 2 : 1));
  });
  kit.fit(state.counts, counts.length, () => kit.s("text", { class: "wb-mute", "text-anchor": "middle" }));
  counts.forEach((n, i) => {
    kit.set(state.counts.children[i], { x: x(n), y: height - BOX.bottom + 15 });
    kit.write(state.counts.children[i], `${n}`);
  });
  const whiskers = (list) =>
    list.map((p) => `M${x(p.tokens).toFixed(1)} ${y(p.low).toFixed(1)}V${y(p.high).toFixed(1)}`).join("");
  kit.fit(state.lines, series.length, () => kit.group("path", "path", "path"));
  series.forEach((s, i) => {
    const [line, whisker, marks] = state.lines.children[i].children, [name, dash, mark] = STYLES[i % STYLES.length];
    kit.set(line, {
      class: `wb-keep-line ${name}`,
      "stroke-dasharray": dash,
      d: s.points.map((p, k) => `${k ? "L" : "M"}${d(p)}`).join(""),
    });
    kit.set(whisker, { class: `wb-keep-whisker ${name}`, d: whiskers(s.points) });
    kit.set(marks, { class: `wb-keep-mark ${name}`, d: s.points.map((p) => `M${d(p)}${MARKS[mark]}`).join("") });
  });
  kit.fit(state.points, points.length, () => kit.group("path", "path"));
  points.forEach((p, i) => {
    kit.set(state.points.children[i].children[0], { class: "wb-keep-whisker wb-line-other", d: whiskers([p]) });
    kit.set(state.points.children[i].children[1], {
      class: "wb-keep-mark wb-line-other",
      d: `M${d(p)}${MARKS.circle}`,
    });
  });
  // Lines are close together: their names are above them, those of single marks below, each with a line to its mark.
  const named = [...series.map((s) => ({ name: s.name, ...s.points.at(-1) })), ...points],
    most = Math.max(...all.map((p) => p.tokens));
  const heights = namesAt(
    named.map((p, i) => ({
      x: x(p.tokens),
      y: y(p.tau),
      wide: wide(p.name),
      side: p.tokens >= 0.8 * most ? 0 : i < series.length ? -1 : 1,
    })),
    Math.min(...all.map((p) => y(p.high))),
    Math.max(...all.filter((p) => p.tokens > 0).map((p) => y(p.low))),
  );
  kit.fit(state.leads, named.length, () => kit.s("path", { class: "wb-grid", fill: "none" }));
  kit.fit(state.labels, named.length, () => kit.s("text"));
  named.forEach((p, i) => {
    kit.set(state.labels.children[i], {
      x: x(p.tokens) + 7,
      y: heights[i] + 4,
      class: i < series.length ? "" : "wb-mute",
    });
    kit.write(state.labels.children[i], p.name);
    kit.set(state.leads.children[i], {
      d: `M${x(p.tokens).toFixed(1)} ${y(p.tau).toFixed(1)}L${(x(p.tokens) + 5).toFixed(1)} ${heights[i].toFixed(1)}`,
    });
  });
  const at = data.chosen;
  kit.set(state.chosen, {
    display: at ? "inline" : "none",
    d: at ? `M${x(Math.min(at.tokens, Math.max(...all.map((p) => p.tokens))))} ${BOX.top}V${height - BOX.bottom}` : "",
  });
  kit.set(state.axis, { x: width, y: height - 4, "text-anchor": "end" });
  kit.write(state.axis, "vision tokens of the drafter, square-root scale");
}
