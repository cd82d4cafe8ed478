import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import {
  acceptanceByDepth,
  acceptanceOverTime,
  changeMarks,
  histogram,
  methodSegments,
  segmentFigures,
  settingMarks,
  speedOverTime,
  summary,
  baselineBreak,
  wilson,
} from "./figures.js";

const fixture = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url)));

test("an empty count gives null, not zero or NaN", () => {
  const f = summary([]);
  assert.equal(f.tau, null);
  assert.equal(f.acceptance_rate, null);
  assert.equal(f.tokens_per_second, null);
});

test("plain decoding has τ = 1 and no acceptance rate", () => {
  const f = summary(fixture("plain").rounds);
  assert.equal(f.tau, 1);
  assert.equal(f.acceptance_rate, null);
});

test("the cumulative curve ends at the acceptance rate", () => {
  const { rounds } = fixture("chain");
  assert.equal(acceptanceOverTime(rounds).at(-1).cumulative, summary(rounds).acceptance_rate);
});

test("the windowed curve ignores rounds before the window", () => {
  const round = (status) => ({ nodes: { status }, path: status.filter((s) => s === "accepted"), emitted: [] });
  const points = acceptanceOverTime([round(["accepted"]), round(["rejected"]), round(["rejected"])], 2);
  assert.deepEqual(points.map((p) => p.windowed), [1, 0.5, 0]);
});

test("a round counts once per depth, however many siblings it tested there", () => {
  const nodes = { depth: [1, 1, 2], status: ["rejected", "accepted", "discarded"] };
  const [first, ...rest] = acceptanceByDepth([{ nodes }]);
  assert.deepEqual([first.depth, first.tested, first.accepted], [1, 1, 1]);
  assert.equal(rest.length, 0);
});

test("the histogram counts every round once", () => {
  const { rounds } = fixture("tree");
  assert.equal(histogram(rounds).reduce((a, b) => a + b.rounds, 0), rounds.length);
});

test("a change is marked at the round where it takes effect", () => {
  assert.deepEqual(changeMarks(fixture("switch").rounds), [{ index: 6, text: "depth 2 → 5" }]);
});

test("a new method is named without its parameters", () => {
  const changes = [
    { name: "method", before: "a", after: "b" },
    { name: "width", before: null, after: 3 },
    { name: "depth", before: 2, after: 4 },
  ];
  assert.equal(changeMarks([{ index: 1, changes }])[0].text, "a → b, depth 2 → 4");
  const pictures = [{ name: "pictures", before: "unchanged", after: "changed for the drafter only" }];
  assert.equal(changeMarks([{ index: 1, changes: pictures }])[0].text, "images changed for the drafter only");
});

test("the interval contains the quotient and stays inside 0 to 1", () => {
  for (const [k, n] of [[0, 3], [3, 3], [5, 9]]) {
    const { low, high } = wilson(k, n);
    assert.ok(low >= 0 && high <= 1 && low <= k / n + 1e-9 && high >= k / n - 1e-9);
  }
});

test("tokens per second over time ends at the run's figure", () => {
  const { rounds } = fixture("chain"), points = speedOverTime(rounds, 4), all = summary(rounds);
  assert.ok(Math.abs(points.at(-1).cumulative - all.tokens_per_second) < 1e-9);
  const last = rounds.slice(-4),
    tokens = last.reduce((a, r) => a + r.emitted.length, 0),
    end = (r) => r.started_s + r.seconds;
  assert.ok(Math.abs(points.at(-1).windowed - tokens / (end(rounds.at(-1)) - end(rounds.at(-5)))) < 1e-6);
});

test("time between rounds counts, in tokens per second and as overhead", () => {
  const round = (started_s) => ({
    nodes: { status: [] },
    path: [],
    emitted: [{}, {}],
    started_s,
    seconds: 0.5,
    draft_s: 0.1,
    verify_s: 0.2,
    waited_s: 0.1,
    overhead_s: 0.1,
    target_forwards: 1,
  });
  const f = summary([round(0.2), round(0.8)]); // the last one ends 1.3 s after the prefill
  assert.ok(Math.abs(f.tokens_per_second - 4 / 1.3) < 1e-9);
  assert.ok(Math.abs(f.overhead_seconds - 0.5) < 1e-9);
  assert.ok(Math.abs(f.overhead_share - 0.5 / 1.3) < 1e-9);
});

test("a change of sampling during the run invalidates the baseline, a change of depth does not", () => {
  const rounds = [
    { index: 0, changes: [] },
    { index: 1, changes: [{ name: "depth", before: 2, after: 4 }] },
    { index: 2, changes: [{ name: "temperature", before: 0, after: 0.5 }] },
  ];
  assert.equal(baselineBreak(rounds.slice(0, 2), ["temperature"]), null);
  assert.deepEqual(baselineBreak(rounds, ["temperature"]), { index: 2, text: "temperature 0 → 0.50" });
});

test("each segment of one method has its own figures, which add up to those of the run", () => {
  const chain = fixture("chain").rounds, methods = ["a", "a", "b", "b", "b", "a"];
  const rounds = chain.slice(0, methods.length).map((r, i) => ({ ...r, method: methods[i] }));
  const segments = methodSegments(rounds, (method) => method.toUpperCase());
  assert.deepEqual(
    segments.map((s) => [s.name, s.from, s.to, s.slot]),
    [["A", 0, 1, "a"], ["B", 2, 4, "b"], ["A", 5, 5, "a"]],
  );
  const all = summary(rounds), parts = segmentFigures(rounds, segments).map((s) => s.figures);
  for (const name of ["tokens", "rounds", "tested", "accepted", "seconds", "overhead_seconds"])
    assert.ok(Math.abs(parts.reduce((a, f) => a + f[name], 0) - all[name]) < 1e-9, name);
  assert.equal(parts[1].tau, rounds.slice(2, 5).reduce((a, r) => a + r.emitted.length, 0) / 3);
  assert.deepEqual(methodSegments([]), []);
});

test("if bands name the methods, marks name only other changes", () => {
  const change = (name, before, after) => ({ name, before, after });
  const rounds = [
    { index: 0, changes: [change("method", "a", "b")] },
    { index: 1, changes: [change("method", "b", "a"), change("depth", 2, 4)] },
  ];
  assert.deepEqual(settingMarks(rounds), [{ index: 1, text: "depth 2 → 4" }]);
});
