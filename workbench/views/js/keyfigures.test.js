import assert from "node:assert/strict";
import { test } from "node:test";
import { items } from "./keyfigures.js";
import { summary } from "./figures.js";

const definitions = { tau: ["τ", "tokens / passes"] };

test("no figure is invented before there is a round or a baseline", () => {
  for (const item of items(summary([]), null, definitions)) assert.doesNotMatch(item.value, /\d|NaN/);
});

test("the speed-up is the quotient of two measured rates", () => {
  const figures = { ...summary([]), rounds: 1, tokens_per_second: 300 };
  assert.equal(items(figures, { tokens_per_second: 150 }, definitions)[0].value, "2.00×");
  assert.match(items(figures, { tokens_per_second: 600 }, definitions)[0].label, /slower/);
});

test("the formula is the one of the definitions", () => {
  assert.equal(items(summary([]), null, definitions).find((i) => i.id === "tau").formula, "tokens / passes");
});
