import assert from "node:assert/strict";
import { test } from "node:test";
import { stalls, words } from "./stalls.js";

/** Rounds of four drafted tokens with the given durations in seconds. */
const rounds = (seconds, method = "draft-model") =>
  seconds.map((s) => ({ method, seconds: s, nodes: { tokens: [1, 2, 3, 4] } }));

test("later rounds of the same list are also checked", () => {
  const list = rounds([1, 1.1, 0.9, 1, 1.05]);
  assert.equal(stalls(list).size, 0);
  list.push(...rounds([12]));
  assert.deepEqual([...stalls(list).keys()], [5]);
  assert.match(words(stalls(list), new Map()), /^1 round stalled, up to 12 times as long as similar rounds/);
  assert.match(words(new Map(), stalls(list)), /^1 round of the baseline stalled, up to 12 times/);
  assert.equal(words(new Map(), new Map()), "");
});

test("rounds with large scatter are not stalled, and each method has its own median", () => {
  assert.equal(
    stalls(rounds([0.5, 1, 1.5, 2, 2.5, 3, 3.5, 7])).size,
    0,
    "seven is more than three times the median, but the scatter is large",
  );
  assert.equal(stalls([...rounds(Array(12).fill(1)), ...rounds(Array(5).fill(8), "draft-tree")]).size, 0);
});
