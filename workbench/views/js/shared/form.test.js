import assert from "node:assert/strict";
import { test } from "node:test";
import { clamp, field, folded, idle, snap, step, stepAt, values } from "./form.js";

const depth = { name: "draft_depth", kind: "int", default: 4, ge: 1, le: 12, choices: null, doc: "" };

test("a range gives a slider, an open range a number field, choices a select, a bool a switch", () => {
  assert.equal(field(depth).control, "slider");
  assert.equal(field({ ...depth, le: null }).control, "number");
  assert.equal(field({ ...depth, choices: ["a", "b"] }).control, "choice");
  assert.equal(field({ ...depth, kind: "bool", default: true }).control, "switch");
});

test("the title is the name in words", () => assert.equal(field(depth).title, "Draft depth"));

test("steps are round numbers", () => {
  assert.equal(step("int", 1, 12), 1);
  assert.equal(step("float", 0, 1), 0.01);
  assert.equal(step("float", 0, 2), 0.02);
  assert.equal(step("float", null, 2), "any");
});

test("a value outside its range is clamped, with a note", () => {
  assert.deepEqual(clamp(depth, 99), { value: 12, note: "draft_depth set to 12: allowed: whole numbers from 1 to 12" });
  assert.deepEqual(clamp(depth, 5), { value: 5, note: "" });
  assert.equal(clamp(depth, Number.NaN).value, 4);
  assert.equal(clamp(depth, 2.6).value, 3);
});

test("a parameter missing in the form is sent with its default", () => {
  assert.deepEqual(values([depth], {}), { draft_depth: 4 });
  assert.deepEqual(values([depth], { draft_depth: 7, other: 1 }), { draft_depth: 7 });
});

test("a parameter without effect shows its condition", () => {
  assert.equal(idle("policy = confidence or planned", { policy: "planned" }), "");
  assert.equal(idle("policy = confidence", { policy: "fixed" }), "has an effect only if policy is confidence");
  assert.equal(idle("temperature > 0", { temperature: 0 }), "has an effect only if temperature is above 0");
  assert.equal(idle("temperature > 0", { temperature: 0.2 }), "");
  assert.equal(idle("", {}), "");
});

test("many parameters of options that are not selected are folded away", () => {
  const of = (name, when) => ({ name, when }), grower = "grower = dyspec";
  const first = [of("policy", ""), of("threshold", "policy = confidence"), of("top_k", "temperature > 0")];
  const params = [...first, of("grower")];
  const more = [...params, of("form", grower), of("worth", grower), of("free", "verifier = optimal-two")];
  const inForce = { policy: "fixed", grower: "chain", verifier: "lossless", temperature: 0 };
  assert.deepEqual([...folded(params, inForce)], [], "one or two stay where they are");
  assert.deepEqual([...folded(more, inForce)], ["threshold", "form", "worth", "free"]);
  assert.deepEqual([...folded(more, { ...inForce, grower: "dyspec" })], [], "two are left");
});

test("a range too coarse for a slider has a number field", () => {
  const control = (kind, usual, ge, le) => field({ name: "x", kind, default: usual, ge, le, choices: null, doc: "" }).control;
  assert.equal(control("float", 2.5, 0.1, 600), "number");
  assert.equal(control("float", 3e-4, 0, 0.1), "number");
  assert.equal(control("int", 0, 0, 2 ** 31 - 1), "number");
  assert.deepEqual([control("float", 0.7, 0, 2), control("float", 0, 0, 2), control("int", 4, 1, 12)], Array(3).fill("slider"));
});

test("a slider can show a value between its steps, and moves by its steps", () => {
  assert.equal(stepAt(1.5, 0, 0.2), "any", "a browser would move it to 1.6");
  assert.equal(stepAt(1.6, 0, 0.2), "0.2");
  assert.equal(stepAt(0.07, 0, 0.01), "0.01");
  assert.equal(snap(1.5234, 0, 0.2), 1.6);
  assert.equal(snap(0.07, 0, 0.01), 0.07);
});
