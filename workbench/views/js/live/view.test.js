import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as choice from "./choice.js";
import * as pace from "./pace.js";
import * as repeats from "./repeats.js";
import * as selection from "./selection.js";
import * as stalls from "./stalls.js";
import * as store from "../shared/store.js";
import { of, panel } from "./view.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url)));
const catalogue = {
  targets: [{ name: "synthetic-target" }],
  drafters: [{ name: "d" }],
  methods: [
    { name: "draft-model", params: [] },
    { name: "autoregressive", params: [] },
  ],
  sampling: [{ name: "temperature", kind: "float", default: 0, ge: 0, le: 5 }],
  presets: [],
  baseline: "autoregressive",
  chosen: { target: "synthetic-target", drafter: "d", method: "draft-model", max_new_tokens: 9 },
};

function page(changes = {}) {
  return {
    catalogue,
    choice: choice.first(catalogue),
    run: null,
    plain: null,
    plainKey: "",
    errors: [],
    notices: [],
    selection: selection.newSelection(),
    brush: null,
    ghosts: true,
    threshold: 0,
    mode: "spine",
    playing: null,
    feeding: null,
    lost: 0,
    scroll: false,
    wantPlain: false,
    note: "",
    estimate: "",
    host: { decode: () => {} },
    ...changes,
  };
}

const live = (name, changes = {}) => Object.assign(store.fromTrace("c", read(name), "live"), { key: "k" }, changes);

test("a baseline counts only for the settings it was measured with", () => {
  const plain = live("plain");
  assert.equal(of(page({ run: live("chain") }), 0).noBaseline, "no baseline yet");
  assert.equal(
    of(page({ run: live("chain"), plain, plainKey: "other" }), 0).noBaseline,
    "the baseline was measured with other settings",
  );
  const good = of(page({ run: live("chain"), plain, plainKey: "k" }), 0);
  assert.equal(good.noBaseline, "");
  assert.equal(good.plainRounds.length, 12);
});

test("a change of sampling during the run invalidates the baseline; a recording has none", () => {
  const run = live("chain");
  run.rounds = run.rounds.map((r, i) =>
    i === 4 ? { ...r, changes: [{ name: "temperature", before: 0.7, after: 0.2 }] } : r,
  );
  assert.match(
    of(page({ run, plain: live("plain"), plainKey: "k" }), 0).noBaseline,
    /^baseline invalid: temperature 0.70 → 0.20 at round 5$/,
  );
  assert.match(of(page({ run: store.fromTrace("c", read("chain"), "recorded") }), 0).noBaseline, /recorded/);
});

test("the state of the badge: nothing, a run, a recording, or no answer", () => {
  assert.equal(of(page(), 0).state, "idle");
  assert.equal(of(page({ run: live("chain") }), 0).state, "finished");
  assert.equal(of(page({ run: store.fromTrace("c", read("chain"), "imported") }), 0).state, "imported");
  const lost = of(page({ run: { ...live("chain"), state: "running" }, lost: 1000 }), 4000);
  assert.deepEqual([lost.state, lost.status], ["lost", "reconnecting: no answer for 3 s"]);
});

test("the badge of a live run shows the device of its own target, not of the chosen one", () => {
  const badgeOf = (chosen) => of(page({ run: live("chain"), catalogue: { ...page().catalogue, device: "D", chosen } }), 0);
  const { target } = live("chain").header;
  assert.equal(badgeOf({ target }).badge, `LIVE · ${target} · D`);
  assert.match(badgeOf({ target: "another" }).badge, /^LIVE · .*float/);
});

test("the page head marks an approximate choice immediately, and a simulation", () => {
  const name = "chain", method = { name, promise: "exact", promises: { typical: "approximate" } };
  const markOf = (more, params = {}) => {
    const catalogue = { ...page().catalogue, methods: [{ ...method, simulating: ["optimal-oracle"] }] };
    const { promise, next } = of(page({ catalogue, choice: { method: name, params }, ...more }), 0).mark;
    return `${next ? "next: " : ""}${promise}`;
  };
  const typical = { verifier: "typical" }, running = { ...live("chain"), state: "running" };
  assert.deepEqual([markOf({}), markOf({}, typical)], ["", "approximate"]);
  assert.deepEqual([markOf({ run: running }), markOf({ run: running }, typical)], ["", "approximate"], "the next round is approximate");
  assert.equal(markOf({}, { policy: "optimal-oracle" }), "simulation");
  const recorded = store.fromTrace("c", read("chain"), "recorded");
  for (const run of [recorded, live("chain")])
    assert.deepEqual([markOf({ run }), markOf({ run }, typical)], ["", "next: approximate"], "the displayed rounds are exact");
  const run = { ...recorded, header: { ...recorded.header, promise: "approximate" } };
  assert.equal(markOf({ run }), "approximate");
  const changed = live("chain"), signals = { "acceptance gain (ΔA)": 0.1 };
  changed.rounds = changed.rounds.map((r, i) => (i === 4 ? { ...r, signals } : r));
  assert.equal(markOf({ run: changed }), "approximate", "one round was approximate, although the rule was changed back");
});

test("a selected range limits the rounds that the histograms count", () => {
  const shown = of(page({ run: live("chain"), brush: [2, 5] }), 0);
  assert.deepEqual(shown.counted.map((r) => r.index), [2, 3, 4, 5]);
  assert.equal(of(page({ run: live("chain") }), 0).counted.length, 12);
});

test("continuing is disabled with a reason if it is not possible", () => {
  assert.equal(of(page({ run: live("chain") }), 0).barredBranch, "");
  assert.match(of(page({ run: live("chain"), host: {} }), 0).barredBranch, /no backend/);
  const foreign = live("chain");
  foreign.header = { ...foreign.header, target: "elsewhere/model" };
  assert.match(of(page({ run: foreign }), 0).barredBranch, /elsewhere\/model is not available/);
});

