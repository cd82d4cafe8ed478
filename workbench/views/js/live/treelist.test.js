import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { nest } from "./treelist.js";
import { awaited, model } from "./treemodel.js";
import { sentence } from "./treetext.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/tree.json", import.meta.url)));

test("the list has every node once, under its parent, with its result", () => {
  for (const round of rounds) {
    const tree = model(round, { root: " the" }), texts = [];
    const walk = (n, depth) => texts.push([n.text, depth]) && n.children.forEach((c) => walk(c, depth + 1));
    walk(nest(tree, sentence), 0);
    assert.equal(texts.length, tree.nodes.size);
    assert.equal(texts[0][0], "“␣the”, committed");
    assert.deepEqual(texts.map(([, depth]) => depth).sort(), [...tree.nodes.values()].map((n) => n.depth).sort());
    assert.ok(texts.some(([text]) => /(accepted: u [.\d]+ <|rejected: u [.\d]+ ≥) /.test(text)));
  }
});

test("results that are not visible yet and the target's token are not in the list", () => {
  const [round] = rounds, text = JSON.stringify(nest(model(round), sentence, awaited(round, 0)));
  assert.ok(!/accepted|rejected|corrected|bonus/.test(text));
  assert.ok(!text.includes('"id":"target"'), "not its text either");
  assert.ok(JSON.stringify(nest(model(round), sentence)).includes('"id":"target"'));
});
