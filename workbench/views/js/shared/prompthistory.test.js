import assert from "node:assert/strict";
import { test } from "node:test";
import { LONGEST, MOST, MOST_SETS, added, parse, read, remember, short, update, withSet } from "./prompthistory.js";

/** Storage as in a browser. */
function storage() {
  let held = null;
  return { getItem: () => held, setItem: (_, value) => (held = value), removeItem: () => (held = null) };
}

test("the history has each prompt once, the newest first, and a limited number", () => {
  assert.deepEqual(added(["a", "b"], "b"), ["b", "a"]);
  assert.deepEqual(added(["a"], "  "), ["a"]);
  assert.deepEqual(added(["a"], "x".repeat(LONGEST + 1)), ["a"]);
  const many = Array.from({ length: 40 }, (_, i) => `${i}`).reduce(added, []);
  assert.equal(many.length, MOST);
  assert.equal(many[0], "39");
});

test("a set replaces one of the same name; empty sets and names are refused; their number is limited", () => {
  const sets = withSet(withSet([], "one", ["a", "a", " "]), "two", ["b"]);
  assert.deepEqual(sets, [{ name: "two", prompts: ["b"] }, { name: "one", prompts: ["a"] }]);
  assert.deepEqual(withSet(sets, " one ", ["c"])[0], { name: "one", prompts: ["c"] });
  assert.equal(withSet(sets, "one", ["c"]).length, 2);
  assert.equal(withSet(sets, "", ["c"]), sets);
  assert.equal(withSet(sets, "three", []), sets);
  const many = Array.from({ length: 40 }, (_, i) => `${i}`).reduce((all, name) => withSet(all, name, ["a"]), []);
  assert.equal(many.length, MOST_SETS);
});

test("unreadable stored data count as none", () => {
  for (const text of [null, "", "{", "null", "[]", '{"last": 3, "sets": {}}', '{"sets": [null, {"name": 1}, {"name": "a", "prompts": []}]}'])
    assert.deepEqual(parse(text), { last: [], sets: [] }, `${text}`);
  assert.deepEqual(parse('{"last": ["a", 3, ""], "sets": [{"name": "s", "prompts": ["b", null]}]}'), {
    last: ["a"],
    sets: [{ name: "s", prompts: ["b"] }],
  });
});

test("prompts are stored, cleared, and need no storage", () => {
  const held = storage();
  remember("one", held);
  remember("two", held);
  assert.deepEqual(read(held).last, ["two", "one"]);
  update(() => ({ last: [] }), held);
  assert.equal(held.getItem(), null, "nothing is left in the browser");
  const blocked = { getItem: () => { throw new Error("blocked"); }, setItem: () => { throw new Error("blocked"); }, removeItem: () => {} };
  remember("one", blocked);
  assert.deepEqual(read(blocked), { last: [], sets: [] });
});

test("a prompt is shown in one line without role markers", () => {
  assert.equal(short("<|user|>Two\nlines<|assistant|>"), "Two lines");
  assert.ok(short("x".repeat(200)).endsWith("…"));
});
