import assert from "node:assert/strict";
import { test } from "node:test";
import { countTicks, timeTicks } from "./axis.js";

test("ticks of time are round numbers from 0 to the end", () => {
  assert.deepEqual(
    timeTicks(0.25, 1000, "ms").map((t) => [Math.round(t.x), t.text]),
    [0, 50, 100, 150, 200, 250].map((ms) => [ms, `${ms} ms`]),
  );
  assert.deepEqual(timeTicks(2.2, 10).map((t) => t.text), ["0 s", "0.5 s", "1 s", "1.5 s", "2 s"]);
});

test("ticks of counts are whole numbers", () => {
  assert.deepEqual(countTicks(1), [0, 1]);
  assert.deepEqual(countTicks(15), [0, 5, 10, 15]);
  assert.deepEqual(countTicks(7), [0, 2, 4, 6]);
});
