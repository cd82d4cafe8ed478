import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { layout } from "./tree.js";
import { nest } from "./treelist.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../tests/fixtures/wire/tree.json", import.meta.url)));

test("the list holds every drawn node once, under its parent, with its status in words", () => {
  for (const round of rounds) {
    const { items } = layout(round), texts = [];
    const walk = (n, depth) => texts.push([n.text, depth]) && n.children.forEach((c) => walk(c, depth + 1));
    walk(nest(items, " the"), 0);
    assert.equal(texts.length, items.length);
    assert.equal(texts[0][0], "“ the”, committed");
    assert.deepEqual(texts.map(([, depth]) => depth).sort(), items.map((n) => n.depth).sort());
    assert.ok(texts.some(([text]) => /rejected|accepted|discarded/.test(text)));
  }
});
