import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { describe, ghosts, segments, visibleText, readable, words } from "./ribbon.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/tree.json", import.meta.url)));
const made = (texts) => ({
  index: 0,
  path: [],
  bonus_kind: "bonus",
  nodes: { status: [], text: [] },
  emitted: texts.map((text) => ({ text, kind: "bonus", node: null })),
});

test("no token is lost or duplicated by splitting into lines", () => {
  for (const round of rounds) {
    assert.deepEqual(segments(round).flatMap((s) => s.tokens.map((t) => t.k)), round.emitted.map((_, i) => i));
  }
});

test("a line break ends a line, two give an empty line", () => {
  const cut = segments(made(["a", "\n\n", "b"]));
  assert.deepEqual(cut.map((s) => s.tokens.length), [2, 1]);
  assert.deepEqual(cut.map((s) => s.breaks), [2, 0]);
});

test("ghosts are the drafts that were not accepted, rejected ones first", () => {
  for (const round of rounds) {
    const { shown, hidden } = ghosts(round);
    const lost = round.nodes.status.filter((s) => s !== "accepted").length;
    assert.equal(shown.length + hidden, lost);
    assert.deepEqual([...shown].sort((a, b) => (a.status < b.status ? 1 : a.status > b.status ? -1 : 0)), shown);
  }
});

test("invisible characters get a symbol", () => {
  assert.equal(visibleText("\n"), "⏎");
  assert.equal(visibleText(""), "·");
  assert.equal(visibleText(" <b>"), " <b>");
});

test("the description for screen readers names the end of the round", () => {
  assert.match(describe(rounds[0]), /^Round 1: \d+ of \d+ tested drafts accepted; /);
  const last = (bonus_kind) => describe({ ...made(["a"]), bonus_kind });
  assert.equal(last("plain"), "Round 1: no drafts; target token “a”", "no draft, no bonus");
  assert.match(last("bonus"), /; bonus token “a”$/);
  assert.match(last("corrected"), /; corrected token “a”$/);
});

test("a prompt in another script is readable: joined bytes are shown as their character", () => {
  assert.equal(readable("‹D7›‹A9›‹D7›‹9C› ok ‹F0›‹9F›‹90›‹B1›"), "\u05e9\u05dc ok \u{1f431}");
  assert.equal(readable("half ‹D7›"), "half ‹D7›");
});

test("drafted bytes show the character that they complete on their path, otherwise a dot, never hexadecimal", () => {
  const nodes = { text: [" ok", "‹D7›", "‹A9›", "‹D7›‹9C›", "a‹F0›", "‹9C›", "b"], parents: [-1, 0, 1, 2, 0, 1, 1] };
  assert.deepEqual(words(nodes), [" ok", "·", "\u05e9", "\u05dc", "a·", "\u05dc", "·b"]);
  const round = { ...made(["x"]), nodes: { ...nodes, status: nodes.text.map(() => "rejected") } };
  assert.ok(!JSON.stringify(ghosts(round)).includes("‹"));
  assert.equal(words({ text: ["<|user|>"], parents: [-1] }, () => "user")[0], "user");
  const marker = { ...made([]), nodes: { text: ["<|user|>"], parents: [-1], status: ["rejected"] } };
  assert.equal(ghosts(marker).shown[0].text, "user", "a drafted chat marker shows its role");
});
