import assert from "node:assert/strict";
import { test } from "node:test";
import { column, comparisonLines, csv, groupsOf, matches, pair, sorted, text } from "./runrows.js";
import { bars, summary } from "./thumbnail.js";

const row = (name, more = {}) => ({
  name, source: "kept", method: "draft-model", target: "text-target", tau: 2, acceptance_rate: 0.5, rounds: 10, tokens: 20,
  tokens_per_second: 30, speedup: null, prompt: "A story", created: "2026-11-30T10:00:00+00:00", tags: [], note: "", ...more,
});

test("a search combines words, tags and conditions", () => {
  const found = row("a", { tags: ["Story", "two"], tau: 2.5 });
  for (const query of ["", "story draft-model", "#story", "tau>=2.5", "τ>2 #two A", "rounds=10", "acceptance_rate<0.6"])
    assert.ok(matches(found, query), query);
  for (const query of ["poem", "#stor", "tau>2.5", "speedup>0", "unknown>0", "rounds!=10"]) assert.ok(!matches(found, query), query);
});

test("rows without a value come last in both directions", () => {
  const rows = [row("a", { tau: 2 }), row("b", { tau: null }), row("c", { tau: 3 })];
  const names = (direction) => sorted(rows, column("tau"), direction).map((each) => each.name).join("");
  assert.deepEqual([names(1), names(-1)], ["acb", "cab"]);
  assert.deepEqual(sorted([row("x10"), row("x9")], column("name"), 1).map((each) => each.name), ["x9", "x10"]);
});

test("values have units, and a speed-up its interval", () => {
  assert.equal(text(row("a"), column("acceptance_rate")), "50 %");
  assert.equal(text(row("a", { tau: null }), column("tau")), "–");
  const speedup = { value: 1.5, low: 1.4, high: 1.6, n: 5 };
  assert.equal(text(row("a", { speedup }), column("speedup")), "1.50× [1.40–1.60]");
  assert.equal(text(row("a", { speedup: { ...speedup, low: null, n: 1 } }), column("speedup")), "1.50× (n = 1)");
  assert.equal(text(row("a"), column("created")), "2026-11-30 10:00");
});

test("two runs or two groups are compared, nothing else", () => {
  const rows = [row("a"), row("b", { method: "eagle" }), row("c"), row("d", { method: "medusa" })], by = column("method");
  assert.deepEqual(groupsOf(rows, by).map((group) => [group.name, group.rows.length]), [["draft-model", 2], ["eagle", 1], ["medusa", 1]]);
  assert.match(pair([], by).why, /Select two runs/);
  assert.match(pair(rows, by).why, /By method, the selected runs form 3 groups/);
  assert.match(pair([rows[0], rows[2], row("e")], by).why, /one group/);
  const groups = pair(rows.slice(0, 3), by);
  assert.deepEqual([groups.why, groups.first.rows.length, groups.second.name], ["", 2, "eagle"]);
  const runs = pair([rows[0], rows[2]], by);
  assert.deepEqual([runs.first.name, runs.second.name], ["a", "c"], "two runs of one method");
});

test("a comparison states difference, interval, n and why runs are not comparable", () => {
  const figure = { value: -0.5, low: -0.8, high: -0.2, n: 4, verdict: "lower" };
  const speed = { value: 1.2, low: 1.1, high: 1.3, n: 4, prompts: 4, verdict: "faster", basis: "n = 4 prompts" };
  const lines = comparisonLines({ problems: [], notes: ["A note."], prompts: 4, figures: { tau: figure, speed } }, "a", "b");
  assert.deepEqual(lines, [
    "a compared with b, on 4 prompts that both ran.", "τ: −0.50, lower (−0.80 to −0.20, n = 4 prompts).",
    "Speed: 1.20×, faster (1.10–1.30×, n = 4 prompts).", "A note.",
  ]);
  const single = comparisonLines({ problems: [], notes: [], prompts: 1, figures: { tau: { ...figure, low: null, high: null, n: 1, verdict: "n = 1: no interval" } } }, "a", "b");
  assert.equal(single[1], "τ: −0.50, n = 1: no interval.");
  assert.deepEqual(comparisonLines({ problems: ["The targets differ: x and y."], notes: [], prompts: 0, figures: {} }, "a", "b"),
    ["Not comparable. The targets differ: x and y."]);
});

test("CSV quotes what needs it, and no text becomes a formula", () => {
  const lines = csv([row("a", { prompt: 'He said "no",\nthen', note: "=1+1", tags: ["x", "y"], speedup: { value: 1.5, low: null, high: null, n: 1 } })]);
  assert.ok(lines.startsWith("name,source,method,target,"));
  assert.ok(lines.includes('"He said ""no"",\nthen"'));
  assert.ok(lines.includes(",'=1+1\r\n"));
  assert.ok(lines.includes('"x, y"'));
  assert.ok(lines.includes(",1.5,,,1,"));
  assert.equal(csv([row("a", { tau: -1 })]).includes("'-1"), false, "numbers stay numbers");
});

test("a thumbnail has one bar per round, accepted drafts below the other tokens", () => {
  const drawn = bars([[0, 1], [3, 4]], 100, 40);
  assert.deepEqual(drawn.map(({ accepted, all }) => [accepted, all]), [[0, 10], [30, 40]]);
  assert.ok(drawn[1].x > drawn[0].x);
  const many = bars(Array.from({ length: 80 }, () => [1, 2]), 320, 40);
  assert.ok(many.at(-1).x + many.at(-1).width <= 320);
  assert.equal(summary([[0, 1], [3, 4]]), "Accepted drafts in the first 2 rounds: 0 in 1, at most 3");
  assert.deepEqual(bars([]), []);
});
