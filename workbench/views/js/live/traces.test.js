import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { read } from "./traces.js";

const text = readFileSync(new URL("../../../../tests/fixtures/wire/tree.json", import.meta.url), "utf8"),
  whole = JSON.parse(text),
  SCHEMA = whole.header.schema;
const lines = ({ header, rounds, footer }) =>
  [{ event: "header", ...header }, ...rounds.map((r) => ({ event: "round", ...r })), { event: "footer", ...footer }]
    .map((e) => JSON.stringify(e))
    .join("\n");

test("JSON and JSON Lines give the same trace", () => {
  const one = read(text, SCHEMA), two = read(lines(whole), SCHEMA);
  assert.equal(one.trace.rounds.length, whole.rounds.length);
  assert.deepEqual(two.trace.rounds.map((r) => r.nodes), one.trace.rounds.map((r) => r.nodes));
  assert.deepEqual([one.notes, two.notes], [[], []]);
});

test("a newer schema is refused with a remedy; an older one is shown with a note", () => {
  const of = (schema) => JSON.stringify({ ...whole, header: { ...whole.header, schema } });
  assert.throws(() => read(of(9), 1), (e) => /schema 9/.test(e.message) && /Update/.test(e.remedy));
  assert.match(read(of(0), 1).notes[0], /older schema/);
});

test("images and attribution are read; an image with an external URL is refused", () => {
  const picture = { url: "data:image/png;base64,AAAA", width: 64, height: 64, rows: 8, cols: 8, start: 2, end: 66 };
  const seen = {
    ...whole,
    header: { ...whole.header, schema: 2, pictures: [picture] },
    attribution: { p_blind: [0.5] },
  };
  assert.deepEqual(read(JSON.stringify(seen), SCHEMA).trace.header.pictures, [picture]);
  assert.deepEqual(read(JSON.stringify(seen), SCHEMA).trace.attribution, { p_blind: [0.5] });
  assert.deepEqual(
    read(lines(whole) + `\n{"event": "attribution", "p_blind": [0.5]}`, SCHEMA).trace.attribution.p_blind,
    [0.5],
  );
  const of1 = JSON.stringify({ ...whole, header: { ...whole.header, schema: 1 } });
  assert.deepEqual(read(of1, SCHEMA).notes, [], "schema 1 has everything that a text run needs");
  seen.header.pictures = [{ ...picture, url: "https://example.org/x.png" }];
  assert.throws(() => read(JSON.stringify(seen), SCHEMA), /image/);
  for (const end of [`"><img src=x onerror=alert(1)>`, "'", " ", "\n", "#x", "?x"]) {
    seen.header.pictures = [{ ...picture, url: picture.url + end }];
    assert.throws(() => read(JSON.stringify(seen), SCHEMA), /image/, end);
  }
  const swapped = structuredClone(whole);
  swapped.rounds[1].vision = { pictures: [{ ...picture, url: "javascript:0" }] };
  assert.match(read(JSON.stringify(swapped), SCHEMA).notes[0], /vision data/);
});

test("test inputs that an older schema lacks are null, and invalid rules are left out", () => {
  const old = structuredClone(whole);
  old.rounds.forEach(({ nodes }) => { delete nodes.rule; delete nodes.inputs; });
  delete old.header.rules;
  const { header, rounds } = read(JSON.stringify({ ...old, header: { ...old.header, schema: 2 } }), SCHEMA).trace;
  assert.deepEqual([header.rules, rounds[1].nodes.inputs], [{}, {}]);
  assert.deepEqual(rounds[1].nodes.rule, rounds[1].nodes.tokens.map(() => null));
  assert.deepEqual(Object.keys(read(text, SCHEMA).trace.header.rules), ["ratio", "residual"]);
  const odd = structuredClone(whole);
  odd.header.rules = {
    ratio: { ...whole.header.rules.ratio, formula: 1 },
    residual: { ...whole.header.rules.residual, places: { p: ["q"] } },
    none: null,
  };
  assert.deepEqual(read(JSON.stringify(odd), SCHEMA).trace.header.rules, {});
  for (const spoil of [
    (n) => n.rule.pop(),
    (n) => (n.inputs.residual[0] = "1"),
    (n) => (n.inputs = null),
    (n) => (n.rule = "ratio"),
  ]) {
    const broken = structuredClone(whole);
    spoil(broken.rounds[1].nodes);
    assert.match(read(JSON.stringify(broken), SCHEMA).notes[0], /truncated: round 2/);
  }
});

test("a truncated file shows the complete lines, with a note", () => {
  const cut = lines(whole).slice(0, -1500);
  const { trace, notes } = read(cut, SCHEMA);
  assert.ok(trace.rounds.length > 0 && trace.rounds.length <= whole.rounds.length);
  assert.match(notes.join(" "), /truncated/);
});

test("a file that is not a trace gives an error", () => {
  for (const bad of [
    "",
    "hello",
    "[]",
    "{}",
    "null",
    JSON.stringify({ header: {}, rounds: [] }),
    JSON.stringify({ header: {}, rounds: [{}] }),
    JSON.stringify({ rounds: [1] }),
  ]) {
    assert.throws(
      () => read(bad, 1),
      (e) => e.constructor.name === "TraceError" && e.remedy.length > 0,
      bad,
    );
  }
});

test("a trace ends before its first invalid round", () => {
  const broken = structuredClone(whole);
  broken.rounds[2].nodes.parents[0] = 5;
  const { trace, notes } = read(JSON.stringify(broken), SCHEMA);
  assert.equal(trace.rounds.length, 2);
  assert.match(notes[0], /truncated: round 3/);
  const nowhere = structuredClone(whole);
  nowhere.rounds[1].placed = [{ position: "7", text: "b", p: 0.5 }];
  assert.match(read(JSON.stringify(nowhere), SCHEMA).notes[0], /truncated: round 2.*tentative/);
});

test("probes are read; an invalid one ends the trace before its round, and older rounds have none", () => {
  const parent = whole.rounds[1].nodes.tokens.length - 1,
    probe = { token: 3, text: "?", parent, position: 9, source: "reflective" };
  const of = (probes) =>
    JSON.stringify({ ...whole, rounds: whole.rounds.map((r, i) => (i === 1 ? { ...r, probes } : r)) });
  assert.deepEqual(read(of([probe]), SCHEMA).trace.rounds[1].probes, [probe]);
  assert.deepEqual(read(of(undefined), SCHEMA).trace.rounds[1].probes, []);
  for (const broken of [{ ...probe, parent: 999 }, { ...probe, text: 1 }, { ...probe, position: "9" }, null])
    assert.equal(read(of([broken]), SCHEMA).trace.rounds.length, 1);
  assert.equal(read(of({}), SCHEMA).trace.rounds.length, 1);
});
