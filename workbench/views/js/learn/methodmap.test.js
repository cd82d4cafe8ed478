import assert from "node:assert/strict";
import { test } from "node:test";
import { availableOn, dotsOf, everything, interval, look, passes, sources, split } from "./methodmap.js";

const METHODS = [
  { name: "eagle", title: "EAGLE", group: "Trained heads", promise: "exact", part: "head", teaches: "features" },
  { name: "lookup", title: "Prompt lookup", group: "The text itself", promise: "exact", part: "nothing", teaches: "copies" },
  { name: "typical", title: "Typical", group: "Trained heads", promise: "approximate", part: "head", teaches: "" },
];
const speed = (value, tau) => ({
  tau, speedup: { value, low: value - 0.1, high: value + 0.1, n: 27, prompts: 27 }, by_kind: [["code", value]],
  board: "work", date: "2026-11-24 10:00",
});
const names = (filters, available) =>
  METHODS.filter((method) => passes(method, { ...everything(), ...filters }, available)).map((method) => method.name);

test("filters by words, group, promise, need and availability", () => {
  assert.equal(names({}).length, 3);
  assert.deepEqual(names({ query: "copies LOOKUP" }), ["lookup"]);
  assert.deepEqual(names({ groups: ["Trained heads"] }), ["lookup"], "hidden groups");
  assert.deepEqual(names({ promise: "approximate" }), ["typical"]);
  assert.deepEqual(names({ part: "nothing" }), ["lookup"]);
  assert.deepEqual(names({ here: true }, new Set(["eagle"])), ["eagle"]);
  assert.equal(names({ here: true }, null).length, 3, "not known yet");
  assert.equal(names({ here: false }, new Set(["eagle"])).length, 3);
});

test("a method is available on a target if it runs there with some draft model", () => {
  const columns = [{ target: "a", drafter: "d" }, { target: "a", drafter: null }, { target: "b", drafter: null }];
  const matrix = { columns, rows: [{ name: "x", reasons: ["", "no draft model", "no"] }, { name: "y", reasons: ["no", "no", ""] }] };
  assert.deepEqual([...availableOn(matrix, "a")], ["x"]);
  assert.deepEqual([...availableOn(matrix, "b")], ["y"]);
  assert.equal(availableOn(matrix, "c"), null);
});

test("only measured methods have a place on the map, at their τ and speed with its interval", () => {
  const speeds = { eagle: speed(1.1, 3), gone: speed(9, 9) }, { measured, others } = split(METHODS, speeds);
  assert.deepEqual(measured.map((m) => m.name), ["eagle"]);
  assert.deepEqual(others.map((m) => m.name), ["lookup", "typical"]);
  const groups = [["The text itself", ""], ["Trained heads", ""]];
  const [dot] = dotsOf(measured, speeds, groups, () => false);
  assert.deepEqual([dot.id, dot.x, dot.y, dot.low, dot.high, dot.faint], ["eagle", 3, 1.1, 1.0, 1.2000000000000002, true]);
  assert.deepEqual({ mark: dot.mark, colour: dot.colour }, look(groups, "Trained heads"));
});

test("groups differ in mark or fill, not only in colour", () => {
  const groups = Array.from({ length: 7 }, (_, i) => [`${i}`, ""]);
  const looks = groups.map(([name]) => look(groups, name)).map(({ mark, hollow }) => `${mark} ${Boolean(hollow)}`);
  assert.equal(new Set(looks).size, 7);
});

test("intervals and boards are stated", () => {
  assert.equal(interval({ low: 1, high: 1.2, n: 27, prompts: 9 }), " (1.00–1.20×, n = 27: 9 prompts)");
  assert.equal(interval({ low: null, high: null, n: 2, prompts: 2 }), " (2 runs)");
  assert.equal(sources({ a: speed(1, 1), b: { ...speed(1, 1), date: "2026-11-25" }, c: { ...speed(1, 1), board: "heads" } }),
    "board “work”, 2026-11-25; board “heads”, 2026-11-24");
});
