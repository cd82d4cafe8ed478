import assert from "node:assert/strict";
import { test } from "node:test";
import {
  counterpart,
  difference,
  differences,
  figure,
  fromQuery,
  position,
  settings,
  toQuery,
  tokens,
} from "./tworunslink.js";

const run = (...sizes) =>
  sizes.map((n, i) => ({
    started_s: 1 + i,
    seconds: 0.5,
    emitted: Array.from({ length: n }, (_, k) => ({ text: `${i}.${k}`, kind: "accepted" })),
  }));

test("a token corresponds to the token at the same place of the text, whatever its round", () => {
  const a = run(3, 2, 1), b = run(1, 1, 4);
  assert.deepEqual(counterpart("token", { round: 1, token: 0 }, a, b), { round: 2, token: 1, over: false });
  assert.deepEqual(counterpart("token", { round: 2, token: 3 }, b, a), { round: 2, token: 0, over: false });
  assert.equal(position(a, { round: 1, token: 1 }), 4);
  assert.equal(position(a, { round: 1, token: 9 }), 4, "a missing token is replaced by the last of its round");
  assert.equal(tokens(a).length, 6);
});

test("a run that ended earlier shows its end, marked as over", () => {
  const long = run(2, 2, 2), short = run(2);
  for (const by of ["token", "round", "time"]) {
    assert.deepEqual(
      [
        counterpart(by, { round: 2, token: 1 }, long, short).round,
        counterpart(by, { round: 2, token: 1 }, long, short).over,
      ],
      [0, true],
      by,
    );
    assert.equal(counterpart(by, { round: 0, token: 0 }, short, long).over, false, by);
  }
  assert.equal(counterpart("token", { round: 0 }, long, []), null);
});

test("the same time corresponds to the round that the other run was in", () => {
  const slow = run(1, 1, 1), fast = run(1, 1, 1, 1, 1, 1).map((r, i) => ({ ...r, started_s: 9 + i / 2, seconds: 0.5 }));
  assert.equal(counterpart("time", { round: 1 }, slow, fast).round, 2, "1.5 s after its prefill");
  assert.equal(counterpart("time", { round: 2 }, fast, slow).round, 1);
});

test("tokens outside the longest common subsequence differ", () => {
  const found = differences(["a", "b", "c", "d"], ["a", "x", "c", "d", "e"]);
  assert.deepEqual([[...found.a], [...found.b], found.first], [[1], [1, 4], 1]);
  assert.deepEqual(differences(["a"], ["a"]), { a: new Set(), b: new Set(), first: null, whole: true });
  assert.deepEqual([...differences(["a", "b"], ["a"]).a], [1]);
  const long = Array.from({ length: 4000 }, (_, i) => `${i}`), other = ["x", ...long.slice(1)];
  assert.equal(differences(long, other).whole, false, "too long to align token by token");
});

test("settings that differ come first; settings that only one recording has do not differ", () => {
  const header = {
    target: "t",
    drafter: null,
    method: "a",
    seed: 0,
    max_new_tokens: 8,
    prompt: "p",
    dtype: "float32",
    device: "cpu",
    hardware: "m",
    params: { depth: 4 },
  };
  const rows = settings(header, { ...header, method: "b", params: { depth: 4, width: 2 } });
  assert.deepEqual(
    rows.filter((row) => row.differs).map((row) => [row.name, ...row.values]),
    [["method", "a", "b"]],
  );
  assert.equal(rows[0].name, "method");
  assert.deepEqual(
    rows.filter((row) => row.lacking).map((row) => [row.name, ...row.values]),
    [["width", "–", "2"]],
  );
  const machine = settings(header, { ...header, hardware: "" }).find((row) => row.name === "machine");
  assert.ok(machine.lacking && !machine.differs);
  const drafter = settings(header, { ...header, drafter: "d" }).find((row) => row.name === "drafter");
  assert.deepEqual([drafter.differs, drafter.lacking], [true, false], "no drafter is also a setting");
});

test("figures and their differences have units", () => {
  assert.deepEqual(
    [figure("tau", 2.345), figure("acceptance_rate", 0.5), figure("rounds", 7), figure("tau", null)],
    ["2.35", "50.0 %", "7", "–"],
    "counts are integers",
  );
  assert.deepEqual(
    [
      difference("acceptance_rate", 0.5, 0.4),
      difference("tau", 2, 3),
      difference("rounds", 4, 4),
      difference("tau", null, 1),
    ],
    ["−10.0 percentage points", "+1.00 (1.50 ×)", "equal", "–"],
  );
});

test("a selection is parsed as it was written; an invalid one becomes the first round", () => {
  for (const pin of [
    { side: 1, round: 4, token: 2, by: "time" },
    { side: 0, round: 0, token: null, by: "token" },
  ])
    assert.deepEqual(fromQuery(toQuery(pin)), pin);
  assert.deepEqual(fromQuery("round=-3&token=x&side=9&by=moon"), { side: 0, round: 0, token: null, by: "token" });
});
