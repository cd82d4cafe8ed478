import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { corner, selectionFor } from "./tour.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;

/** A round whose nodes all have the root as parent. */
const round = (status, path = []) => ({ path, nodes: { status, parents: status.map(() => -1) } });

test("a step on rejections selects a rejected draft, after as many accepted ones as possible", () => {
  const rounds = read("tree"), { round: at, node } = selectionFor("rejected", rounds);
  assert.equal(rounds[at].nodes.status[node], "rejected");
  const withRejected = rounds.filter((r) => r.nodes.status.includes("rejected"));
  assert.equal(rounds[at].path.length, Math.max(...withRejected.map((r) => r.path.length)));
});

test("a step on siblings selects an accepted draft whose earlier sibling was rejected", () => {
  const rounds = [round(["rejected", "rejected"]), round(["rejected", "accepted"], [1])];
  assert.deepEqual(selectionFor("sibling", rounds), { round: 1, node: 1 });
  const chain = { path: [0], nodes: { status: ["accepted", "rejected"], parents: [-1, 0] } };
  assert.deepEqual(selectionFor("sibling", [chain]), { round: 0, node: 1 }, "no siblings: the rejected draft");
});

test("without such a round the largest draft is selected; without drafts nothing", () => {
  const rounds = [round([]), round(["accepted", "accepted"], [0]), round(["accepted"], [0])];
  for (const shows of ["rejected", "sibling"]) assert.deepEqual(selectionFor(shows, rounds), { round: 1 });
  assert.equal(selectionFor("rejected", [round([])]), null);
  assert.equal(selectionFor("rejected", []), null);
  assert.equal(selectionFor("", rounds), null);
});

test("the panel goes to the corner that covers least of the part", () => {
  const free = { left: 0, top: 0, right: 1000, bottom: 800 }, panel = { width: 300, height: 200 };
  const at = (left, top, right, bottom) => corner({ left, top, right, bottom }, panel, free);
  assert.deepEqual(at(0, 0, 100, 100), { left: 700, top: 600 }, "bottom right, unless the part is there");
  assert.deepEqual(at(600, 500, 1000, 800), { left: 0, top: 600 });
  assert.deepEqual(at(0, 500, 1000, 800), { left: 700, top: 0 });
  assert.deepEqual(at(0, 300, 1000, 1800), { left: 700, top: 0 }, "a part that reaches below the window");
});
