import assert from "node:assert/strict";
import { test } from "node:test";
import { isDue, isExpected } from "./autobaseline.js";

const round = { method: "draft-model" };
const page = (changes = {}) => ({
  catalogue: { baseline: "autoregressive", barred: {} },
  run: { from: "live", state: "finished", rounds: [round], key: "k", header: { method: "draft-model" } },
  plain: null,
  plainKey: "",
  autoBaseline: true,
  ...changes,
});

test("a finished run with new settings needs a baseline", () => {
  assert.ok(isDue(page()));
  assert.ok(isDue(page({ plain: { state: "finished" }, plainKey: "other" })));
});

test("no baseline is due if there is one, or if it is switched off or not offered", () => {
  assert.ok(!isDue(page({ plain: { state: "finished" }, plainKey: "k" })));
  assert.ok(!isDue(page({ plain: { from: "live", state: "running" }, plainKey: "k" })), "it is being measured");
  assert.ok(!isDue(page({ autoBaseline: false })));
  assert.ok(!isDue(page({ catalogue: { baseline: "autoregressive", barred: { baseline: "not here" } } })));
  assert.ok(!isDue(page({ catalogue: { baseline: "autoregressive", estimates: true } })), "a run costs a quota");
});

test("a baseline that failed is measured again after the next run", () => {
  assert.ok(isDue(page({ plain: { from: "live", state: "error" }, plainKey: "k" })));
});

test("recordings, cancelled runs and plain decoding itself need none", () => {
  const { run } = page();
  assert.ok(!isDue(page({ run: { ...run, from: "recorded" } })));
  assert.ok(!isDue(page({ run: { ...run, state: "cancelled" } })));
  const plain = { ...run, header: { method: "autoregressive" }, rounds: [{ method: "autoregressive" }] };
  assert.ok(!isDue(page({ run: plain })));
  assert.ok(isDue(page({ run: { ...plain, rounds: [...plain.rounds, round] } })), "it changed its method");
});

test("a baseline is expected during a run and while it is measured, not for plain decoding", () => {
  const running = { from: "live", state: "running", header: null }, choice = { method: "draft-model" };
  assert.ok(isExpected(page({ run: running, choice })));
  assert.ok(isExpected(page({ plain: running, choice })));
  assert.ok(!isExpected(page({ choice })), "neither runs");
  assert.ok(!isExpected(page({ run: running, choice: { method: "autoregressive" } })));
  assert.ok(!isExpected(page({ run: running, choice, autoBaseline: false })));
});
