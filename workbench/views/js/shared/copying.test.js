import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { joined, textOf } from "./copying.js";

const trace = JSON.parse(readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url)));

test("the text of a run is its tokens' text, cut at a stop string", () => {
  const text = trace.rounds.flatMap((r) => r.emitted).map((e) => e.text).join("");
  assert.equal(textOf({ footer: null, rounds: trace.rounds }), text);
  assert.equal(textOf({ footer: { reason: "", text: "" }, rounds: trace.rounds }), text);
  assert.equal(
    textOf({ footer: { reason: "stop-string", text: text.slice(0, 5) }, rounds: trace.rounds }),
    text.slice(0, 5),
  );
});

test("visible symbols are copied as their raw text, and cut tokens completely", () => {
  const pieces = [
    { raw: " lighthouse", shown: " lighthouse", from: 6, to: 11 },
    { raw: "\n", shown: "⏎", from: 0, to: 1 },
    { raw: "", shown: "·", from: 0, to: 1 },
    { raw: "\tx", shown: "⇥   x", from: 0, to: 0 },
    { raw: "ab", shown: "ab", from: 0, to: 1 },
  ];
  assert.equal(joined(pieces), "house\na");
});
