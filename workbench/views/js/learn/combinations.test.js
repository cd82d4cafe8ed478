import assert from "node:assert/strict";
import { test } from "node:test";
import { lines, missing } from "./combinations.js";

test("an offer lists its verifier, its policies and growers, and why it is not exact", () => {
  const offer = { verifier: "lenient", ways: { policy: ["fixed", "planned"], grower: ["chain"] }, reason: "" };
  assert.deepEqual(lines(offer), ["verifier = lenient", "policy: fixed, planned", "grower: chain"]);
  const told = { ...offer, policies: { fixed: "shown", planned: "unproven" } };
  assert.equal(lines(told)[1], "policy: fixed (shown), planned (unproven)");
  assert.deepEqual(lines({ verifier: "", ways: {}, reason: "It is approximate." }), ["It is approximate."]);
});

test("what is not offered says whether it would be sound", () => {
  assert.equal(missing("Its siblings may be chosen."), "✕ Its siblings may be chosen.");
  assert.match(missing(""), /would be sound/);
});
