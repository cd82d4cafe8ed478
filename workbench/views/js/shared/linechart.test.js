import assert from "node:assert/strict";
import { test } from "node:test";
import * as chart from "./linechart.js";
const { ceiling, layout, levels, line, look, nearest, place, placeBands, quarters, reading, spread, thin } = chart;


test("a missing value interrupts the line", () => {
  const d = line([[0, 1], [1, null], [2, 0], [3, 1]], (x) => x, (y) => y);
  assert.equal(d, "M0.0 1.0M2.0 0.0L3.0 1.0");
});

test("labels of distant marks are in one row, uncut; labels of near marks are cut, and none overlaps or is left out", () => {
  const marks = [0, 1, 2, 3].map((index) => ({ index, text: "depth 2 → 5" })), far = place(marks, (i) => 120 * i, 900);
  assert.deepEqual(far.map((m) => [m.row, m.label]), marks.map((m) => [0, m.text]));
  const two = place(marks.slice(0, 2), (i) => 40 + 40 * i, 500);
  assert.deepEqual(
    two.map((m) => [m.row, m.label]),
    [
      [0, "depth 2 → 5"],
      [1, "depth 2 → 5"],
    ],
    "a second row is used before labels are cut",
  );
  for (const [step, width, n] of [[10, 500, 4], [0, 240, 6], [3, 240, 8], [40, 400, 9], [29, 300, 10]]) {
    const placed = place(
      Array.from({ length: n }, (_, index) => ({ index, text: "draft-model → draft-tree" })),
      (i) => Math.min(width, 30 + step * i),
      width,
    );
    assert.ok(placed.every((m) => m.label.length > 0), "every change has a label");
    for (const row of [0, 1]) {
      const boxes = placed.filter((m) => m.row === row).map((m) => [m.start, m.start + 6.1 * m.label.length]);
      boxes.forEach(([start, end], k) =>
        assert.ok(start >= (k ? boxes[k - 1][1] : 0) && end <= width, `${step} ${width}: ${JSON.stringify(boxes)}`),
      );
    }
  }
});

test("a label at the right border extends to the left", () => {
  const [only] = place([{ index: 0, text: "depth 2 → 5" }], () => 480, 500);
  assert.deepEqual([only.label, only.start < 480], ["depth 2 → 5", true]);
});

test("thinning keeps the minimum and maximum of each group, in order", () => {
  const points = Array.from({ length: 1000 }, (_, i) => [i, i === 500 ? 9 : i % 2]), thinned = thin(points, 100);
  assert.ok(thinned.length <= 110);
  assert.ok(thinned.some(([, v]) => v === 9), "the single peak is kept");
  assert.ok(thinned.every(([x], i) => i === 0 || x > thinned[i - 1][0]));
  assert.equal(thin(points, 2000), points);
});

test("an axis ends at a round number above its values", () => {
  assert.deepEqual([ceiling(203), ceiling(9.1), ceiling(1), ceiling(0)], [300, 10, 1, 1]);
});

test("method bands adjoin, and a name that does not fit is cut or left out", () => {
  const bands = [
    { name: "Draft model", from: 0, to: 9 },
    { name: "Draft tree, sampled", from: 10, to: 14 },
    { name: "Autoregressive", from: 15, to: 16 },
  ];
  const placed = placeBands(bands, (i) => 10 * i);
  assert.deepEqual(placed.map((b) => [b.start, b.end]), [[0, 100], [100, 150], [150, 160]]);
  assert.deepEqual(placed.map((b) => b.label), ["Draft model", "Draft …", ""]);
});

test("names at line ends do not overlap, keep their order and stay inside the drawing", () => {
  assert.deepEqual(spread([50, 90], 13, 12, 180), [50, 90]);
  assert.deepEqual(spread([10, 11, 80], 16, 12, 100), [12, 28, 80]);
  assert.deepEqual(spread([90, 95, 99], 16, 12, 100), [68, 84, 100]);
  const close = spread([100, 101, 99], 13, 12, 180), sorted = [...close].sort((a, b) => a - b);
  assert.ok(sorted[1] - sorted[0] >= 13 && sorted[2] - sorted[1] >= 13, `${close}`);
  assert.ok(close[2] < close[0] && close[0] < close[1], "in the order of the lines");
  assert.ok(Math.max(...spread([179, 180, 178], 13, 12, 180)) <= 180);
});

