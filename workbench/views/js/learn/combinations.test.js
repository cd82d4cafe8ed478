import assert from "node:assert/strict";
import { test } from "node:test";
import { drafterText, offersWith, lines, missing, signs, signsText } from "./combinations.js";
import { summary, matches } from "./find.js";

const offer = { method: "m", title: "M", verifier: "k-seq", promise: "exact", standing: "shown", reason: "", ways: {} };

test("an offer lists its verifier, policies, tree builders, and why it is not exact", () => {
  const offer = { verifier: "lenient", ways: { policy: ["fixed", "planned"], grower: ["chain"] }, reason: "" };
  assert.deepEqual(lines(offer), ["verifier = lenient", "policy: fixed, planned", "grower: chain"]);
  const withPolicies = { ...offer, policies: { fixed: "shown", planned: "unproven" } };
  assert.equal(lines(withPolicies)[1], "policy: fixed (shown), planned (unproven)");
  assert.deepEqual(lines({ verifier: "", ways: {}, reason: "It is approximate." }), ["It is approximate."]);
});

test("a combination without methods says whether it would be exact", () => {
  assert.equal(missing({ reason: "Its siblings may be chosen." }), "✕ Its siblings may be chosen.");
  assert.equal(missing({ reason: "It is approximate.", approximate: true }), "– Not offered. It is approximate.");
  assert.match(missing({ reason: "" }), /would be exact/);
  assert.deepEqual([signs({ offers: [], reason: "No." }), signs({ offers: [], reason: "" })], [["✕"], ["·"]]);
});

test("a cell is confirmed only if all its exact combinations have evidence", () => {
  const of = (...offers) => signs({ offers, reason: "" });
  assert.deepEqual(of(offer), ["✓"]);
  assert.deepEqual(of(offer, { ...offer, standing: "unproven" }), ["✓?"]);
  assert.deepEqual(of({ ...offer, policies: { fixed: "shown", bandit: "unproven" } }), ["✓?"]);
  assert.deepEqual(of({ ...offer, standing: "unproven" }), ["?"]);
  assert.deepEqual(of(offer, { ...offer, standing: "broken" }), ["!"]);
  assert.deepEqual(of(offer, { ...offer, promise: "approximate", standing: "no promise" }), ["✓", "≈"]);
  assert.deepEqual(of({ ...offer, promise: "approximate" }), ["≈"]);
  const greyed = { ...offer, promise: "approximate", greyed: true };
  assert.deepEqual(of(offer, greyed), ["✓"], "combinations that the form disables are not shown as approximate");
  assert.deepEqual(of(greyed), ["✕"]);
  assert.deepEqual(of({ ...offer, promise: "simulation" }), ["◇"]);
});

test("a policy has its own evidence; a method's only policy can be selected", () => {
  const ways = { policy: ["fixed", "bandit"] }, policies = { fixed: "shown", bandit: "unproven" };
  const cell = { offers: [{ ...offer, ways, policies, only: { grower: "chain" } }], reason: "" };
  assert.deepEqual(signs(cell, { policy: "bandit" }), ["?"]);
  assert.deepEqual(signs(cell, { policy: "fixed", grower: "chain" }), ["✓"]);
  assert.deepEqual(signs(cell, { grower: "dyspec" }), []);
  assert.equal(offersWith(cell.offers, { policy: "none" }).length, 0);
  assert.equal(signsText([], { grower: "dyspec" }), "not offered with grower dyspec");
  assert.equal(signsText(["✓", "≈"], {}), "exact, confirmed on the exactness board; also approximate");
  assert.equal(drafterText({ methods: ["EAGLE", "EAGLE-2"], drafter: "Eagle", cells: [] }), "EAGLE, EAGLE-2");
});

test("a query matches if all its words occur, in any order and case", () => {
  assert.ok(matches("Draft model, k-seq, Sun et al.", "SUN draft"));
  assert.ok(!matches("Draft model", "draft tree"));
  assert.ok(matches("anything", ""));
  assert.equal(summary(3, 37, 1), "3 of 37 methods, 1 row of the boards");
});