test("the panel names the branch that it would run", () => {
  const state = page({ run: live("chain") });
  Object.assign(state.choice, { prompt_tokens: [1, 2], origin: { round: 2, text: " a", instead: " b" } });
  assert.match(panel(state, of(state, 0)).branch, /^branched at round 3/);
});

test("in a paced run, the newest round counts only once it is fully shown", () => {
  const run = live("chain", { pace: 4 }), n = run.rounds.length, whole = pace.span(run.rounds.at(-1), run, null);
  const at = (now, more = {}) => of(page({ run, arrival: { run, n, at: 0 }, ...more }), now);
  assert.deepEqual([at(0).rounds.length, at(0).arriving.tested, at(0).figures.rounds], [n - 1, 0, n - 1]);
  assert.ok(at(0.5 * whole).arriving.tested > 0);
  assert.deepEqual([at(whole).rounds.length, at(whole).arriving], [n, null]);
  assert.equal(at(0, { still: true }).arriving, null, "with reduced motion, a round is shown at once");
  assert.equal(at(0, { run: { ...run, pace: 0 } }).arriving, null);
});

test("a paced run is finished once its last tokens are shown; an abort is shown at once", () => {
  const run = live("chain", { pace: 4 }), n = run.rounds.length, whole = pace.span(run.rounds.at(-1), run, null);
  const at = (now, changes = {}) => {
    const changed = { ...run, ...changes },
      { state, status } = of(page({ run: changed, arrival: { run: changed, n, at: 0 } }), now);
    return [state, status.split(" · ")[0], status.includes("shown at 4 tokens/s")];
  };
  assert.deepEqual(at(0.5 * whole), ["running", "running", true]);
  assert.deepEqual(at(whole), ["finished", "finished: max tokens reached", false]);
  assert.deepEqual(at(0.5 * whole, { state: "cancelled" }).slice(0, 1), ["cancelled"]);
  assert.deepEqual(at(0.5 * whole, { state: "error" }).slice(0, 1), ["error"]);
});

test("a single pair is labelled “one run”, with the number of stalled rounds", () => {
  const run = live("chain"), plain = live("plain"), beside = () => of(page({ run, plain, plainKey: "k" }), 0);
  const before = beside();
  assert.match(before.speed.label, /^one run/);
  run.rounds = run.rounds.map((r, i) => (i === 3 ? { ...r, seconds: 40 * r.seconds } : r));
  const hit = beside();
  assert.equal(hit.stalls.size, before.stalls.size + 1);
  assert.match(hit.speed.label, /^one run, \d rounds? stalled$/);
  plain.rounds = plain.rounds.map((r, i) => (i === 5 ? { ...r, seconds: 40 * r.seconds } : r));
  const after = beside(), count = stalls.stallCount(after.stalls, after.plainStalls);
  assert.ok(after.plainStalls.size > 0);
  assert.match(count, /^\d rounds? and \d of the baseline stalled$/);
  assert.equal(after.speed.label, `one run, ${count}`, "counted as at the wall clock");
  assert.ok(stalls.words(after.stalls, after.plainStalls).startsWith(count));
});

test("a kept run shows its stored speed-up with the interval", () => {
  const saved = { ...live("chain"), from: "recorded", key: undefined };
  assert.equal(of(page({ run: saved, plainKey: "" }), 0).speed.label, "speed-up: no baseline");
  saved.baseline = { tokens_per_second: 20, ratios: [1.4, 1.41, 1.4, 1.42] };
  const shown = of(page({ run: saved, plainKey: "" }), 0);
  assert.deepEqual([shown.speed.value, shown.speed.label], ["1.41×", "faster, n = 4 pairs of runs"]);
  assert.equal(shown.plainFigures.tokens_per_second, 20);
  assert.deepEqual(repeats.baseline({ run: saved, pairs: null, view: shown }), saved.baseline, "keeping it again stores the same");
  saved.baseline = { tokens_per_second: 20, ratios: [] };
  assert.equal(of(page({ run: saved, plainKey: "" }), 0).speed.label, "one run");
});

test("pairs of runs belong to the run they repeat", () => {
  const run = live("chain"),
    at = { run, plain: live("plain"), plainKey: "k", catalogue: { ...catalogue, pairs: true } };
  assert.equal(of(page(at), 0).pairs.button, "Measure more");
  assert.equal(of(page({ ...at, catalogue }), 0).pairs, null, "this backend does not measure pairs");
  const known = {
    key: repeats.keyOf(run),
    before: [],
    ratios: [1.4, 1.41, 1.4, 1.42],
    channel: null,
    ended: "the speed-up is known to ±5%",
    error: "",
  };
  assert.match(of(page({ ...at, pairs: known }), 0).speed.label, /^faster, n = 4 pairs of runs$/);
  const switched = run.rounds.map((round, i) => (i === 1 ? { ...round, changes: [{ name: "method", before: "a", after: "b" }] } : round));
  assert.doesNotMatch(
    of(page({ ...at, run: { ...run, rounds: switched }, pairs: known }), 0).speed.label,
    /n = 4/,
    "the pairs repeat the settings with which the run began",
  );
  assert.match(
    of(page({ ...at, plainKey: "other", pairs: known }), 0).speed.label,
    /no baseline/,
    "no verdict with an invalid baseline",
  );
  const other = { ...run, header: { ...run.header, params: { depth: 9 } } };
  assert.match(of(page({ ...at, run: other, pairs: known }), 0).speed.label, /^one run/);
});
