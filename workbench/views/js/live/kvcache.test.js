import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { bytes, countWords, entryWords, keepingWords, memoryWords, neighbour, of } from "./kvcache.js";

const read = (name) => JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url)));
const LAYOUT = {
  layers: 12, kv_heads: 6, head_dim: 48, bytes_per_position: { float32: 27648, bfloat16: 13824 }, sliding: null,
};

for (const name of ["plain", "chain", "tree", "switch"])
  test(`each round of a ${name} run continues at the positions that the round before it kept`, () => {
    const { header, rounds } = read(name);
    let after = header.prompt_tokens.length - 1; // the newest token has no entry
    rounds.forEach((round, i) => {
      const cache = of(round, rounds.slice(0, i));
      assert.equal(cache.why, "");
      assert.equal(cache.before, after, `round ${i + 1}`);
      assert.equal(cache.entries.length, 1 + round.nodes.parents.length);
      after += round.emitted.length;
      if (round.bonus !== null) assert.equal(cache.after, after);
      assert.equal(cache.entries.filter((e) => e.kept !== null).length, cache.after - cache.before);
      assert.equal(cache.dropped, cache.before + cache.entries.length - cache.after);
    });
  });

test("accepted nodes move to the first positions after the root, in the order of the path; others are dropped", () => {
  const { rounds } = read("tree"), i = rounds.findIndex((r) => r.path.length > 1 && r.path.at(-1) > r.path.length);
  const cache = of(rounds[i], rounds.slice(0, i)), kept = cache.entries.filter((e) => e.kept !== null);
  assert.deepEqual(kept.map((e) => e.id), [-1, ...rounds[i].path]);
  assert.deepEqual(kept.map((e) => e.kept), kept.map((_, k) => cache.before + k));
  assert.ok(kept.some((e) => e.at > e.kept));
  assert.ok(cache.entries.filter((e) => e.kept === null).every((e) => e.kind !== "accepted" && e.kind !== "root"));
  assert.deepEqual(cache.entries.map((e) => e.at), cache.entries.map((_, k) => cache.before + k));
});

test("a text that ends inside the accepted path keeps no position after its last token", () => {
  const round = {
    nodes: { parents: [-1, 0, 1], depth: [1, 2, 3], position: [10, 11, 12], status: Array(3).fill("accepted"), text: ["a", "b", "c"] },
    path: [0, 1, 2], bonus: null, bonus_kind: null,
    emitted: [{ position: 10, node: 0, text: "a" }, { position: 11, node: 1, text: "b" }],
  };
  const cache = of(round, []);
  assert.deepEqual([cache.before, cache.after, cache.dropped, cache.own], [9, 12, 1, null]);
});

test("tokens that a verifier takes back lose their positions", () => {
  const nodes = { parents: [-1], depth: [1], position: [12], status: ["rejected"], text: ["x"] };
  const placed = [10, 11].map((position) => ({ position, token: 1, text: "t", p: 1 }));
  const before = [{ nodes: { parents: [] }, path: [], emitted: [{ position: 9, node: null, text: "a" }], placed, revoked: [] }];
  const round = { nodes, path: [], bonus: null, bonus_kind: null, emitted: [], placed: [], revoked: [10, 11] };
  const cache = of(round, before);
  assert.deepEqual([cache.before, cache.after, cache.earlier, cache.dropped], [11, 9, 2, 2]);
  assert.match(countWords(cache), /11 positions before → 2 written \(13 in all\) → 9 positions kept, 4 dropped \(2 from earlier rounds\)/);
});

test("if all tokens are taken back, the prompt without its last token stays", () => {
  const draft = (position, path) => ({
    nodes: { parents: [-1], depth: [1], position: [position], status: ["accepted"], text: ["x"] },
    path, bonus: null, bonus_kind: null, emitted: [],
  });
  const placed = [5, 6].map((position) => ({ position, token: 1, text: "t", p: 1 }));
  const first = { ...draft(5, [0]), placed, revoked: [] }, second = { ...draft(7, [0]), placed: [], revoked: [5, 6] };
  assert.equal(of(first, []).after, 6);
  assert.deepEqual([of(second, [first]).before, of(second, [first]).after], [6, 4]);
});

