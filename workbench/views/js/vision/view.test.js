import assert from "node:assert/strict";
import { test } from "node:test";
import { arrivingToken, attributionProgress, mergeMarks, noAttribution, queryHeat, selected, speed } from "./view.js";
import { hint } from "./panel.js";
import { axes } from "./tokenschart.js";
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

const round = (...texts) => ({
  nodes: { parents: texts.map((_, i) => i - 1), status: texts.map(() => "accepted") }, path: texts.map((_, i) => i),
  emitted: texts.map((text, node) => ({ text, node, kind: "accepted" })),
});

test("while the newest round is followed, its last word is selected; a pin and a hovered word stay selected", () => {
  const rounds = [round("a", "b"), round(" red", ".", "")], none = { hover: null, pin: null };
  assert.deepEqual(selected(none, rounds), { round: 1, node: 0, token: 0 });
  assert.deepEqual(selected(none, [...rounds, round(".")]), { round: 2, node: 0, token: 0 }, "a round without a word");
  assert.deepEqual(selected({ hover: null, pin: { round: 0, token: 1 } }, rounds), { round: 0, node: 1, token: 1 });
  assert.equal(selected({ hover: { round: 0, token: 0 }, pin: null }, rounds).round, 0);
  assert.equal(selected(none, []), null);
});

test("while a round arrives, the token of the latest test result is shown, at most the last one", () => {
  const rounds = [round("a", "b")], arriving = (tested) => ({ round: round("c", "d", "e"), tested });
  assert.deepEqual([1, 2, 3, 9].map((tested) => arrivingToken(rounds, arriving(tested))), [2, 3, 4, 4]);
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

test("the axes contain every point with its interval, and numbers of tokens do not overlap", () => {
  const { x, y } = axes([
    { tokens: 0, tau: 1.8, low: 1.7, high: 1.9 },
    { tokens: 63, tau: 2.5, low: 2.4, high: 2.6 },
    { tokens: 64, tau: 2.95, low: 2.9, high: 3.05 },
  ]);
  assert.deepEqual(y.ticks.map((tick) => tick.at), [1.5, 2, 2.5, 3, 3.5]);
  assert.deepEqual(x.ticks.map((tick) => tick.at), [0, 63, 64]);
  assert.ok(x.place(16) > 0.25 * x.place(64), "most of the axis shows few tokens");
  assert.deepEqual([x.words(16), y.words(2.5)], ["16 vision tokens", "τ 2.50"]);
});

test("the effect of a compressor is described", () => {
  assert.match(compressorText("prune"), /random subset of the patches/);
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
  assert.deepEqual([of({ from: "live" }).value, of({ from: "live" }).label], ["—", "speed-up: run one drafter alone"]);
  assert.match(of({ from: "live" }).worked, /run one drafter alone/);
});
