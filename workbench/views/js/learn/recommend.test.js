import assert from "node:assert/strict";
import { test } from "node:test";

import { figure, layout, progress, textOf, times } from "./recommend.js";
import { advice, words } from "./worktable.js";

const speedup = (value, low = null, high = null) => ({ value, low, high, n: 3 });

test("a speed-up shows its interval, or that there is none", () => {
  assert.equal(times(null), "–");
  assert.equal(figure(speedup(1.5, 1.25, 2)), "1.50× (1.25–2.00×)");
  assert.equal(figure({ ...speedup(1.5), n: 1 }), "1.50×, one run: no confidence interval yet");
  assert.equal(figure(speedup(1.5)), "1.50×, 3 runs: no confidence interval yet");
});

test("bars start at 0, the line of plain decoding is inside the range, and wide intervals are cut", () => {
  const of = (...args) => ({ speedup: speedup(...args) });
  const { one, bars } = layout([of(2, 1, 50), of(1, 0.5, 1.5), of(0.5)]);
  assert.equal(one, 25);
  assert.deepEqual(bars[0], { to: 50, from: 25, until: 100, cut: true });
  assert.deepEqual(bars[1], { to: 25, from: 12.5, until: 37.5, cut: false });
  assert.deepEqual(bars[2], { to: 12.5, from: null, until: null, cut: false });
  assert.ok(layout([{ speedup: speedup(0.5, 0.4, 0.6) }]).one < 100, "plain decoding is visible if all methods are slower");
});

test("the progress shows the time and the reason for waiting", () => {
  const advice = { spent: 12.4, seconds: 60, done: 5, text: "prompt 1/2 · suffix", waiting: "", last: false };
  assert.equal(progress(advice), "12 of 60 s, 5 runs · prompt 1/2 · suffix");
  assert.equal(progress({ ...advice, waiting: "waiting: another run is using the device" }), "12 of 60 s, 5 runs · waiting: another run is using the device");
  assert.equal(progress({ ...advice, text: "done", last: true }), "Measured: 5 runs in 12 s.");
  assert.equal(progress({ ...advice, done: 1, text: "stopped", last: true }), "Stopped after one run.");
});

test("a file that is too large or not text gives an error", async () => {
  const file = (bytes, size = bytes.length) => ({ size, arrayBuffer: async () => Uint8Array.from(bytes).buffer });
  assert.deepEqual(await textOf(file([72, 105]), 2), { text: "Hi" });
  for (const wrong of [[0xff, 0xfe, 0x41], [72, 0, 105]])
    assert.equal((await textOf(file(wrong), 9)).error.message, "This file is not text.");
  for (const large of [file([72], 8001), file(Array(2001).fill(72))])
    assert.equal((await textOf(large, 2000)).error.message, "The file has more than 2,000 characters.");
});

test("table cells show speed-up, interval and τ; each kind has a recommendation", () => {
  const cell = { speedup: { value: 1.5, low: 1.25, high: 2, verdict: "faster" }, tau: { value: 2 } };
  assert.deepEqual(words(cell), { value: "1.50× ✓", more: "1.25–2.00×, τ\u00a02.00" });
  assert.deepEqual(words({ ...cell, speedup: { ...cell.speedup, low: null, verdict: "one run" } }), { value: "1.50×", more: "τ\u00a02.00" });
  assert.equal(words(undefined), null);
  const target = { methods: [{ method: "suffix", title: "Suffix" }], best: { chat: "suffix", maths: null } };
  assert.equal(advice(target, "chat"), "Suffix");
  assert.equal(advice(target, "maths"), "plain decoding: no method was faster");
});
