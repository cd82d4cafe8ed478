import assert from "node:assert/strict";
import { test } from "node:test";
import { apply, complete, fromTrace, isActive, isOver, newRun, ownToken, roundTokens, visible } from "./store.js";

const round = (index) => ({ index });

test("rounds are stored by index and drawn only up to the first gap", () => {
  const run = newRun("a");
  assert.equal(apply(run, { run: "x", state: "running", seq: 3, rounds: [round(0)] }), 1);
  assert.equal(apply(run, { seq: 3, rounds: [round(2)] }), 1);
  assert.deepEqual(visible(run).map((r) => r.index), [0]);
  assert.equal(apply(run, { seq: 3, rounds: [round(1), round(2)] }), null);
  assert.equal(complete(run), 3);
});

test("of a round that arrives twice, the first one is kept", () => {
  const run = newRun("a"), first = round(0);
  apply(run, { rounds: [first], seq: 1 });
  apply(run, { rounds: [round(0)], seq: 1 });
  assert.equal(run.rounds.length, 1);
  assert.equal(run.rounds[0], first);
});

test("a late answer does not reactivate an ended run", () => {
  const run = newRun("a");
  apply(run, { state: "finished", seq: 0 });
  apply(run, { state: "running", seq: 0 });
  assert.equal(run.state, "finished");
  assert.ok(isOver(run) && !isActive(run));
});

test("an error ends the run, with message and remedy", () => {
  const run = newRun("a");
  apply(run, { error: { message: "no", remedy: "do" } });
  assert.equal(run.state, "error");
  assert.equal(run.error.remedy, "do");
});

test("plain decoding is not a bonus, whatever an older trace calls it", () => {
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

test("a stopped trace is not finished, whatever stopped it", () => {
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

const token = (text, node) => ({ text, node });
const [earlier, drafted, own] = [token("before", null), token("draft", 0), token("own", null)];

test("the target's own token is the last one without a node, not an earlier tentative one", () => {
  assert.equal(ownToken({ emitted: [earlier, drafted, own], bonus_kind: "bonus" }), own);
  assert.equal(ownToken({ emitted: [earlier], bonus_kind: null, placed: [{}] }), undefined, "its own token is tentative");
  assert.equal(ownToken({ emitted: [own] }), own, "older traces");
  assert.equal(ownToken({ emitted: [] }), undefined);
});

test("tokens of earlier rounds are left out", () => {
  assert.deepEqual(roundTokens({ emitted: [earlier, drafted, own], bonus_kind: "bonus" }), [drafted, own]);
  assert.deepEqual(roundTokens({ emitted: [earlier, drafted], bonus_kind: null, placed: [{}] }), [drafted]);
});