test("probe positions are written and dropped", () => {
  const { rounds } = read("chain"), probes = [{ token: 1, text: "p", parent: -1, position: 11, source: "s" }];
  const cache = of({ ...rounds[1], probes }, rounds.slice(0, 1)), last = cache.entries.at(-1);
  assert.deepEqual([last.kind, last.kept, last.at], ["probe", null, cache.before + cache.entries.length - 1]);
});

test("a streaming cache keeps sinks and the newest positions", () => {
  const round = (position, entries) => ({
    nodes: { parents: [], status: [], text: [] }, path: [], bonus: null, bonus_kind: null, placed: [], revoked: [],
    params: { sinks: 4, window: 8 },
    signals: { "KV cache entries": entries }, emitted: [{ position, node: null, text: "t" }],
  });
  const full = of(round(9, 9), []);
  assert.deepEqual([full.before, full.after, full.stream], [8, 9, null]);
  const cut = of(round(14, 12), [round(13, 13)]);
  assert.deepEqual(cut.stream, { sinks: 4, gone: 2, recent: 8 });
  assert.deepEqual([cut.before, cut.after, cut.earlier], [13, 12, 2]);
  assert.match(keepingWords(cut, LAYOUT), /first 4 positions \(sinks\) and the newest 8; 2 in between dropped so far/);
  assert.equal(of(round(14, 12), []).before, null, "the first round of a trace does not record the state before it");
});

test("a round of another scheme says that its cache is not recorded", () => {
  const nodes = { parents: [], status: [], text: [] };
  const placing = { nodes, path: [], bonus: null, bonus_kind: null, emitted: [], placed: [{ position: 3 }] };
  assert.match(of({ ...placing, revoked: [] }, []).why, /does not record/);
});

test("memory is the target's bytes per position times the number of positions, and absent if unknown", () => {
  const { rounds } = read("chain"), cache = of(rounds[1], rounds.slice(0, 1));
  const words = memoryWords(cache, LAYOUT, "bfloat16");
  assert.match(words, /^13\.8 kB per position \(keys and values × 12 layers × 6 KV heads × 48 dimensions × 2 bytes\)/);
  assert.ok(words.endsWith([cache.before, cache.before + 5, cache.after].map((n) => bytes(n * 13824)).join(" → ")));
  assert.equal(memoryWords(cache, LAYOUT, "float8"), "");
  assert.equal(memoryWords(cache, null, "float32"), "");
  assert.deepEqual([0, 999, 1500, 123456, 2.5e6].map(bytes), ["0 bytes", "999 bytes", "1.50 kB", "123 kB", "2.50 MB"]);
});

test("layers with a sliding window keep older positions in this cache", () => {
  const { rounds } = read("chain"), cache = of(rounds[0], []);
  assert.equal(keepingWords(cache, LAYOUT), "");
  assert.match(keepingWords(cache, { ...LAYOUT, sliding: { layers: 10, window: 512 } }), /^10 of 12 layers attend only to the last 512 positions/);
});

test("arrow keys move from the root over the nodes to the target's own token", () => {
  const { rounds } = read("chain"), cache = of(rounds[1], rounds.slice(0, 1));
  assert.equal(neighbour(cache, -1, "ArrowRight"), 0);
  assert.equal(neighbour(cache, null, "ArrowRight"), 0);
  assert.equal(neighbour(cache, -1, "ArrowLeft"), -1);
  assert.equal(neighbour(cache, 3, "ArrowRight"), "target");
  assert.equal(neighbour(cache, 2, "Home"), -1);
  assert.equal(neighbour(cache, 2, "ArrowUp"), null);
});

test("an entry's words name its text, state and fate", () => {
  const entry = { id: 0, kind: "accepted", text: " a", at: 12, kept: 11 };
  assert.equal(entryWords(entry, (t) => t.trim()), "“a”, accepted, written at position 12: kept, moved to position 11");
  assert.match(entryWords({ ...entry, kind: "discarded", kept: null }, (t) => t), /discarded, never tested, written at position 12: dropped/);
  assert.match(entryWords(entry, (t) => t, true), /not verified yet/);
});
