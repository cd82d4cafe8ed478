import assert from "node:assert/strict";
import { test } from "node:test";
import { calibrationSeries, calibrationTable, calibrationWords, cells, csv, entropyWords, stateOf, statusWords } from "./research.js";

const count = (group, accepted, tested, low, high) => {
  return { group, accepted, tested, rate: tested ? accepted / tested : null, low, high };
};
const BINS = [
  { ...count("0.0–0.1", 0, 0, null, null), start: 0, end: 0.1, drafted: 0, mean_q: null, mean_p: null },
  { ...count("0.1–0.2", 1, 4, 0.05, 0.7), start: 0.1, end: 0.2, drafted: 6, mean_q: 0.15, mean_p: 0.3 },
  { ...count("0.9–1.0", 0, 0, null, null), start: 0.9, end: 1, drafted: 2, mean_q: 0.95, mean_p: 0.9 },
];
const FOUND = {
  calibration: BINS,
  calibration_error: 0.125,
  drafted: 9,
  without_q: 1,
  by_entropy: [count("0–0.1", 1, 4, 0.05, 0.7)],
  without_entropy: 0,
  by_kind: [count('word, "start"', 1, 4, 0.05, 0.7)],
};

test("the chart has the diagonal, and points at each bin's mean q where there is a value", () => {
  const [diagonal, meanP, acceptance] = calibrationSeries(BINS);
  assert.deepEqual(diagonal.points, [[0, 0], [1, 1]]);
  assert.deepEqual(meanP.points, [[0.15, 0.3], [0.95, 0.9]]);
  assert.deepEqual(acceptance.points, [[0.15, 0.25, 0.05, 0.7]]); // the last bin has no tested token
});

test("the words give the error, tokens without q, and the reason why there is no calibration", () => {
  assert.match(calibrationWords(FOUND), /drafted tokens: 0\.13 \(8 drafted tokens\)\. 1 drafted token without a q is left out\.$/);
  assert.match(calibrationWords({ ...FOUND, without_q: 9 }), /^The drafter is deterministic .*\(9 drafted tokens\), so there is no calibration\.$/);
  assert.equal(calibrationWords({ ...FOUND, drafted: 0, without_q: 0 }), "This run drafted no tokens.");
  assert.match(entropyWords(FOUND), /^Entropy of the target's distribution .* in nats\.$/);
  assert.match(entropyWords({ ...FOUND, without_entropy: 2 }), /2 tested tokens without a recorded entropy are left out\.$/);
  assert.equal(entropyWords({ ...FOUND, by_entropy: [], without_entropy: 3 }), "This trace has no entropies.");
  assert.equal(entropyWords({ ...FOUND, by_entropy: [] }), "No drafted tokens were tested.");
});

test("rows have counts, rate and interval; a row without tests has none", () => {
  assert.deepEqual(cells(BINS[1]), ["0.1–0.2", "1 / 4", "0.25", "0.05 – 0.70"]);
  assert.deepEqual(cells(BINS[2]), ["0.9–1.0", "0 / 0", "–", "–"]);
  assert.deepEqual(calibrationTable(BINS).rows[1], ["0.1–0.2", 6, "0.15", "0.30", "1 / 4", "0.25", "0.05 – 0.70"]);
});

test("the CSV has all tables, empty cells for missing values, and quoted texts", () => {
  const lines = csv(FOUND).split("\r\n");
  assert.equal(lines[0], "table,group,drafted,mean_q,mean_p,tested,accepted,rate,low,high");
  assert.equal(lines[1], "draft probability q,0.0–0.1,0,,,0,0,,,");
  assert.equal(lines[4], "target entropy (nats),0–0.1,,,,4,1,0.25,0.05,0.7");
  assert.equal(lines[5], 'kind of token,"word, ""start""",,,,4,1,0.25,0.05,0.7');
  assert.equal(lines.length, 7);
});

test("statistics wait for the end of a run", () => {
  const host = { call: () => {} }, run = { header: {}, rounds: [{}], from: "live", state: "running" };
  assert.equal(stateOf({ run, feeding: null, host: {} }), "hidden");
  assert.equal(stateOf({ run: null, feeding: null, host }), "none");
  assert.equal(stateOf({ run, feeding: null, host }), "running");
  assert.equal(stateOf({ run: { ...run, state: "finished" }, feeding: null, host }), "ready");
  assert.equal(stateOf({ run: { ...run, from: "recorded" }, feeding: {}, host }), "running");
  assert.equal(stateOf({ run: { ...run, from: "recorded" }, feeding: null, host }), "ready");
  const ended = { ...run, state: "finished" };
  assert.equal(stateOf({ run: ended, plain: run, feeding: null, host }), "running"); // the baseline's times count
  assert.equal(stateOf({ run: ended, plain: ended, pairs: { channel: "p" }, feeding: null, host }), "running");
  assert.equal(stateOf({ run: ended, plain: ended, pairs: { channel: null }, feeding: null, host }), "ready");
  assert.match(statusWords("running", { found: null, rounds: 0 }), /when all runs have ended/);
  assert.match(statusWords("running", { found: {}, rounds: 7 }), /^The first 7 rounds of this run\./);
  assert.match(statusWords("ready", { found: {}, rounds: 7 }), /^This run\./);
});
