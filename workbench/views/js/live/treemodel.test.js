import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  awaited,
  levelsAuto,
  model,
  neighbour,
  places,
  ROOT,
  spineAuto,
  TARGET,
  testOrder,
  unfold,
  drafterNames,
  ancestorsOf,
} from "./treemodel.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;
const closed = () => 0, undecided = () => undefined;

/** A round of untested nodes. */
function drafted(parents, q, status = parents.map(() => "discarded")) {
  const depth = [];
  parents.forEach((p) => depth.push(p < 0 ? 1 : depth[p] + 1));
  return {
    index: 0,
    params: {},
    path: status.flatMap((s, i) => (s === "accepted" ? [i] : [])),
    bonus: null,
    bonus_kind: null,
    emitted: [],
    nodes: { parents, depth, q, p: q, status, text: parents.map(String), u: [], accept: [] },
  };
}

test("every drafted node is in the tree once, one level below its parent", () => {
  for (const round of [...read("tree"), ...read("chain")]) {
    const { nodes } = model(round);
    assert.equal([...nodes.keys()].filter((id) => id !== ROOT && id !== TARGET).length, round.nodes.parents.length);
    round.nodes.status.forEach((status, i) => assert.equal(nodes.get(i).kind, status));
    for (const [id, node] of nodes)
      if (id !== ROOT)
        assert.ok(node.depth === nodes.get(node.parent).depth + 1 && nodes.get(node.parent).children.includes(id));
  }
});

test("the target's own token ends the spine, after the accepted path", () => {
  for (const round of read("chain")) {
    const { nodes, spine } = model(round);
    assert.deepEqual(spine, [ROOT, ...round.path, TARGET]);
    assert.equal(nodes.get(TARGET).kind, round.bonus_kind);
  }
  assert.deepEqual(model(read("plain")[0]).spine, [ROOT, TARGET]);
});

test("children are ordered: accepted, tested in test order, then by probability", () => {
  const { nodes } = model(
    drafted(
      [-1, -1, -1, -1, -1],
      [0.1, 0.2, 0.3, 0.4, 0.5],
      ["discarded", "rejected", "rejected", "accepted", "discarded"],
    ),
  );
  assert.deepEqual(nodes.get(ROOT).children, [3, 1, 2, 4, 0]);
});

test("tested nodes are always drawn; the counts of folded nodes have the right sum", () => {
  for (const round of read("tree")) {
    const tree = model(round);
    for (const auto of [closed, spineAuto(tree, { room: 6, column: 60 }), levelsAuto(tree, 20)]) {
      for (const open of [undecided, () => true, () => false]) {
        const drawn = unfold(tree, open, auto), folded = [...drawn.values()].reduce((sum, d) => sum + d.folded, 0);
        assert.equal(drawn.size + folded, tree.nodes.size);
        round.nodes.status.forEach((s, i) => assert.ok(s === "discarded" || drawn.has(i)));
      }
    }
    assert.equal([...unfold(tree, () => true, closed).values()].reduce((sum, d) => sum + d.folded, 0), 0);
  }
});

test("the levels of a wide tree show tested and likely nodes, and fold the rest", () => {
  const n = 200, status = Array(n).fill("discarded");
  status[150] = "rejected";
  const tree = model(drafted(Array(n).fill(-1), Array(n).fill(0.1), status)),
    drawn = unfold(tree, undecided, levelsAuto(tree, 64));
  assert.equal(drawn.size - 1, 64);
  assert.ok(drawn.has(150));
  assert.equal(drawn.get(ROOT).folded, 136);
});

test("a single node on the path is shown instead of a fold button", () => {
  const tree = model(drafted([-1, -1], [0.5, 0.4])), drawn = unfold(tree, undecided, () => 1);
  assert.deepEqual(drawn.get(ROOT), { children: [0, 1], folded: 0, more: false });
});

test("unfolding all ancestors of a node shows the node", () => {
  const tree = model(drafted([-1, -1, -1, 0, 3, 4], [0.5, 0.4, 0.3, 0.9, 0.9, 0.9])), path = ancestorsOf(tree, 5);
  assert.deepEqual(path, [ROOT, 0, 3, 4]);
  assert.ok(!unfold(tree, undecided, closed).has(5));
  assert.ok(unfold(tree, (id) => (path.includes(id) ? true : undefined), closed).has(5));
});

test("a threshold hides unlikely untested paths, but no tested nodes and no path to the selected node", () => {
  for (const round of read("tree")) {
    const tree = model(round, { threshold: 0.3 });
    round.nodes.status.forEach((s, i) => assert.ok(s === "discarded" || tree.nodes.has(i)));
    assert.equal(
      [...tree.nodes.keys()].filter((id) => typeof id === "number" && id >= 0).length + tree.hidden,
      round.nodes.tokens.length,
    );
    const hidden = round.nodes.parents.findIndex((_, i) => !tree.nodes.has(i));
    if (hidden >= 0) assert.ok(model(round, { threshold: 0.3, keep: hidden }).nodes.has(hidden));
  }
  assert.ok(read("tree").some((r) => model(r, { threshold: 0.3 }).hidden > 0));
});

test("results become visible one by one, then all", () => {
  const [round] = read("tree"), order = testOrder(round.nodes), n = round.nodes.parents.length;
  assert.deepEqual([...awaited(round, null)], []);
  assert.equal(awaited(round, 0).size, n + 1);
  assert.ok(!awaited(round, 1).has(order[0]) && awaited(round, 1).has(order[1]));
  assert.deepEqual([...awaited(round, order.length)], [TARGET]);
  assert.deepEqual([...awaited(round, order.length + 1)], []);
});

test("arrow keys reach every node, and stop at the border", () => {
  for (const round of read("tree")) {
    const all = places(model(round)),
      reached = new Set([ROOT]),
      keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
    for (const id of reached) for (const path of keys) reached.add(neighbour(all, id, path));
    assert.equal(reached.size, all.length);
    assert.equal(neighbour(all, ROOT, "ArrowLeft"), ROOT);
    assert.equal(neighbour(all, ROOT, "ArrowUp"), ROOT);
    assert.equal(
      neighbour(all, "-1", "ArrowRight"),
      all.find((n) => n.depth === 1 && n.onPath)?.id ?? all.find((n) => n.depth === 1).id,
    );
  }
});

test("tests are ordered by level, earlier siblings first, whatever the order of drafting", () => {
  const deep = drafted([-1, 0, -1, 0], [0.4, 0.3, 0.2, 0.1], ["accepted", "rejected", "rejected", "accepted"]);
  assert.deepEqual(testOrder(deep.nodes), [0, 2, 1, 3]);
});

test("with two drafters every node names its drafter; with one, none does", () => {
  const round = drafted([-1, 0, 1], [0.5, 0.5, 0.5]);
  round.nodes.source = ["draft-model + store", "draft-model", "store"];
  const tree = model(round);
  assert.deepEqual(tree.drafters, ["draft-model", "store"]);
  assert.deepEqual([0, 1, 2].map((i) => tree.nodes.get(i).by), ["by-both", "by-0", "by-1"]);
  round.nodes.source = ["store", "store", "store"];
  assert.deepEqual([0, 1, 2].map((i) => model(round).nodes.get(i).by), ["", "", ""]);
  assert.deepEqual(drafterNames({ source: ["draft-model + store", "store"] }), ["draft-model", "store"], "by name, not by order");
  assert.deepEqual(drafterNames({}), [], "a trace without sources");
});
