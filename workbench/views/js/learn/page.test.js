import assert from "node:assert";
import { test } from "node:test";
import { gain, reached } from "./page.js";
import { range, runState, informativeRound } from "./methods.js";
import { liveLink, settingsOf, when } from "../shared/pagehead.js";

test("the closed forms at the ends of their range", () => {
  assert.equal(gain(0, 4, 0).tau, 1);
  assert.equal(gain(1, 4, 0).tau, 5);
  assert.ok(Math.abs(gain(0.8, 4, 0).tau - 3.3616) < 1e-9);
  assert.equal(gain(1, 4, 0.25).speedup, 2.5);
  assert.ok(gain(0.9, 12, 1).speedup < 1);
});

test("a step is completed by selecting the intended node, not only its round", () => {
  const step = { rounds: [], places: [[3, 1]] };
  assert.ok(reached(step, { round: 3, node: 1 }, { round: 3, node: 1 }));
  assert.ok(reached(step, { round: 3, token: 0 }, { round: 3, node: 1 }));
  assert.ok(!reached(step, { round: 3, node: null, token: null }, { round: 3, node: 1 }));
  assert.ok(!reached(step, { round: 3, node: 0 }, { round: 3, node: 0 }));
  assert.ok(reached({ rounds: [3], places: [] }, { round: 3 }, null));
});

test("“Run it” selects models with which the method runs; methods for images open in Vision", () => {
  const columns = [
    { target: "a", drafter: "b" },
    { target: "c", drafter: null },
  ];
  const method = { name: "kangaroo", needs: ["kangaroo"] };
  assert.deepEqual(runState(method), { method: "kangaroo", run: "new" });
  assert.deepEqual(runState(method, columns, ["", ""]), { method: "kangaroo", run: "new" });
  assert.deepEqual(runState(method, columns, ["needs heads", ""]), {
    target: "c",
    drafter: null,
    method: "kangaroo",
    run: "new",
  });
  assert.deepEqual(runState({ name: "specvlm", needs: ["pictures"] }), { tab: "vision", method: "specvlm" });
});

test("the drawing shows the first round with branches, accepted and rejected drafts", () => {
  const round = (parents, path) => ({ nodes: { parents }, path });
  const chain = round([-1, 0], [0]), tree = round([-1, -1], [1]), all = round([-1, 0], [0, 1]), empty = round([], []);
  assert.equal(informativeRound([empty, all, chain, tree]), tree);
  assert.equal(informativeRound([empty, all, chain]), chain);
  const emits = { ...empty, emitted: [{}] };
  assert.equal(informativeRound([{ ...empty, emitted: [] }, emits]), emits, "without drafts: a round that emits");
  assert.equal(informativeRound([empty, all]), all);
  assert.equal(informativeRound([empty]), empty);
  assert.equal(informativeRound([]), null);
});

test("parameters show their allowed values", () => {
  assert.equal(range({ kind: "int", ge: 1, le: 8 }), "1 … 8");
  assert.equal(range({ kind: "float", ge: 0, le: null }), "0 … ∞");
  assert.equal(range({ kind: "choice", choices: ["a", "b"] }), "a, b");
  assert.equal(range({ kind: "bool" }), "true, false");
});

test("a link to the Live page has the settings, without missing values", () => {
  const entry = {
    method: "m",
    target: "a/b",
    drafter: null,
    seed: 0,
    max_new_tokens: 5,
    prompt: "x & y",
    params: { depth: 4 },
  };
  assert.equal(
    liveLink("", settingsOf(entry)),
    "/?target=a%2Fb&method=m&seed=0&max_new_tokens=5&prompt=x+%26+y&depth=4",
  );
  assert.equal(liveLink("/space", { recorded: "switch" }), "/space/?recorded=switch");
});

test("dates are short; other text stays unchanged", () => {
  assert.equal(when("2026-11-21T10:49:00+0000"), "2026-11-21 10:49");
  assert.equal(when("soon"), "soon");
  assert.equal(when(undefined), "");
});
