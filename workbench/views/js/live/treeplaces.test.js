import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as treemodel from "./treemodel.js";
import * as treeplaces from "./treeplaces.js";
import * as treetext from "./treetext.js";

/** Widths of a font: seven pixels a letter, twice as many for CJK and emoji. */
const measure = (text, small = false) =>
  [...text].reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e80 ? 2 : 1), 0) * (small ? 6 : 7.2);
const WORDS = [
  " the",
  " a",
  " drum",
  " house",
  "\n",
  " antidisestablishmentarianism",
  "日本語",
  " 見積書を",
  "🦊🦊🦊",
  "<img src=x>",
  " ",
  "",
  "é".repeat(30),
  " Σ",
];

function random(seed) {
  let state = seed;
  return () => (state = (state * 16807) % 2147483647) / 2147483647;
}

/** A round of `n` nodes, siblings in test order; `typical`: all nodes whose parents passed are
 *  tested. */
function round(n, depth, seed, { width = 8, first = depth < 3 ? n : Math.max(width, n / 2), typical = false } = {}) {
  const next = random(seed), parents = [], level = [], fan = new Map();
  while (parents.length < n) {
    const at = next() < 0.4 ? parents.length - 1 : Math.floor(next() * (parents.length + 1)) - 1;
    if (at >= 0 && level[at] >= depth) continue;
    if ((fan.get(at) ?? 0) >= (at < 0 ? first : width)) continue;
    fan.set(at, (fan.get(at) ?? 0) + 1);
    parents.push(at);
    level.push(at < 0 ? 1 : level[at] + 1);
  }
  const status = parents.map(() => "discarded"),
    path = [],
    children = (p) => parents.flatMap((q, i) => (q === p ? [i] : []));
  for (let at = -1; at !== null;) {
    const kids = children(at), chosen = next() < 0.8 && kids.length ? Math.floor(next() * kids.length) : kids.length;
    kids.slice(0, chosen).forEach((i) => (status[i] = "rejected"));
    at = kids[chosen] ?? null;
    if (at !== null) path.push(at), (status[at] = "accepted");
  }
  if (typical)
    parents.forEach(
      (p, i) =>
        status[i] === "discarded" && p >= 0 && status[p] === "rejected" && next() < 0.5 && (status[i] = "rejected"),
    );
  const tested = (i) => status[i] !== "discarded", word = () => WORDS[Math.floor(next() * WORDS.length)];
  return {
    index: 0,
    params: { temperature: seed % 3 ? 0.8 : 0 },
    path,
    bonus: 1,
    bonus_kind: path.length === n ? "bonus" : "corrected",
    emitted: [{ text: word(), kind: path.length === n ? "bonus" : "corrected", node: null, p: next() }],
    nodes: {
      parents,
      depth: level,
      status,
      text: parents.map(word),
      tokens: parents.map((_, i) => i),
      q: parents.map(() => next()),
      p: parents.map(() => next()),
      accept: parents.map((_, i) => (tested(i) ? next() : null)),
      u: parents.map((_, i) => (tested(i) && seed % 3 ? next() : null)),
    },
  };
}

function placed(tree, mode, { width, height, pitch = 24, open = () => undefined }) {
  const unfold = (column, room) =>
    treemodel.unfold(
      tree,
      open,
      mode === "spine" ? treemodel.spineAuto(tree, { column, room }) : treemodel.levelsAuto(tree),
    );
  return treeplaces[mode](tree, unfold, { width, height, pitch, measure }, treetext);
}

/** Return the straight parts of an edge; its round corners are within 7 pixels of them. */
function segments(path) {
  const found = [];
  let x = 0, y = 0;
  for (const [, op, rest] of path.matchAll(/([MHVQ])([-\d. ]+)/g)) {
    const v = rest.trim().split(" ").map(Number), to = op === "H" ? [v[0], y] : op === "V" ? [x, v[0]] : v.slice(-2);
    if (op === "H" || op === "V")
      found.push({ x0: Math.min(x, to[0]), x1: Math.max(x, to[0]), y0: Math.min(y, to[1]), y1: Math.max(y, to[1]) });
    [x, y] = to;
  }
  return found;
}

const meets = (a, b, slack = 0) =>
  a.x0 < b.x1 - slack && a.x1 > b.x0 + slack && a.y0 < b.y1 - slack && a.y1 > b.y0 + slack;

const wrong = (label, what) => assert.fail(`${label}: ${what}`);

