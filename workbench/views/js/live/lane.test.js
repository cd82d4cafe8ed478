import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { labelOf, lanes, layout, sentence, span, phasesOf, totals } from "./lane.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;
const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-6, `${a} ≠ ${b}`);

test("the window ends at the newest round while live, and contains a pinned one", () => {
  assert.deepEqual(span(30, 29, 10), { from: 20, to: 30 });
  assert.deepEqual(span(30, 12, 10), { from: 7, to: 17 });
  assert.deepEqual(span(3, 2, 10), { from: 0, to: 3 });
});

test("the width of a round is its time, and its phases fill it", () => {
  const rounds = read("chain"), drawn = layout(rounds, null, { from: 2, to: 9 }, 900);
  drawn.boxes.forEach((b) => {
    near(b.width, rounds[b.index].seconds * drawn.scale);
    near(b.segments.reduce((a, s) => a + s.width, 0), b.width);
  });
  assert.ok(drawn.boxes.at(-1).x + drawn.boxes.at(-1).width <= 900);
});

test("forward passes of plain decoding for the same text have the same scale and start at the same token", () => {
  const rounds = read("chain"), plain = Array.from({ length: 80 }, () => ({ seconds: 0.01 }));
  const drawn = layout(rounds, plain, { from: 0, to: 5 }, 900);
  near(drawn.plain[0].width + 1, 0.01 * drawn.scale);
  near(drawn.plainSeconds, 0.01 * drawn.tokens);
});

test("a baseline that is too short is not compared", () => {
  assert.equal(layout(read("chain"), [{ seconds: 0.01 }], { from: 0, to: 5 }, 900).plainSeconds, null);
});

test("the sum of selected rounds lists its parts", () => {
  assert.match(
    totals(read("chain"), [1, 3]),
    /^rounds 2–4: \d+ tokens in [\d.]+ ms = [\d.]+ draft \+ [\d.]+ verify \+ [\d.]+ overhead$/,
  );
});

test("time for other runs of a batch is waiting, neither drafting nor overhead", () => {
  const round = {
    ...read("chain")[0],
    started_s: 0,
    seconds: 0.01,
    draft_s: 0.002,
    waited_s: 0.003,
    verify_s: 0.004,
    overhead_s: 0.001,
  };
  round.phases = [
    ["wait", 0, 0.003],
    ["draft", 0.003, 0.005],
    ["verify", 0.005, 0.009],
    ["judge", 0.009, 0.01],
  ].map(([name, start_s, end_s]) => ({ name, start_s, end_s, lane: "device" }));
  assert.deepEqual(phasesOf(round).map((p) => p.kind), ["wait", "draft", "verify", "overhead"]);
  assert.deepEqual(phasesOf({ ...round, phases: [] }).map((p) => p.kind), ["draft", "wait", "verify", "overhead"]);
  near(phasesOf({ ...round, phases: [] }).at(-1).end, 0.01);
  assert.equal(
    totals([round], [0, 0]),
    `rounds 1–1: ${round.emitted.length} tokens in 10.0 ms = 2.0 draft + 4.0 verify + 1.0 overhead + 3.0 waiting for other runs`,
  );
});

test("a baseline whose text ended earlier is still drawn", () => {
  const rounds = read("chain"), plain = Array.from({ length: 20 }, () => ({ seconds: 0.01 }));
  const drawn = layout(rounds, plain, { from: 8, to: 11 }, 900);
  assert.ok(drawn.plain.length > 0);
  near(drawn.plainSeconds, 0.01 * drawn.tokens);
});

test("overlapping phases are drawn on separate lanes", () => {
  const phases = [
    { name: "verify", start_s: 1, end_s: 1.4, lane: "gpu" },
    { name: "draft", start_s: 1.1, end_s: 1.3, lane: "drafter" },
  ];
  const round = { ...read("chain")[0], started_s: 1, seconds: 0.5, phases };
  assert.deepEqual(lanes([round]), ["gpu", "drafter"]);
  const { boxes, scale } = layout([round], null, { from: 0, to: 1 }, 900);
  const [verify, draft] = boxes[0].segments;
  assert.deepEqual([verify.row, draft.row], [0, 1]);
  near(draft.x - verify.x, 0.1 * scale);
  assert.equal(lanes(read("chain")), null, "sequential phases: one lane");
});

test("time after the last phase is overhead; a trace without phases uses its sums", () => {
  const round = read("chain")[0], parts = phasesOf({ ...round, phases: [] });
  near(parts.at(-1).end - parts[0].start, round.seconds);
  const cut = phasesOf({ ...round, phases: round.phases.slice(0, 1) });
  assert.deepEqual(cut.map((p) => p.kind), ["draft", "overhead"]);
});

test("a stalled round is marked and described", () => {
  const rounds = read("chain"),
    drawn = layout(
      rounds,
      Array.from({ length: 80 }, () => ({ seconds: 0.01 })),
      { from: 0, to: 5 },
      900,
      new Map([[2, 8.4]]),
      new Map([[1, 5]]),
    );
  assert.deepEqual(drawn.boxes.map((b) => b.stalled), [null, null, 8.4, null, null]);
  assert.deepEqual(drawn.plain.slice(0, 3).map((p) => p.stalled), [false, true, false]);
  assert.match(sentence(drawn, { from: 0, to: 5 }), /; round 3 stalled$/);
  assert.deepEqual(
    [120, 40, 9].map((width) => labelOf({ width, emitted: 2, stalled: 8.4 })),
    ["+2 · stalled, 8×", "+2 !", "!"],
  );
});

test("rounds are placed on the axis by their start time", () => {
  const rounds = read("chain"), drawn = layout(rounds, null, { from: 2, to: 9 }, 900);
  const zero = drawn.ticks[0].x;
  assert.ok(drawn.ticks.length > 2 && drawn.ticks.at(-1).x <= 900);
  let before = 0;
  for (const box of drawn.boxes) {
    near(box.x, zero + before * drawn.scale);
    before += rounds[box.index].seconds;
  }
  assert.deepEqual(layout([], null, { from: 0, to: 0 }, 900).ticks, []);
});

test("the longer of both rows fills the width, so that none is cut", () => {
  const rounds = read("chain"), view = { from: 0, to: 5 };
  for (const each of [0.001, 0.5]) {
    const plain = Array.from({ length: 80 }, () => ({ seconds: each })), drawn = layout(rounds, plain, view, 900);
    const ends = [drawn.boxes, drawn.plain].map((row) => row.at(-1).x + row.at(-1).width);
    assert.ok(Math.max(...ends) <= 900 && Math.max(...ends) > 895, `${ends}`);
    assert.equal(ends[1] > ends[0], drawn.plainSeconds > drawn.seconds);
  }
});
