import assert from "node:assert/strict";
import { test } from "node:test";
import * as picker from "./methodpicker.js";

const method = (name, group, more = {}) => ({ name, title: name.toUpperCase(), group, ...more });
const groups = /** @type {[string, string][]} */ ([["Heads", "trained"], ["Text", "copied"]]);

test("a search finds words of name, title, explanation and authors in any order", () => {
  const eagle = method("eagle-3", "Heads", { teaches: "Early layers too", source: { authors: "Li et al.", year: 2025 } });
  for (const query of ["eagle", "li 2025", "layers EAGLE", ""]) assert.ok(picker.matches(eagle, query), query);
  assert.ok(!picker.matches(eagle, "eagle medusa"));
});

test("groups keep their order and drop empty ones; a method of an unknown group is not lost", () => {
  const found = picker.grouped([method("a", "Text"), method("b", "Heads"), method("c", "?")], groups);
  assert.deepEqual(found.map((g) => [g.name, g.methods.map((m) => m.name)]), [["Heads", ["b"]], ["Text", ["a"]], ["Others", ["c"]]]);
  assert.deepEqual(picker.grouped([method("a", "Text")], groups, "zzz"), []);
});

test("a search selects the method whose name begins with it", () => {
  const methods = [method("draft-tree", "Text"), method("my-eagle", "Heads"), method("eagle", "Heads")];
  assert.equal(picker.best(methods, "eag"), "eagle");
  assert.equal(picker.best(methods, "tree"), "draft-tree");
  assert.equal(picker.best(methods, ""), null);
  assert.equal(picker.best(methods, "zzz"), null);
});

test("the sparkline is above the line of 1× where the method is faster", () => {
  const { points, one } = picker.sparkline([2, 1, 0.5]);
  assert.ok(points[0][1] < one && points[2][1] > one);
  assert.equal(points[1][1], one);
  assert.equal(Math.round(one - points[0][1]), Math.round(points[2][1] - one), "2× and 0.5× are equally far from it");
});

test("an unmeasured method has no figure", () => {
  assert.equal(picker.speedWords(undefined).value, "–");
  const speed = { speedup: { value: 1.5, low: 1.2, high: 1.8 }, tau: 2, by_kind: [["json", 1.5]], board: "work", date: "d" };
  assert.equal(picker.speedWords(speed).value, "1.50×");
  assert.match(picker.speedWords(speed).title, /1\.20–1\.80×.*json 1\.50×/);
});

test("arrows stop at the ends of the list", () => {
  assert.equal(picker.step(["a", "b"], "b", 1), "b");
  assert.equal(picker.step(["a", "b"], "a", -1), "a");
  assert.equal(picker.step(["a", "b"], "gone", 1), "a");
  assert.equal(picker.step([], "a", 1), null);
});
