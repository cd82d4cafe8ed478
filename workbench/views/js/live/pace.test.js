import assert from "node:assert/strict";
import { test } from "node:test";
import { arrival, line, options, rate, span, stage, announceEnd, paceNote } from "./pace.js";
import { testOrder } from "./treemodel.js";

const catalogue = { targets: [{ name: "toy", pace: 8 }, { name: "real" }], barred: {} };
const round = {
  path: [0],
  emitted: [{}, {}],
  nodes: {
    parents: [-1, -1, 0, 0, 3],
    status: ["accepted", "discarded", "rejected", "rejected", "discarded"],
    depth: [1, 1, 2, 2, 3],
  },
};

test("a chosen pace overrides the target's default; without pacing support the pace is 0", () => {
  assert.equal(rate({ target: "toy", pace: null }, catalogue), 8);
  assert.equal(rate({ target: "toy", pace: 0 }, catalogue), 0);
  assert.equal(rate({ target: "real" }, catalogue), 0);
  assert.equal(rate({ target: "toy", pace: 4 }, { ...catalogue, barred: { pace: "a GPU is lent" } }), 0);
});

test("the note names the pace; a rate from an address is an option", () => {
  assert.equal(paceNote(8), "shown at 8 tokens/s; rounds after a pause are slower than at full speed");
  assert.equal(paceNote(0), "");
  assert.deepEqual(options(12).map((o) => o.value), ["0", "4", "8", "12", "20"]);
});

test("a round shows its drafts first, then its test results one by one, and is complete before the next one", () => {
  const seen = [];
  const whole = span(round, { pace: 4 }, null);
  for (let ms = 0, now = stage(round, whole, 0); now; ms += now.ms, now = stage(round, whole, ms))
    seen.push([now.tested, Math.round(ms)]);
  assert.deepEqual(seen, [
    [0, 0],
    [1, 150],
    [2, 250],
    [3, 350],
  ]); // 2 tokens at 4 a second: 500 ms, 3 tests between 150 and 450
  assert.equal(stage(round, whole, 450), null);
});

test("a round without drafts, or without a pace, is shown at once", () => {
  assert.equal(stage({ path: [], emitted: [{}], nodes: { status: [] } }, 800, 0), null);
  assert.equal(stage(round, span(round, { pace: 0 }, null), 0), null);
  // a recording that plays at a tenth of its speed
  assert.equal(span({ seconds: 0.02 }, { pace: 0 }, { speed: 0.1 }), 200);
});

test("rounds present at first sight are not new", () => {
  const run = {}, first = arrival(null, run, 5, 1000);
  assert.equal(first.at, -Infinity);
  const next = arrival(first, run, 6, 1200);
  assert.equal(next.at, 1200);
  assert.equal(arrival(next, run, 6, 1300), next);
});

test("the draft is listed as accepted nodes, then the rejected one, then its descendants", () => {
  assert.deepEqual(line(round, testOrder(round.nodes)), [{ node: 0, test: 0 }, { node: 2, test: 1 }]);
  const chain = { path: [0], nodes: { parents: [-1, 0, 1], status: ["accepted", "rejected", "discarded"] } };
  assert.deepEqual(line(chain, [0, 1]).map((s) => s.test), [0, 1, Infinity]);
});

test("the end of a run is announced once, after its last round is shown, and for no other run", () => {
  const announced = [], run = {};
  const page = { run, ending: run, view: { arriving: {} }, announce: (over) => announced.push(over) };
  announceEnd(page);
  assert.deepEqual(announced, []);
  page.view = { arriving: null };
  announceEnd(page);
  announceEnd(page);
  assert.deepEqual(announced, [true]);
  announceEnd(Object.assign(page, { ending: {} }));
  assert.deepEqual([announced.length, page.ending], [1, null]);
});
