import assert from "node:assert/strict";
import { test } from "node:test";
import { compared, digits, evaluate, rounded, tokens, written } from "./formula.js";

test("formulas are evaluated correctly: precedence, functions, comparisons, symbols with a common prefix", () => {
  const near = (formula, values, wanted) => assert.ok(Math.abs(evaluate(formula, values) - wanted) < 1e-12, formula);
  near("min(1, p / q)", { p: 0.2, q: 0.5 }, 0.4);
  near("min(1, r / q′)", { r: 0.2, "q′": 0.8, q: 9 }, 0.25);
  near("1 − 2 · 3 − 4 / (1 + 1)", {}, -7);
  near("min(ε, δ · exp(−H))", { ε: 0.09, δ: 0.3, H: 2 }, 0.3 * Math.exp(-2));
  near("x = x*", { x: 3, "x*": 3 }, 1);
  near("p > θ", { p: 0.1, θ: 0.1 }, 0);
});

test("an invalid formula gives NaN and is never executed", () => {
  for (const bad of [
    "",
    "p +",
    "p q",
    "min(1, p",
    "alert(1)",
    "constructor",
    "p; 1",
    "(p",
    "p)",
    "q",
    "1e5",
    "x".repeat(500),
    null,
    undefined,
    {},
  ])
    assert.ok(Number.isNaN(evaluate(bad, { p: 0.5 })), String(bad));
  assert.ok(Number.isNaN(evaluate("p > q", { p: 0.5, q: null + undefined })));
});

test("an equation gets as many digits as it needs to hold; a false equation gives null", () => {
  const { words, result } = rounded("min(1, p / q)", { p: 0.014499, q: 0.031 }, 0.014499 / 0.031);
  assert.equal(
    Number((Number(words.p) / Number(words.q)).toPrecision(result.replace(/^0\./, "").length)),
    Number(result),
  );
  assert.equal(
    rounded("min(1, p / q)", { p: 5e-12, q: 0.78 }, 5e-12),
    null,
    "the card once said min(1, 5e-12 / 0.78) = 5e-12",
  );
  assert.equal(
    rounded("min(1, p / q)", { p: 0.2, q: 0.5 }, 0.4003),
    null,
    "almost equal is not equal, although both print as 0.4",
  );
  assert.equal(rounded("p > θ", { p: 0.09004, θ: 0.09 }, 1).words.p, "0.09004", "with two digits it would not hold");
});

test("numbers are printed short, small ones as powers of ten; a comparison shows why it holds", () => {
  assert.deepEqual(
    [digits(0.5, 3), digits(5e-12, 2), digits(1.2e-4, 2), digits(0, 2), digits(4, 2)],
    ["0.5", "5·10⁻¹²", "1.2·10⁻⁴", "0", "4"],
  );
  assert.deepEqual(compared(0.25311, 0.25312), ["0.25311", "<", "0.25312"]);
  assert.deepEqual(compared(0.5, 0.5), ["0.5", "≥", "0.5"]);
});

test("values replace symbols only", () => {
  assert.equal(written("min(1, p / q)", { p: "0.1", q: "0.2" }), "min(1, 0.1 / 0.2)");
  assert.equal(tokens("p ^ 2", ["p"]), null);
});