/** Fail if two boxes overlap, an edge crosses a label, or an element is outside or too small to press. */
function examine(layout, label) {
  const all = treeplaces.boxes(layout).sort((a, b) => a.y0 - b.y0);
  all.forEach((a, i) => {
    if (a.x0 < 0 || a.y0 < 0 || a.x1 > layout.width || a.y1 > layout.height)
      wrong(label, `${a.what} of ${a.of} leaves the drawing`);
    for (let j = i + 1; j < all.length && all[j].y0 < a.y1; j += 1)
      if (meets(a, all[j], 0.01)) wrong(label, `${a.what} of ${a.of} meets ${all[j].what} of ${all[j].of}`);
  });
  for (const { id, node, path, fold, lead, hit: h } of layout.items) {
    for (const e of [path, fold?.path]
      .flatMap((p) => (p ? segments(p) : []))
      .concat(lead ? [{ x0: lead.x, x1: lead.x, y0: lead.y0, y1: lead.y1 }] : [])) {
      const thick = { x0: e.x0 - 0.5, x1: e.x1 + 0.5, y0: e.y0 - 0.5, y1: e.y1 + 0.5 };
      for (const b of all)
        if (b.what === "mark" ? b.of !== id && b.of !== node.parent && meets(e, b, 1) : meets(thick, b, 0.6))
          wrong(label, `the edge of ${id} crosses the ${b.what} of ${b.of}`);
    }
    if (h.w < 24 || h.h < 24) wrong(label, `${id} is hard to hit (${h.w} × ${h.h})`);
    for (const { hit: o, id: other } of layout.items)
      if (
        other !== id &&
        h.x < o.x + o.w - 0.01 &&
        h.x + h.w > o.x + 0.01 &&
        h.y < o.y + o.h - 0.01 &&
        h.y + h.h > o.y + 0.01
      )
        wrong(label, `${id} and ${other} share a place`);
  }
}

test("no overlaps, no crossed labels, nothing outside: random trees of all sizes, on wide and narrow screens", () => {
  for (let seed = 1; seed <= 42; seed += 1) {
    const n = [1, 4, 12, 30, 60, 64, 90][seed % 7],
      depth = 1 + (seed % 12),
      typical = seed % 4 === 0;
    const sample = round(n, depth, 100 + seed, { width: 8, typical }),
      tree = treemodel.model(sample, { root: " Tom" }),
      next = random(seed);
    const some = new Map([...tree.nodes.keys()].map((id) => [id, [true, false, undefined][Math.floor(next() * 3)]]));
    for (const [width, height, pitch] of [
      [1092, 312, 24],
      [677, 312, 24],
      [342, 260, 44],
    ]) {
      for (const mode of ["spine", "levels"]) {
        for (const [how, open] of [
          ["default folding", () => undefined],
          ["unfolded", () => true],
          ["folded", () => false],
          ["mixed", (id) => some.get(id)],
        ]) {
          examine(
            placed(tree, mode, { width, height, pitch, open }),
            `${mode}, ${n} nodes, depth ${depth}, ${width} px, ${how}, seed ${seed}`,
          );
        }
      }
    }
  }
});

test("a chain of ten and a width of sixty-four", () => {
  const wide = round(64, 1, 5, { width: 64 }), chain = round(10, 10, 3, { width: 1 });
  for (const sample of [wide, chain])
    for (const mode of ["spine", "levels"])
      for (const width of [1092, 677, 342])
        examine(placed(treemodel.model(sample, { root: "x" }), mode, { width, height: 312 }), `${mode} ${width}`);
});

test("sixty nodes at depth ten: the whole accepted path is visible at 677 pixels, and fits its region", () => {
  for (let seed = 1; seed < 40; seed += 1) {
    const sample = round(60, 10, seed, { first: 8 }),
      tree = treemodel.model(sample, { root: " Tom" }),
      { items, width, height } = placed(tree, "spine", { width: 677, height: 312 });
    assert.ok(width <= 690, `${width}`);
    assert.ok(height <= 312, `${height}`);
    assert.equal(items.filter((n) => n.top).length, tree.spine.length);
  }
});

test("every recorded round is placed without overlaps, with its tested nodes visible", () => {
  for (const name of ["tree", "chain", "plain", "switch"]) {
    const { rounds } = JSON.parse(
      readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url)),
    );
    for (const r of rounds) {
      const tree = treemodel.model(r, { root: " the" });
      for (const mode of ["spine", "levels"]) {
        const layout = placed(tree, mode, { width: 677, height: 312 });
        examine(layout, `${name} ${r.index} ${mode}`);
        const drawn = new Set(layout.items.map((n) => n.id));
        r.nodes.status.forEach((s, i) => assert.ok(s === "discarded" || drawn.has(i)));
      }
    }
  }
});

test("a label next to its fold button moves down instead of being cut completely", () => {
  const sample = round(12, 4, 9, { width: 3 });
  Object.assign(sample, { path: [0, 1, 2, 3] });
  Object.assign(sample.nodes, {
    parents: [-1, 0, 1, 2, -1, 0, 4, 4, 5, 5, 1, 10],
    depth: [1, 2, 3, 4, 1, 2, 2, 2, 3, 3, 3, 4],
    status: [..."aaaadddddddd"].map((s) => ({ a: "accepted", d: "discarded" })[s]),
    text: Array(12).fill(" blue"),
    u: [],
    accept: [],
  });
  const { items, column } = placed(treemodel.model(sample), "spine", { width: 342, height: 250, pitch: 44 });
  assert.ok(column < 60, "columns are narrow here");
  for (const n of items.filter((x) => !x.top))
    assert.ok(n.word.text.length >= 3, `${n.id}: “${n.word.text}” ${n.fold?.text}`);
});

test("the accepted path is one straight line", () => {
  for (let seed = 1; seed < 20; seed += 1) {
    const sample = round(30, 8, seed),
      { items } = placed(treemodel.model(sample), "spine", { width: 900, height: 312 }),
      ys = items.filter((n) => n.top).map((n) => n.y);
    assert.equal(new Set(ys).size, 1);
  }
});
