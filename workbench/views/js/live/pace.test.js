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

test("what was chosen goes before what suits the target, and nothing is held back where that is barred", () => {
  assert.equal(rate({ target: "toy", pace: null }, catalogue), 8);
  assert.equal(rate({ target: "toy", pace: 0 }, catalogue), 0);
  assert.equal(rate({ target: "real" }, catalogue), 0);
  assert.equal(rate({ target: "toy", pace: 4 }, { ...catalogue, barred: { pace: "a GPU is lent" } }), 0);
});

test("the pace says whose the times are, and a rate from an address can be chosen too", () => {
  assert.equal(paceNote(8), "shown at 8 tokens/s; rounds after a pause are slower than at full speed");
  assert.equal(paceNote(0), "");
  assert.deepEqual(options(12).map((o) => o.value), ["0", "4", "8", "12", "20"]);
});

test("a round is drafted first, then tested one test after the other, then all there before the next one comes", () => {
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

test("nothing is staged where nothing was drafted, or nothing is held back", () => {
  assert.equal(stage({ path: [], emitted: [{}], nodes: { status: [] } }, 800, 0), null);
  assert.equal(stage(round, span(round, { pace: 0 }, null), 0), null);
  // a recording that plays at a tenth of its speed
  assert.equal(span({ seconds: 0.02 }, { pace: 0 }, { speed: 0.1 }), 200);
});

test("rounds that were there when a run was first seen are not news", () => {
  const run = {}, first = arrival(null, run, 5, 1000);
  assert.equal(first.at, -Infinity);
  const next = arrival(first, run, 6, 1200);
  assert.equal(next.at, 1200);
  assert.equal(arrival(next, run, 6, 1300), next);
});

test("the draft is told along what was accepted, then what was refused, then what hung on that", () => {
  assert.deepEqual(line(round, testOrder(round.nodes)), [{ node: 0, test: 0 }, { node: 2, test: 1 }]);
  const chain = { path: [0], nodes: { parents: [-1, 0, 1], status: ["accepted", "rejected", "discarded"] } };
  assert.deepEqual(line(chain, [0, 1]).map((s) => s.test), [0, 1, Infinity]);
});

test("the end is told to a screen reader once, when the last round has been shown, and of no other run", () => {
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
