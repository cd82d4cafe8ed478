import assert from "node:assert/strict";
import { test } from "node:test";
import {
  VERDICTS, columnLines, columns, countsOf, hereFigure, testWords, measuredLines, paperFigure, tally,
} from "./boards.js";
import { byTarget, differences } from "./methods.js";

test("figures of the paper and of this machine are formatted", () => {
  assert.equal(paperFigure({ low: 2, high: 3 }), "2–3");
  assert.equal(paperFigure({ low: 2.73, high: 2.73 }), "2.73");
  assert.equal(paperFigure({ low: null, high: null, neutral: 1 }), "more than 1; the paper gives no number");
  assert.equal(hereFigure({ value: 1.612, low: 1.4, high: 1.9, n: 24 }), "1.61 (1.40–1.90, n = 24)");
  const answers = { value: 0.98, low: 0.96, high: 1 };
  assert.equal(
    hereFigure({ value: 1.612, low: 1.4, high: 1.9, n: 24, answers }),
    "1.61 (1.40–1.90, n = 24); share of right answers kept 0.980 (0.960–1.00)",
  );
  assert.equal(hereFigure(null), "–");
});

test("a claim has one column per target: setting, missing requirements, reason of a failure, and measurement details", () => {
  const here = {
    measured: { setting: "toys" },
    lacking: "",
    date: "today",
    commit: "abc",
    machine: "two cores",
    load: 0.5,
    why: "wrong scale: toys",
  };
  const there = {
    measured: null,
    lacking: "no medusa heads for smollm2 yet",
    date: "",
    commit: "",
    machine: "",
    load: null,
    why: "",
  };
  const row = { ...here, lacks: "", timed: true, elsewhere: [there] };
  assert.deepEqual(columns(row), [row, there]);
  assert.deepEqual(columnLines(row, row), ["Why: wrong scale: toys"]);
  assert.deepEqual(measuredLines(row, row), ["toys", "today, abc; two cores; system load 0.5"]);
  assert.deepEqual(measuredLines(row, there), []);
  assert.deepEqual(columnLines(row, there), ["no medusa heads for smollm2 yet"]);
  assert.deepEqual(columnLines({ ...row, lacks: "a tree", timed: false }, there), ["lacks a tree"]);
});

test("the claims board counts verdicts per target", () => {
  const row = (here, there) => ({ verdict: here, elsewhere: [{ target: "smollm2", verdict: there }] });
  const rows = [
    row("contradicted", "inconclusive"),
    row("by construction", "inconclusive"),
    row("contradicted", "not measured yet"),
  ];
  assert.deepEqual(countsOf(rows), [
    ["bundled models", [0, 0, 0, 2, 1, 0, 0, 0]],
    ["smollm2", [0, 0, 2, 0, 0, 0, 1, 0]],
  ]);
  assert.equal(VERDICTS.length, 8);
  assert.deepEqual(countsOf([]), []);
});

test("a goodness-of-fit test shows its statistic, and the distance only if exactness is not promised", () => {
  const fit = {
    name: "two tokens",
    verdict: "pass",
    statistic: 20.51,
    freedom: 19,
    p_value: 0.364,
    runs: 1000,
    total_variation: 0.02,
  };
  assert.equal(testWords(fit), "two tokens: χ² 20.5 (19 degrees of freedom), p = 0.36, 1000 runs");
  assert.equal(
    testWords({ ...fit, tests: 4 }),
    "two tokens: χ² 20.5 (19 degrees of freedom), p = 0.36, the lowest p of 4 settings, 1000 runs",
  );
  assert.ok(testWords({ ...fit, verdict: "measured" }).endsWith(", total variation 0.020"));
});

test("every row is counted once", () => {
  assert.equal(tally([{ v: "shown" }, { v: "broken" }, { v: "shown" }], "v"), "2 shown, 1 broken");
});

test("a card lists the differences from the paper, as text", () => {
  const h = (tag, props, ...children) => ({ tag, children });
  const [summary, list] = differences({ differs: ["No <b>norm</b>.", "Fewer nodes."] }, h).children;
  assert.deepEqual(summary.children, ["Differs from the paper in 2 points"]);
  assert.deepEqual(list.children.map((item) => item.children), [["No <b>norm</b>."], ["Fewer nodes."]]);
  assert.deepEqual(differences({ differs: ["Fewer nodes."] }, h).children[0].children, [
    "Differs from the paper in one point",
  ]);
  assert.equal(differences({ differs: [] }, h), "");
});

test("the matrix has one column per target, and one reason if it explains all", () => {
  const columns = [
    { target: "text", drafter: "small" },
    { target: "text", drafter: null },
    { target: "seeing", drafter: "eye" },
    { target: "seeing", drafter: null },
  ];
  const [text, seeing] = byTarget(columns, [
    "reads text only.",
    "No draft model. reads text only.",
    "",
    "No draft model.",
  ]);
  assert.deepEqual(text, {
    target: "text",
    on: [],
    off: [{ reason: "reads text only.", with: ["small", "no draft model"] }],
    all: true,
  });
  assert.deepEqual(seeing, {
    target: "seeing",
    on: ["eye"],
    off: [{ reason: "No draft model.", with: ["no draft model"] }],
    all: false,
  });
  assert.equal(byTarget(columns, ["a", "b", "", ""])[0].off.length, 2, "different reasons are all listed");
  assert.deepEqual(byTarget(columns, ["", "", "", ""])[1], {
    target: "seeing",
    on: ["eye", "no draft model"],
    off: [],
    all: true,
  });
});
