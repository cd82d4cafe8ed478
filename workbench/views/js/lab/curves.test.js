import assert from "node:assert/strict";
import { test } from "node:test";
import * as curves from "./curves.js";

const RUN = {
  "loss/step 1": [[1, 8], [2, 7]],
  "teacher-forced/position 1": [[2, 0.5], [4, 0.8]],
  "teacher-forced/position 3": [[2, 0.4], [4, 0.6]],
  "on-policy/position 1": [[2, 0.3], [4, 0.61]],
  "on-policy/position 10": [[4, 0.1]],
  "on-policy/position 3": [[4, 0.2]],
  "on-policy/tau": [[2, 1.4], [4, 2.25]],
  "on-policy/speed-up": [[2, 0.8], [4, 1.3]],
  "on-policy tested/position 1": [[2, 90], [4, 80]],
};

test("positions are sorted, and only those of the group are listed", () => {
  assert.deepEqual(curves.positions(RUN), [1, 3, 10]);
  assert.deepEqual(curves.byPosition(RUN).map((s) => s.end), ["1", "3", "10"]);
});

test("teacher-forced and on-policy curves are paired at the first and last common position", () => {
  assert.deepEqual(
    curves.forcedAndOnPolicy(RUN).map((s) => [s.name, Boolean(s.dashed), s.style]),
    [
      ["teacher-forced, position 1", true, 0],
      ["on policy, position 1", false, 0],
      ["teacher-forced, position 3", true, 1],
      ["on policy, position 3", false, 1],
    ],
  );
  assert.deepEqual(curves.forcedAndOnPolicy({}), []);
});

test("a position with few rounds is not drawn", () => {
  const few = { ...RUN, "on-policy tested/position 1": [[2, 4], [4, 5]], "on-policy tested/position 3": [[4, 2]] };
  assert.deepEqual(curves.byPosition(few).map((s) => [s.end, s.points]), [["1", [[4, 0.61]]], ["10", [[4, 0.1]]]]);
  assert.deepEqual(curves.forcedAndOnPolicy(few).map((s) => s.end), ["1 forced", "1 on policy"]);
});

test("the explanation of the difference has the run's figures, and is empty until both are measured", () => {
  const explanation = curves.explainDifference(RUN);
  assert.match(explanation, /80 % of all positions; on policy, 61 % of its drafts are accepted at position 1 \(80 rounds\)/);
  assert.match(explanation, /The two rates differ because.*With so few rounds/);
  assert.equal(curves.explainDifference({ "teacher-forced/position 1": [[1, 0.9]] }), "");
  const at = (policy, rounds) =>
    curves.explainDifference({ "teacher-forced/position 1": [[1, 0.5]], "on-policy/position 1": [[1, policy]], "on-policy tested/position 1": [[1, rounds]] });
  assert.match(at(0.51, 400), /The two rates agree here/);
  assert.match(at(0.7, 400), /right more often on policy/);
  assert.doesNotMatch(at(0.7, 400), /They differ|With so few rounds/);
});

test("runs in one chart have distinct names; runs without τ are left out", () => {
  const runs = [
    { id: "20261124-180000-0a1b2c3d", head: "eagle-3", target: "text-target" },
    { id: "20261124-170000-0a1b4e5f", head: "eagle-3", target: "text-target" },
    { id: "20261124-160000-0a1b6071", head: "hydra", target: "text-target" },
  ];
  const found = curves.seriesOfRuns(runs, { [runs[0].id]: RUN, [runs[1].id]: RUN, [runs[2].id]: {} }, curves.TAU);
  assert.deepEqual(found.map((s) => s.name), ["eagle-3 2c3d", "eagle-3 4e5f"]);
  assert.deepEqual(curves.seriesOfRuns(runs, { [runs[2].id]: RUN }, curves.SPEEDUP)[0].points, [[2, 0.8], [4, 1.3]]);
});

test("a table has one row per step, and a dash for a missing value", () => {
  assert.deepEqual(curves.table(curves.byPosition(RUN), 1), {
    head: ["step", "position 1", "position 3", "position 10"],
    rows: [[2, "0.3", "–", "–"], [4, "0.6", "0.2", "0.1"]],
  });
  assert.equal(curves.summary("τ", []), "τ: not measured yet");
  assert.match(curves.summary("τ", curves.seriesOfRuns([{ id: "0000", head: "h", target: "t" }], { "0000": RUN }, curves.TAU)), /1.40 to 2.25/);
});

test("a line that shares its colour with another differs in dash and mark", () => {
  const { series, x, y } = curves.chartOf(curves.forcedAndOnPolicy(RUN), { top: 1, digits: 2 });
  assert.deepEqual(series.map((s) => [s.colour, s.dash, s.hollow]), [
    ["method-a", "6 4", true],
    ["method-a", "", false],
    ["method-b", "6 4", true],
    ["method-b", "", false],
  ]);
  assert.deepEqual([x.from, x.to, x.words(2)], [2, 4, "step 2"]);
  assert.deepEqual(y.ticks.map((tick) => tick.text), ["0.00", "0.25", "0.50", "0.75", "1.00"]);
  assert.deepEqual(curves.chartOf([], { digits: 1 }).x.ticks, []);
});
