import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as figures from "../shared/figures.js";
import { arithmetic, duration, layout, moved, phases, roundWords, shareWords } from "./waterfall.js";

const rounds = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url))).rounds;
const f = { rounds: 10, tokens: 31, seconds: 0.28,
  draft_seconds: 0.0448, verify_seconds: 0.1792, overhead_seconds: 0.056, waited_seconds: 0 };

test("the shares stand in one line, and sum to all of the time", () => {
  assert.equal(shareWords(f), "verify 64 % · draft 16 % · overhead 20 %");
  assert.match(shareWords({ ...f, waited_seconds: 0.028, overhead_seconds: 0.028 }), /overhead 10 % · waiting for other runs 10 %$/);
  assert.equal(shareWords(figures.summary([])), "");
});

test("the arithmetic gives the ratio of the measured rates", () => {
  assert.equal(
    arithmetic(f, { tokens_per_second: 50 }),
    "τ 3.10 tokens per round ÷ 1.40 (a round takes 28.00 ms, a pass of plain decoding 20.00 ms) = 2.21× in this run.",
  );
  assert.match(arithmetic(f, null), /needs a measured baseline/);
  assert.equal(arithmetic(figures.summary([]), null), "No rounds yet.");
});

test("the phases of a round leave no time out", () => {
  for (const round of rounds) {
    const parts = phases(round), covered = parts.reduce((sum, p) => sum + p.end - p.start, 0);
    assert.ok(Math.abs(covered - round.seconds) < 1e-9, `round ${round.index}`);
  }
  const made = { index: 0, started_s: 1, seconds: 1, draft_s: 0.15, verify_s: 0.4, emitted: [1], phases: [
    { name: "draft", start_s: 1.1, end_s: 1.3 }, { name: "verify", start_s: 1.3, end_s: 1.8 }, { name: "judge", start_s: 1.8, end_s: 1.9 },
  ] };
  assert.deepEqual(phases(made).map((p) => p.kind), ["overhead", "draft", "verify", "accept", "overhead"]);
  assert.equal(roundWords(made), "Round 1: +1 token in 1000.0 ms = draft 200.0 ms + verify 500.0 ms + accept and commit 100.0 ms + planning and other overhead 200.0 ms (forward passes alone: draft 150.0 ms, verify 400.0 ms)");
});

test("zoom keeps the time under the pointer, pan stops at the ends, and reset shows all", () => {
  const near = moved({ from: 0, to: 1 }, 1, { factor: 2, at: 0.25 });
  assert.deepEqual(near, { from: 0.125, to: 0.625 });
  assert.deepEqual(moved(near, 1, { by: 9 }), { from: 0.5, to: 1 });
  assert.deepEqual(moved(near, 1, { by: -9 }), { from: 0, to: 0.5 });
  assert.deepEqual(moved(near, 1, { factor: 1e-9 }), { from: 0, to: 1 });
  assert.ok(moved(near, 1, { factor: 1e9 }).to - near.from > 0, "a window never has length 0");
});

test("all rounds lie on one axis, and a zoomed window has only those inside it", () => {
  const whole = duration(rounds), all = layout(rounds, rounds, { from: 0, to: whole }, 800);
  assert.equal(all.rows.length, rounds.length);
  assert.equal(all.plain.length, rounds.length);
  assert.ok(all.rows.every((row, i) => !i || row.parts[0].x >= all.rows[i - 1].end - 0.2), "rounds follow each other");
  assert.ok(all.ticks.length >= 2 && all.ticks[0].text === "0");
  const half = layout(rounds, null, { from: whole / 2, to: whole }, 800);
  assert.ok(half.rows.length < rounds.length && half.rows.at(-1).index === rounds.at(-1).index);
  assert.ok(half.rows.every((row) => row.parts.every((p) => p.x >= 68 && p.x + p.width <= 752.001)));
  assert.deepEqual(half.plain, []);
});
