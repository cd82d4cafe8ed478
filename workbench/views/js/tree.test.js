import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { choose, label, layout, neighbour, TARGET_TOKEN } from "./tree.js";

const read = (name) => JSON.parse(readFileSync(new URL(`../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;

test("every node is one column right of its parent", () => {
  for (const round of [...read("tree"), ...read("chain")]) {
    const { items } = layout(round), depth = new Map(items.map((n) => [n.id, n.depth]));
    items.slice(1).forEach((n) => assert.equal(n.depth, depth.get(n.parent) + 1));
  }
});

test("no two nodes share a place", () => {
  for (const round of read("tree")) {
    const { items } = layout(round);
    assert.equal(new Set(items.map((n) => `${n.depth}/${n.y}`)).size, items.length);
  }
});

test("the target's own token hangs from the end of the accepted path", () => {
  for (const round of read("chain")) {
    const own = layout(round).items.find((n) => n.id === TARGET_TOKEN);
    assert.equal(own.parent, round.path.at(-1) ?? -1);
    assert.equal(own.kind, round.bonus_kind);
  }
});

test("plain decoding is a root with one bonus token", () => {
  assert.deepEqual(layout(read("plain")[0]).items.map((n) => n.kind), ["root", "bonus"]);
});

test("a wide tree is cut to the limit, keeps what was tested, and says how much is hidden", () => {
  const n = 200, status = Array(n).fill("discarded");
  status[150] = "rejected";
  const nodes = { parents: Array(n).fill(-1), q: Array(n).fill(0.1), status };
  const { kept, hidden, hiddenUnder } = choose(nodes, 64);
  assert.equal(kept.size, 64);
  assert.ok(kept.has(150));
  assert.equal(hidden, 136);
  assert.equal(hiddenUnder.get(-1), 136);
});

test("a kept node's ancestors are kept", () => {
  const parents = [-1, 0, 1, 2, 3], nodes = { parents, q: [0.1, 0.1, 0.1, 0.1, 0.9], status: parents.map(() => "discarded") };
  const { kept } = choose(nodes, 3);
  for (const i of kept) assert.ok(parents[i] < 0 || kept.has(parents[i]));
});

test("arrow keys go to parent, child and neighbours, and stay at the border", () => {
  const { items } = layout(read("tree")[0]);
  const child = neighbour(items, -1, "ArrowRight");
  assert.equal(neighbour(items, child, "ArrowLeft"), -1);
  assert.equal(neighbour(items, -1, "ArrowLeft"), -1);
  assert.equal(neighbour(items, -1, "ArrowUp"), -1);
});

test("labels show spaces and are cut", () => {
  assert.equal(label(" fox"), "␣fox");
  assert.equal(label("abcdefghij", 5), "abcd…");
});

test("a threshold hides unlikely untested paths and nothing that was tested", () => {
  for (const round of read("tree")) {
    const { kept, hidden } = choose(round.nodes, 64, 0.3);
    round.nodes.status.forEach((status, i) => status !== "discarded" && assert.ok(kept.has(i)));
    assert.equal(kept.size + hidden, round.nodes.tokens.length);
  }
  assert.ok(read("tree").some((r) => choose(r.nodes, 64, 0.3).hidden > 0));
});
