import assert from "node:assert/strict";
import test from "node:test";
import { clamp } from "../shared/form.js";
import { axes, first, fromQuery, plan, request, spec, suggestion, toQuery, values } from "./choice.js";
import { axisOf, interval, label, shade, words } from "./grid.js";

const depth = { name: "depth", kind: "int", default: 4, ge: 1, le: 12, doc: "drafted tokens" },
  policy = { name: "policy", kind: "choice", default: "fixed", choices: ["fixed", "confidence"] };
const catalogue = {
  numbers: {
    repeats: { name: "repeats", kind: "int", default: 2, ge: 1, le: 21 },
    limit: { name: "limit", kind: "int", default: 2, ge: 1, le: 12 },
    max_new_tokens: { name: "max_new_tokens", kind: "int", default: 48, ge: 1, le: 4096 },
    seed: { name: "seed", kind: "int", default: 0, ge: 0, le: 2147483647 },
  },
  targets: [{ name: "text-target" }],
  drafters: [{ name: "small" }, { name: "other", available: false }],
  groups: ["stories", "code"],
  most: 20,
  methods: [
    { name: "autoregressive", params: [] },
    { name: "draft-model", params: [policy, depth] },
  ],
  options: [
    { name: "max_new_tokens", kind: "int", default: 64, ge: 1, le: 4096 },
    { name: "seed", kind: "int", default: 0, ge: 0, le: 99 },
  ],
  sampling: [{ name: "temperature", kind: "float", default: 1, ge: 0, le: 2 }],
  chosen: { target: "text-target", method: "draft-model" },
};

test("the text of an axis is parsed by the type of its parameter", () => {
  const read = (name, text) => values({ name, text }, spec(name, "draft-model", catalogue));
  assert.deepEqual(read("depth", "1, 2,4").values, [1, 2, 4]);
  assert.deepEqual(read("depth", "1..3, 6").values, [1, 2, 3, 6]);
  assert.deepEqual(read("temperature", "0, 0.7").values, [0, 0.7]);
  assert.deepEqual(read("policy", "fixed, confidence").values, ["fixed", "confidence"]);
  assert.deepEqual(read("method", "draft-model:depth=2,policy=fixed; autoregressive").values, [
    "draft-model:depth=2,policy=fixed",
    "autoregressive",
  ]);
  for (const [name, text] of [
    ["depth", "1, 13"],
    ["depth", "1.5"],
    ["policy", "wild"],
    ["drafter", "other"],
    ["depth", "2, 2"],
    ["depth", " "],
    ["width", "1"],
  ])
    assert.ok(read(name, text).problem, `${name}=${text}`);
});

test("an invalid sweep is reported with the reason", () => {
  const choice = first(catalogue), with_ = (...given) => plan({ ...choice, axes: given }, catalogue);
  assert.equal(plan(choice, catalogue).problem, "");
  assert.equal(plan(choice, catalogue).cells, 8);
  assert.match(with_({ name: "depth", text: "1" }, { name: "depth", text: "2" }).problem, /same/);
  assert.match(with_({ name: "depth", text: "1..12" }, { name: "temperature", text: "0, 1" }).problem, /24 cells; the limit is 20/);
});

test("an address restores the axes and settings", () => {
  const choice = {
    ...first(catalogue),
    axes: [{ name: "depth", text: "1, 2" }],
    params: { policy: "confidence" },
    groups: ["code"],
    repeats: 3,
  };
  assert.deepEqual(fromQuery(`?tab=sweep&${toQuery(choice, catalogue)}`, catalogue, clamp), { choice, problems: [] });
  assert.equal(
    fromQuery("?tab=sweep&axis=depth=99&axis=nonsense&group=x&repeats=0&other=1", catalogue, clamp).problems.length,
    4,
  );
});

test("the request omits parameters that an axis varies", () => {
  const choice = { ...first(catalogue), params: { depth: 3, policy: "confidence" } };
  assert.deepEqual(request(choice, catalogue, clamp).params, { policy: "confidence" });
  assert.deepEqual(
    request({ ...choice, axes: [{ name: "prompts", text: "stories, code" }] }, catalogue, clamp).group,
    [],
  );
  assert.ok(axes(choice, catalogue).some((axis) => axis.value === "policy"));
});

test("suggested values are valid", () => {
  for (const { value } of axes(first(catalogue), catalogue)) {
    const known = spec(value, "draft-model", catalogue);
    assert.equal(values({ name: value, text: suggestion(known) }, known).problem, "", value);
  }
});

test("a cell shows its figure, interval and n, also in its label", () => {
  const found = { value: 1.924, low: 1.5, high: 2.3, n: 4 },
    cell = { at: [1], state: "done", figures: { speedup: found } };
  assert.equal(words("speedup", found.value), "1.92×");
  assert.equal(interval("speedup", found), "1.50–2.30×, n = 4");
  assert.equal(interval("tau", { value: 2, low: null, high: null, n: 1 }), "n = 1");
  assert.equal(
    label(cell, { depth: [1, 2] }, "speedup", "speed-up"),
    "depth 2: speed-up 1.92×, 95 % confidence interval 1.50× to 2.30×, n = 4",
  );
  assert.equal(
    label({ at: [0], state: "failed", error: "no heads" }, { depth: [1] }, "speedup", "speed-up"),
    "depth 1: failed: no heads",
  );
  assert.deepEqual([shade(1, 1, 3), shade(3, 1, 3), shade(2, 2, 2), shade(null, 1, 2)], [0, 1, 0.5, 0]);
});

test("names along an axis keep their places while cells fill, with room for the first and the last", () => {
  const numbers = axisOf("depth", [1, 2, 6]);
  assert.deepEqual([numbers.places, numbers.x.from, numbers.x.to], [[1, 2, 6], 1, 6]);
  const names = axisOf("method", ["autoregressive", "prompt-lookup", "<b>"]);
  assert.deepEqual([names.places, names.x.from, names.x.to], [[0, 1, 2], -0.5, 2.5]);
  assert.deepEqual(names.x.ticks.map((tick) => tick.text), ["autoregressive", "prompt-lookup", "<b>"]);
  assert.equal(names.x.words(1), "method prompt-lookup");
  assert.deepEqual(axisOf("mixed", [0, "x"]).places, [0, 1]);
});
