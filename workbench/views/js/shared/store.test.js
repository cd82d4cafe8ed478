import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, complete, fromTrace, isActive, isOver, newRun, visible } from "./store.js";

const round = (index) => ({ index });

test("rounds are kept by index and drawn only up to the first hole", () => {
  const run = newRun("a");
  assert.equal(apply(run, { run: "x", state: "running", seq: 3, rounds: [round(0)] }), 1);
  assert.equal(apply(run, { seq: 3, rounds: [round(2)] }), 1);
  assert.deepEqual(visible(run).map((r) => r.index), [0]);
  assert.equal(apply(run, { seq: 3, rounds: [round(1), round(2)] }), null);
  assert.equal(complete(run), 3);
});

test("a round that came twice is kept once, the first one", () => {
  const run = newRun("a"), first = round(0);
  apply(run, { rounds: [first], seq: 1 });
  apply(run, { rounds: [round(0)], seq: 1 });
  assert.equal(run.rounds.length, 1);
  assert.equal(run.rounds[0], first);
});

test("a late answer does not bring an ended run back to life", () => {
  const run = newRun("a");
  apply(run, { state: "finished", seq: 0 });
  apply(run, { state: "running", seq: 0 });
  assert.equal(run.state, "finished");
  assert.ok(isOver(run) && !isActive(run));
});

test("an error ends the run and keeps message and remedy", () => {
  const run = newRun("a");
  apply(run, { error: { message: "no", remedy: "do" } });
  assert.equal(run.state, "error");
  assert.equal(run.error.remedy, "do");
});

test("plain decoding is not a bonus, whatever the trace that is read called it", () => {
  const token = { kind: "bonus", text: "a" },
    plain = { index: 0, nodes: { status: [] }, bonus_kind: "bonus", emitted: [token] };
  const drafted = {
      index: 1,
      nodes: { status: ["accepted"] },
      bonus_kind: "bonus",
      emitted: [{ kind: "accepted" }, token],
    },
    run = newRun("c");
  apply(run, { rounds: [plain, drafted] });
  assert.deepEqual(
    run.rounds.map((r) => [r.bonus_kind, r.emitted.map((e) => e.kind)]),
    [
      ["plain", ["plain"]],
      ["bonus", ["accepted", "bonus"]],
    ],
  );
});

test("a trace that was stopped, by whomever, is not one that finished", () => {
  const state = (reason) => fromTrace("a", { header: {}, rounds: [], footer: { reason } }, "recorded").state;
  assert.deepEqual(["cancelled", "lease", "limit", "memory", "error", "eos", "length"].map(state), [
    "cancelled",
    "cancelled",
    "cancelled",
    "cancelled",
    "error",
    "finished",
    "finished",
  ]);
});
