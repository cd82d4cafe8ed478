import assert from "node:assert/strict";
import { test } from "node:test";
import { noAttribution, mergeMarks, queryHeat, speed, attributionProgress } from "./view.js";
import { hint } from "./panel.js";
import { namesAt, scale, spread } from "./tokenschart.js";
import { compressorText } from "./data.js";
import { layout } from "./kinds.js";

test("a round has one mark for all changes before it", () => {
  assert.deepEqual(
    mergeMarks(
      [{ index: 3, text: "depth 2 → 4" }],
      [
        { index: 1, text: "image changed" },
        { index: 3, text: "image changed" },
      ],
    ),
    [
      { index: 1, text: "image changed" },
      { index: 3, text: "depth 2 → 4, image changed" },
    ],
  );
});

test("the progress of an attribution is shown", () => {
  assert.equal(attributionProgress(null), "computing …");
  assert.equal(attributionProgress(0), "waiting …");
  assert.equal(attributionProgress(0.434), "computing: 43 %");
});

test("queries are shown one by one or summed, with the strongest patch at full heat", () => {
  const weights = [[0, 0.5, 0.5, 0], [0, 0, 0, 1]];
  assert.deepEqual(queryHeat(weights, 0, [0, 4]), [0, 1, 1, 0]);
  assert.deepEqual(queryHeat(weights, null, [0, 4]), [0, 0.5, 0.5, 1]);
  assert.deepEqual(queryHeat(weights, null, [2, 4]), [0.5, 1], "the patches of the second image");
  assert.deepEqual(queryHeat([[0, 0]], 0, [0, 2]), [0, 0]);
});

test("the axes contain every point with its interval, and labels do not overlap", () => {
  const { x, y, levels, counts } = scale(
    [
      { tokens: 0, tau: 1.8, low: 1.7, high: 1.9 },
      { tokens: 64, tau: 2.95, low: 2.9, high: 3.05 },
    ],
    600,
    190,
  );
  assert.deepEqual(levels, [1.5, 2, 2.5, 3, 3.5]);
  assert.deepEqual(counts, [0, 64]);
  assert.ok(x(0) < x(4) && x(64) <= 600 && y(3.05) >= 0 && y(1.7) <= 190);
  assert.deepEqual(spread([[0, 10], [5, 12], [9, 40]]), [10, 22, 40]);
  assert.deepEqual(spread([[9, 40], [0, 10], [300, 12]]), [40, 10, 12], "far apart, both stay");
  assert.deepEqual(
    spread([
      [0, 10, 120],
      [100, 12, 40],
      [160, 12, 40],
    ]),
    [10, 22, 12],
    "a long name is wider than a short one",
  );
  const named = { tokens: 64, tau: 2, low: 2, high: 2, name: "draft model, chain" };
  assert.ok(scale([named], 540, 190).x(64) + 7 + 6 * named.name.length < 540, "the last names have room in the margin");
});

test("names of lines are above all marks, names of single marks below, and none overlaps another", () => {
  const lines = [
      [40, 60],
      [42, 61],
      [90, 60],
    ].map(([x, y]) => ({ x, y, wide: 50, side: -1 })),
    marks = [
      [40, 62],
      [60, 150],
    ].map(([x, y]) => ({ x, y, wide: 70, side: 1 }));
  const margin = [
      [300, 58],
      [300, 60],
      [300, 61],
    ].map(([x, y]) => ({ x, y, wide: 80, side: 0 })),
    names = [...lines, ...marks, ...margin],
    at = namesAt(names, 50, 70);
  assert.ok(at.slice(0, 3).every((y) => y <= 38), "above the highest mark");
  assert.ok(at[3] >= 84 && at[4] >= 164, "below the lines, or below their own mark");
  names.forEach((a, i) => names.forEach((b, k) => {
    if (i < k && a.x < b.x + b.wide && b.x < a.x + a.wide) assert.ok(Math.abs(at[i] - at[k]) >= 12, `${i} ${k}`);
  }));
});

test("the effect of a compressor is described", () => {
  assert.match(compressorText("prune"), /random share of the patches/);
  assert.equal(compressorText("its own"), "its own");
  assert.equal(compressorText(null), "");
});

test("a kind that was never tested has no bar", () => {
  const [row] = layout([{ mine: { value: null }, theirs: { value: 0.5 } }], 366);
  assert.equal(row.mine, 0);
  assert.ok(row.theirs > 90);
});

test("a drafter without image input has no attribution, and the page says so", () => {
  assert.match(noAttribution({ since: 0, n_drafter: 0, compressor: "" }), /no image input/);
  assert.match(noAttribution({ since: 0, n_drafter: 0, compressor: "none" }), /target's hidden states/);
  assert.match(noAttribution({ since: 0, n_drafter: 16 }), /not recorded for this drafter/);
  assert.match(noAttribution(null), /not recorded/);
});

test("the panel suggests the next step with the brush", () => {
  assert.match(hint({ tool: "", active: false }), /press Step twice, choose hide/);
  assert.match(hint({ tool: "hide", painted: 0, active: true }), /Drag over an object in the first image to hide it/);
  assert.match(
    hint({ tool: "hide", painted: 3, active: true, scope: "drafter" }),
    /next round on, the object is hidden from the drafter only/,
  );
  assert.match(hint({ tool: "hide", painted: 3, active: false, scope: "both" }), /Press Run/);
  assert.match(hint({ tool: "restore", painted: 3 }), /restore them/);
});

test("two runs that share the engine have no speed-up; a run alone or next to a recording has its measured one", () => {
  const measured = { value: "1.50×", unit: "", label: "one run", worked: "" },
    of = (run) => speed({ beside: { run } }, { speed: measured });
  assert.equal(of(null), measured);
  assert.equal(of({ from: "recorded" }), measured, "a recorded run does not share the engine");
  assert.deepEqual([of({ from: "live" }).value, of({ from: "live" }).label], ["—", "speed-up: no baseline"]);
  assert.match(of({ from: "live" }).worked, /run one drafter alone/);
});
