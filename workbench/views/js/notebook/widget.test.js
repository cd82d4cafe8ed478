import assert from "node:assert/strict";
import { test } from "node:test";
import { fromPython, isDark, toPython } from "./widget.js";
import { layout, words } from "../live/clock.js";
import { step } from "./lane.js";
import { switched } from "./panel.js";

test("a selection is unchanged after a round trip to Python", () => {
  for (const pin of [
    { round: 0, node: 0, token: null },
    { round: 3, node: "target", token: 1 },
    { round: 2, node: null, token: 0, on: "beside" },
  ]) {
    assert.deepEqual({ ...pin }, { ...fromPython(toPython(pin)), ...(pin.on && { on: pin.on }) });
  }
  assert.deepEqual([toPython(null), fromPython({})], [{}, null]);
  assert.deepEqual(toPython(null, 5), { patch: 5 });
  assert.equal(fromPython({ patch: 5 }), null);
});

test("the surrounding theme is recognised, whatever its name", () => {
  const page = (dataset, classes = [], named = {}) => ({
    documentElement: { getAttribute: (n) => named[n] ?? null },
    body: { dataset, classList: { contains: (c) => classes.includes(c) } },
  });
  assert.equal(isDark(page({ jpThemeLight: "false" })), true);
  assert.equal(isDark(page({ jpThemeLight: "true" }, ["dark"])), false);
  assert.equal(isDark(page({ vscodeThemeKind: "vscode-dark" })), true);
  assert.equal(isDark(page({ vscodeThemeKind: "vscode-high-contrast-light" })), false);
  assert.equal(isDark(page({}, [], { theme: "dark" })), true);
  assert.equal(isDark(page({})), false);
});

const round = (index, started_s, seconds, tokens) => ({
  index,
  started_s,
  seconds,
  emitted: Array(tokens).fill("bonus"),
});
const whole = (r) => [{ kind: "verify", start: r.started_s, end: r.started_s + r.seconds }];

test("lanes share one clock: width is proportional to time, from the end of each prefill", () => {
  const traces = [
    { name: "a", rounds: [round(0, 5, 1, 2), round(1, 6, 1, 2)] },
    { name: "b", rounds: [round(0, 0, 4, 1)] },
    { name: "none", rounds: [] },
  ];
  const { rows, ticks, seconds } = layout(traces, 400, whole);
  assert.equal(seconds, 4);
  assert.deepEqual(rows[0].boxes.map((b) => [b.x, b.width]), [[0, 100], [100, 100]]);
  assert.deepEqual(rows[1].boxes.map((b) => [b.x, b.width]), [[0, 400]]);
  assert.deepEqual(ticks.map((t) => t.text), ["0 s", "1 s", "2 s", "3 s", "4 s"]);
  assert.equal(words(rows[0]), "4 tokens · 2.00 s · 2 tokens/s");
  assert.equal(words(rows[2]), "0 tokens · 0.00 s");
});

test("keys move along a lane and to the next one, and stop at the ends", () => {
  const traces = [{ rounds: [1, 2, 3] }, { rounds: [1] }];
  assert.deepEqual(step({ trace: 0, round: 2 }, "ArrowRight", traces), { trace: 0, round: 2 });
  assert.deepEqual(step({ trace: 0, round: 2 }, "ArrowDown", traces), { trace: 1, round: 0 });
  assert.deepEqual(step({}, "ArrowRight", traces), { trace: 0, round: 1 });
  assert.deepEqual([step({}, "Escape", traces), step({}, "x", traces)], [{}, null]);
});

test("another method keeps the sampling parameters and starts with its own defaults", () => {
  const sampling = [{ name: "temperature", default: 0 }],
    methods = [
      { name: "a", params: [{ name: "depth", default: 4 }] },
      { name: "b", params: [{ name: "depth", default: 2 }] },
    ];
  assert.deepEqual(switched(methods, sampling, "b", { method: "a", depth: 9, temperature: 0.7 }), {
    method: "b",
    depth: 2,
    temperature: 0.7,
  });
});
