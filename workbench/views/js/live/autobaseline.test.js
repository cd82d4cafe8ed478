import assert from "node:assert/strict";
import { test } from "node:test";
import { isDue } from "./autobaseline.js";

const round = { method: "draft-model" };
const page = (changes = {}) => ({
  catalogue: { baseline: "autoregressive", barred: {} },
  run: { from: "live", state: "finished", rounds: [round], key: "k", header: { method: "draft-model" } },
  plain: null,
  plainKey: "",
  ...changes,
});

test("a finished run with new settings needs a baseline", () => {
  assert.ok(isDue(page(), true));
  assert.ok(isDue(page({ plain: { state: "finished" }, plainKey: "other" }), true));
});

test("no baseline is due if there is one, or if it is switched off or not offered", () => {
  assert.ok(!isDue(page({ plain: { state: "finished" }, plainKey: "k" }), true));
  assert.ok(!isDue(page({ plain: { from: "live", state: "running" }, plainKey: "k" }), true), "it is being measured");
  assert.ok(!isDue(page(), false));
  assert.ok(!isDue(page({ catalogue: { baseline: "autoregressive", barred: { baseline: "not here" } } }), true));
  assert.ok(!isDue(page({ catalogue: { baseline: "autoregressive", estimates: true } }), true), "a run costs a quota");
});

test("a baseline that failed is measured again after the next run", () => {
  assert.ok(isDue(page({ plain: { from: "live", state: "error" }, plainKey: "k" }), true));
});

test("recordings, cancelled runs and plain decoding itself need none", () => {
  const { run } = page();
  assert.ok(!isDue(page({ run: { ...run, from: "recorded" } }), true));
  assert.ok(!isDue(page({ run: { ...run, state: "cancelled" } }), true));
  const plain = { ...run, header: { method: "autoregressive" }, rounds: [{ method: "autoregressive" }] };
  assert.ok(!isDue(page({ run: plain }), true));
  assert.ok(isDue(page({ run: { ...plain, rounds: [...plain.rounds, round] } }), true), "it changed its method");
});
