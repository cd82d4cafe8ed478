import assert from "node:assert/strict";
import { test } from "node:test";
import { budgetBars, errorWords, rankBars, theoryWords, widthWords } from "./whatif.js";

const budget = {
  tau: 2,
  draft_s: 0.002,
  verify_s: 0.01,
  accept_s: 0.0005,
  other_s: 0.0015,
  plain_s: 0.008,
  plain_verify_s: 0.007,
};

test("the budget's bars add up to the round and to the plain steps for the same tokens", () => {
  const bars = budgetBars(budget);
  assert.deepEqual(bars.names, ["one round", "2.00 steps of plain decoding"]);
  assert.ok(Math.abs(bars.totals[0] - 14) < 1e-9);
  assert.ok(Math.abs(bars.totals[1] - 16) < 1e-9);
  assert.equal(bars.parts.draft[1], 0);
  assert.deepEqual(budgetBars({ ...budget, plain_s: null }).names, ["one round"]);
});

const rescues = [
  { depth: 1, tested: 6, ranks: { 1: 3, 2: 1, 5: 1 }, beyond: 1, unknown: 0 },
  { depth: 2, tested: 3, ranks: { 1: 1 }, beyond: 0, unknown: 2 },
];

test("ranks are counted by depth, and kinds that never occur are left out", () => {
  const bars = rankBars(rescues);
  assert.deepEqual(
    bars.map((b) => [b.name, b.counts]),
    [
      ["rank 1", [3, 1]],
      ["rank 2", [1, 0]],
      ["rank 3 or later", [1, 0]],
      ["not among the recorded ranks", [1, 0]],
      ["ranking not recorded", [0, 2]],
    ],
  );
  assert.equal(rankBars([{ ranks: { 1: 2 }, beyond: 0, unknown: 0 }]).length, 1);
});

test("the sentence about the tree's width states unknown values", () => {
  assert.equal(
    widthWords(
      [
        { width: 1, tau: 1.5 },
        { width: 2, tau: 1.75 },
      ],
      rescues,
    ),
    "The draft of rank 2 was the target's token in 1 of 9 tests. Estimated τ of a tree, from the acceptance rate at each depth: 1.50 at width 1, 1.75 at width 2. 2 tests without a recorded ranking count as failed.",
  );
  const one = [{ depth: 1, tested: 4, ranks: { 1: 3 }, beyond: 0, unknown: 1 }],
    none = [{ depth: 1, tested: 3, ranks: { 1: 3 }, beyond: 0, unknown: 0 }];
  assert.match(
    widthWords([{ width: 1, tau: 1.75 }], one),
    /1\.75 at width 1\. One test without a recorded ranking counts as failed\.$/,
  );
  assert.match(widthWords([{ width: 1, tau: 2 }], none), /2\.00 at width 1\.$/);
  assert.equal(widthWords([], []), "No drafts in this run.");
});

test("the theory sentence has best length and bound only if they are known", () => {
  const t = { rate: 0.5, tau: 1.9, tau_by_position: 1.9, tau_iid: 1.8, best: null, transport: [] };
  assert.ok(!theoryWords(t).includes("best"));
  assert.ok(theoryWords({ ...t, best: { depth: 3, speedup: 1.4 } }).includes("3 draft levels would be fastest: 1.40 times"));
  assert.ok(
    theoryWords({ ...t, transport: [{ siblings: 2, places: 9, accepted: 0.5, bound: 0.7 }] }).includes(
      "2 sampled siblings: a draft was accepted at 50 % of 9 positions; the maximum for any exact rule is 70 %",
    ),
  );
  assert.equal(theoryWords({ rate: null }), "");
});

test("a prediction is followed by its measured error, if there is one", () => {
  const found = { errors: { lengths: "Against 9 real runs: 1.00." } };
  assert.equal(errorWords(found, ["lengths", "shorter drafts"], ["plain", "no draft"]), " Shorter drafts: Against 9 real runs: 1.00.");
  assert.equal(errorWords({}, ["lengths", "shorter drafts"]), "");
});
