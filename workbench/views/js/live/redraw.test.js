import assert from "node:assert/strict";
import { test } from "node:test";
import { READ_MS, all, setDrawing } from "./redraw.js";
import * as store from "../shared/store.js";

/** A page whose frames are drawn by the test, and its timers. */
function shown(run) {
  const page = { run, plain: null }, timers = [], drawn = [];
  let scheduled = false;
  setDrawing(page, () => (scheduled = true));
  const frame = (now) => {
    if (scheduled) drawn.push([now, all(page, now, (act, ms) => timers.push([now + ms, act]))]);
    scheduled = false;
  };
  return { page, timers, drawn, frame };
}

const running = (pace) => ({ ...store.newRun("r"), state: "running", pace });

test("at full speed, every message draws the text; the rest is drawn a few times per second", () => {
  const { page, timers, drawn, frame } = shown(running(0));
  for (let now = 0; now < 1000; now += 100) (page.news(), frame(now));
  assert.equal(drawn.length, 10);
  assert.deepEqual(drawn.filter(([, whole]) => whole).map(([now]) => now), [0, READ_MS, 2 * READ_MS, 3 * READ_MS]);
  assert.ok(timers.every(([due]) => due % READ_MS === 0)); // the last message is drawn without a further one
});

test("postponed parts are drawn in time, without a further message", () => {
  const { page, timers, drawn, frame } = shown(running(0));
  for (const now of [0, 50, 90]) (page.news(), frame(now));
  assert.equal(timers.length, 1);
  timers[0][1]();
  frame(timers[0][0]);
  assert.deepEqual(drawn.at(-1), [READ_MS, true]);
});

test("a user's action is drawn immediately", () => {
  const { page, drawn, frame } = shown(running(0));
  page.news(), frame(0);
  page.draw(), frame(20);
  page.news(), frame(40);
  assert.deepEqual(drawn.map(([, whole]) => whole), [true, true, false]);
});

test("a paced, paused or ended run is always drawn completely", () => {
  for (const run of [
    running(8),
    { ...running(0), state: "finished" },
    { ...running(0), state: "paused" },
    { ...running(0), from: "recorded" },
    null,
  ]) {
    const { page, drawn, frame } = shown(run);
    for (const now of [0, 10, 20]) (page.news(), frame(now));
    assert.ok(drawn.every(([, whole]) => whole));
  }
});

test("the last message of a run draws everything immediately", () => {
  const run = running(0), { page, drawn, frame } = shown(run);
  page.news(), frame(0);
  run.state = "finished";
  page.news(), frame(10);
  assert.deepEqual(drawn, [[0, true], [10, true]]);
});
