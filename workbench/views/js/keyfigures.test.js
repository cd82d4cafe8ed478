import assert from "node:assert/strict";
import { test } from "node:test";
import { items } from "./keyfigures.js";
import { summary } from "./figures.js";
import { figure } from "./speedup.js";

const definitions = { tau: ["τ", "tokens / passes"] }, none = figure({ mine: null, plain: null, none: "no baseline yet" });

test("no figure is invented before there is a round or a baseline", () => {
  for (const item of items(summary([]), null, definitions, none)) assert.doesNotMatch(item.value, /\d|NaN/);
});

test("the formula is the one of the definitions", () => {
  assert.equal(items(summary([]), null, definitions, none).find((i) => i.id === "tau").formula, "tokens / passes");
});
