import assert from "node:assert/strict";
import { test } from "node:test";

import { groups, place, words } from "./probes.js";

const probe = (text, parent, position, source = "reflective") => ({ token: 1, text, parent, position, source });
const round = {
  nodes: { text: ["a", "b"] },
  probes: [probe("?", 1, 9), probe("a", 2, 10), probe("x", -1, 7, "asking")],
};

test("probes are grouped by source, in order", () => {
  assert.deepEqual(groups(round), [
    { source: "reflective", tokens: [{ text: "?", position: 9, parent: 1 }, { text: "a", position: 10, parent: 2 }] },
    { source: "asking", tokens: [{ text: "x", position: 7, parent: -1 }] },
  ]);
});

test("older traces have none", () => {
  assert.deepEqual(groups({ nodes: { text: [] } }), []);
  assert.deepEqual(groups(null), []);
  assert.equal(words({ probes: [] }), "");
  assert.equal(words(null), "");
});

test("words give the number of probe tokens, and the token that each follows", () => {
  assert.equal(words(round), "3 probe tokens");
  assert.equal(words({ probes: [probe("?", -1, 3)] }), "1 probe token");
  assert.equal(place(round, -1), "after the last token before this round");
  assert.equal(place(round, 1), "after the draft “b”");
  assert.equal(place(round, 2), "after the probe token “?”");
});