test("an axis has five levels up to a round value above the maximum, or to the given top", () => {
  assert.equal(quarters([0.2, 7.3], null).at(-1), 8);
  assert.deepEqual(quarters([0.4], 1), [0, 0.25, 0.5, 0.75, 1]);
  assert.equal(quarters([], null, 1).at(-1), 1.5);
  assert.equal(quarters([1.2, 2.2], null, 1)[0], 1);
});

test("round steps reach the largest value", () => {
  assert.deepEqual([chart.steps([0.2, 3.9]), chart.steps([0.31])], [[0, 1, 2, 3, 4], [0, 0.1, 0.2, 0.3, 0.4]]);
  assert.deepEqual(chart.steps([null, undefined, 4]), [0, 1, 2, 3, 4]);
});

test("evenly spaced values print evenly spaced", () => {
  const text = (values, least) => levels(values, least).ticks.map((tick) => tick.text);
  assert.deepEqual(text(quarters([1.2, 2.2], 1.5, 1), 1), ["1.000", "1.125", "1.250", "1.375", "1.500"]);
  assert.deepEqual(text([0, 2.5, 5], 1), ["0.0", "2.5", "5.0"]);
});

const SERIES = [
  { name: "a", colour: "accepted", points: [[0, 0.5], [1, null], [2, 0.75, 0.6, 0.9]], end: "a" },
  { name: "b", colour: "ink", points: [[0, 0.25], [2, 0.1]] },
];
const DATA = {
  series: SERIES,
  x: { from: 0, to: 2, ticks: [], words: (i) => `round ${i + 1}` },
  y: levels([0, 0.5, 1], 1, (v) => `${Math.round(100 * v)} %`),
};

test("the crosshair reads every line at one place, with unit and interval, and leaves out missing values", () => {
  const texts = (at) => reading(DATA, at).map((row) => row.text);
  assert.deepEqual(texts(2), ["round 3", "a: 75 % (60 % – 90 %)", "b: 10 %"]);
  assert.deepEqual(texts(1), ["round 2"]);
  const { x } = layout(DATA, { width: 400, height: 140 });
  assert.equal(nearest(SERIES, x(2) - 3, x), 2);
  assert.equal(nearest(SERIES, x(0) + 3, x), 0);
  assert.equal(nearest([], 10, x), null);
});

test("values map into the plot, beyond its range to its border, and scales need not be linear", () => {
  const { x, y, left, right, top, bottom } = layout(DATA, { width: 400, height: 140 });
  assert.ok(x(0) >= left && x(2) <= right && Math.abs(x(1) - (x(0) + x(2)) / 2) < 1e-9);
  assert.deepEqual([y(0), y(1), y(7), y(-1)], [bottom, top, top, bottom]);
  const root = layout({ ...DATA, x: { ...DATA.x, place: Math.sqrt } }, { width: 400, height: 140 });
  assert.ok(root.x(1) > x(1));
});

test("names have room beside the lines, or below them if they are too wide", () => {
  const long = { ...DATA, series: [{ ...SERIES[0], end: "teacher-forced, position 10, of the last run" }] };
  const [narrow, wide] = [320, 1200].map((width) => layout(long, { width, height: 200 }));
  assert.deepEqual([narrow.below, wide.below], [true, false]);
  assert.ok(narrow.height === 200 && narrow.high < 200, "the rows below fit the height of the element");
  assert.ok(wide.right < 1200 - 6 * long.series[0].end.length);
  assert.ok(layout({ ...long, height: 200 }, { width: 320, height: 0 }).height > 200, "a fixed plot grows by them");
});

test("a long name takes two lines, broken between words, and only then is cut", () => {
  assert.deepEqual(chart.twoLines("temperature 0", 20), ["temperature 0"]);
  assert.deepEqual(chart.twoLines("formula with a constant rate", 16), ["formula with a", "constant rate"]);
  assert.deepEqual(chart.twoLines("one two three four five six", 9), ["one two", "three fo…"]);
});

test("lines of one colour differ in mark or dash, and marks of repeated colours are hollow", () => {
  const looks = Array.from({ length: 8 }, (_, i) => look(i));
  assert.equal(new Set(looks.map((one) => JSON.stringify(one))).size, 8);
  assert.deepEqual([0, 3, 4, 7].map((i) => look(i).hollow), [false, false, true, true]);
});
