import assert from "node:assert/strict";
import { test } from "node:test";
import { feed, pause, play, wordSteps } from "./player.js";

const rounds = [{ seconds: 0.001 }, { seconds: 0.001 }, { seconds: 0.001 }];

test("a round is shown for its recorded time divided by the speed, at least one frame", () => {
  assert.equal(pause({ seconds: 0.1 }, 0.5), 200);
  assert.equal(pause({ seconds: 0.001 }, 1), 16);
});

test("playback shows every round once, in order, and ends", async () => {
  const seen = [];
  await new Promise((over) => play({ rounds, from: 0, speed: () => 1, show: (i) => seen.push(i), over }));
  assert.deepEqual(seen, [0, 1, 2]);
});

test("playback from the end starts over", async () => {
  const seen = [];
  await new Promise((over) => play({ rounds, from: 2, speed: () => 1, show: (i) => seen.push(i), over }));
  assert.deepEqual(seen, [0, 1, 2]);
});

test("word by word, the tokens of a round share its time, and a round without tokens is one step", () => {
  const steps = wordSteps([{ seconds: 0.2, emitted: [{}, {}] }, { seconds: 0.1, emitted: [] }, { emitted: [{}] }]);
  assert.deepEqual(steps.map((s) => [s.round, s.token]), [[0, 0], [0, 1], [1, null], [2, 0]]);
  assert.deepEqual(steps.map((s) => s.seconds), [0.1, 0.1, 0.1, 0]);
});

test("a stopped feed delivers all rounds; with reduced motion all arrive at once", () => {
  const seen = [];
  feed({ rounds, speed: 1, still: false, arrive: (n) => seen.push(n) })();
  assert.deepEqual(seen, [1, 3]);
  feed({ rounds, speed: 1, still: true, arrive: (n) => seen.push(n) });
  assert.equal(seen.at(-1), 3);
});
