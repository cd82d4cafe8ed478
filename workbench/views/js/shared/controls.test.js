import assert from "node:assert/strict";
import { test } from "node:test";
import { buttons, mark, options, verifierPromises, promised, select, explanation, unsound } from "./controls.js";

const baseline = { label: "Baseline", off: "" };

test("unavailable options come last, with their reason", () => {
  const result = options([{ name: "a", title: "A", available: false, reason: "needs heads" }, { name: "b", title: "B" }]);
  assert.deepEqual(result.map((o) => [o.value, o.text, o.disabled]), [["b", "B", false], ["a", "A: needs heads", true]]);
});

test("a list without available options says so", () => {
  const result = options([{ name: "a", title: "A", available: false, reason: "another vocabulary" }]);
  assert.deepEqual(
    result.map((o) => [o.value, o.text, o.disabled]),
    [
      ["", "none available", true],
      ["a", "A: another vocabulary", true],
    ],
  );
  assert.equal(result.find((o) => o.value === "").text, "none available", "shown while the select's value is empty");
});

test("a select without a selected option shows its empty option", () => {
  const wanted = options([]), set = [];
  select(
    {
      _key: JSON.stringify(wanted),
      selectedIndex: -1,
      get value() {
        return "";
      },
      set value(value) {
        set.push(value);
      },
    },
    wanted,
    null,
  );
  assert.deepEqual(set, [""]);
});

test("the promise depends on verifier and tree builder, and each disables unsound values of the other", () => {
  const choice = (name, value) => ({ name, default: value });
  const method = {
    promise: "exact",
    promises: { lossless: "exact", "k-seq": "approximate", typical: "approximate" },
    params: [choice("verifier", "lossless"), choice("grower", "beam")],
    unsound: { "k-seq": { beam: "TV 0.14", fixed: "TV 0.2" }, other: { chain: "TV 0.5" } },
  };
  assert.equal(promised(method, { verifier: "k-seq" }), "approximate");
  assert.equal(promised(method, { verifier: "k-seq", grower: "chain" }), "exact", "although it is not the default");
  assert.equal(promised(method, { verifier: "other", grower: "chain" }), "approximate");
  assert.equal(promised(method, { verifier: "typical", grower: "chain" }), "approximate");
  assert.deepEqual(unsound(method), { verifier: { "k-seq": "TV 0.14" }, grower: {} });
  assert.deepEqual(unsound(method, { verifier: "k-seq", grower: "chain" }), {
    verifier: { other: "TV 0.5" },
    grower: { beam: "TV 0.14", fixed: "TV 0.2" },
  });
  assert.deepEqual(unsound(undefined), { verifier: {}, grower: {} });
});

test("the promise depends on the chosen verifier", () => {
  const method = { promise: "exact", promises: { lossless: "exact", typical: "approximate" } };
  assert.deepEqual(
    [promised(method), promised(method, { verifier: "lossless" }), promised(method, { verifier: "typical" })],
    ["exact", "exact", "approximate"],
  );
  assert.equal(
    promised({ promise: "simulation", promises: {} }, { verifier: "typical" }),
    "simulation",
    "of another method",
  );
  const oracle = { ...method, simulating: ["optimal-oracle"] };
  assert.equal(promised(oracle, { policy: "optimal-oracle" }), "simulation");
  assert.equal(promised(oracle, { policy: "fixed" }), "exact");
  assert.equal(promised(oracle, { policy: "optimal-oracle", verifier: "typical" }), "approximate");
  assert.equal(promised(undefined), "");
  assert.equal(verifierPromises(method), "approximate with verifier = typical");
  const more = { ...method.promises, lenient: "approximate", judge: "approximate", oracle: "simulation" };
  const expected = "approximate with verifier = typical, lenient, judge; simulation with verifier = oracle";
  assert.equal(verifierPromises({ ...method, promises: more }), expected);
  assert.equal(verifierPromises({ promise: "exact" }), "");
});

test("a disabled button has a reason", () => {
  const idle = buttons({ active: false, paused: false, ready: true, measuring: false, baseline });
  assert.equal(idle.run.off, "");
  assert.equal(idle.stop.off, "no run in progress");
  const busy = buttons({ active: true, paused: true, ready: true, measuring: false, baseline });
  assert.equal(busy.pause.label, "Resume");
  assert.match(busy.run.off, /in progress/);
});

test("while the baseline is measured only Stop is enabled", () => {
  const result = buttons({
    active: true,
    paused: false,
    ready: true,
    measuring: true,
    baseline: { label: "Baseline 3", off: "x" },
  });
  assert.deepEqual(Object.entries(result).filter(([, b]) => !b.off).map(([name]) => name), ["stop"]);
});

test("actions that the host does not support are disabled with a reason, with or without a run", () => {
  const result = buttons({
    active: true,
    paused: false,
    ready: true,
    measuring: false,
    baseline,
    barred: { pause: "not on ZeroGPU", step: "not on ZeroGPU" },
  });
  assert.deepEqual([result.pause.off, result.step.off, result.stop.off], ["not on ZeroGPU", "not on ZeroGPU", ""]);
});

test("an explanation of exactness is marked as describing the defaults for an approximate verifier", () => {
  const promises = { lossless: "exact", judge: "approximate" };
  const method = { promise: "exact", promises, teaches: "Exactly the target's." };
  assert.equal(explanation(method, { verifier: "lossless" }), "Exactly the target's.");
  assert.equal(explanation(method, { verifier: "judge" }), "With its default settings: Exactly the target's.");
  assert.equal(explanation(undefined), "");
});

test("the mark in the page head shows approximate text, now or in the next run, and nothing for exact text", () => {
  const markOf = (promise, next) => {
    const el = /** @type {any} */ ({ textContent: "" });
    mark(el, { promise, next });
    return [el.textContent, el.className, el.hidden];
  };
  assert.deepEqual(markOf("approximate", false), ["APPROXIMATE", "wb-badge is-approximate", false]);
  assert.deepEqual(markOf("simulation", true), ["NEXT RUN: SIMULATION", "wb-badge is-simulation", false]);
  assert.deepEqual(markOf("", false), ["", "wb-badge is-exact", true]);
});
