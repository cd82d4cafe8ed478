import assert from "node:assert/strict";
import { test } from "node:test";
import { buttons, mark, options, verifierPromises, promised, select, explanation, unsound } from "./controls.js";

const baseline = { label: "Baseline", off: "" };

test("what cannot be used is listed last, with its reason", () => {
  const result = options([{ name: "a", title: "A", available: false, reason: "needs heads" }, { name: "b", title: "B" }]);
  assert.deepEqual(result.map((o) => [o.value, o.text, o.disabled]), [["b", "B", false], ["a", "A: needs heads", true]]);
});

test("a list of which nothing can be used says so in its place", () => {
  const result = options([{ name: "a", title: "A", available: false, reason: "another vocabulary" }]);
  assert.deepEqual(
    result.map((o) => [o.value, o.text, o.disabled]),
    [
      ["", "none available", true],
      ["a", "A: another vocabulary", true],
    ],
  );
  assert.equal(result.find((o) => o.value === "").text, "none available", "what a select shows whose value is empty");
});

test("a select of which a browser selects nothing is set to what stands for nothing", () => {
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

test("what a verifier keeps depends on how the drafts grow, and each greys out what does not suit the other", () => {
  const choice = (name, value) => ({ name, default: value });
  const method = {
    promise: "exact",
    promises: { lossless: "exact", "k-seq": "approximate", typical: "approximate" },
    params: [choice("verifier", "lossless"), choice("grower", "beam")],
    unsound: { "k-seq": { beam: "TV 0.14", fixed: "TV 0.2" }, other: { chain: "TV 0.5" } },
  };
  assert.equal(promised(method, { verifier: "k-seq" }), "approximate");
  assert.equal(promised(method, { verifier: "k-seq", grower: "chain" }), "exact", "although not by default");
  assert.equal(promised(method, { verifier: "other", grower: "chain" }), "approximate");
  assert.equal(promised(method, { verifier: "typical", grower: "chain" }), "approximate");
  assert.deepEqual(unsound(method), { verifier: { "k-seq": "TV 0.14" }, grower: {} });
  assert.deepEqual(unsound(method, { verifier: "k-seq", grower: "chain" }), {
    verifier: { other: "TV 0.5" },
    grower: { beam: "TV 0.14", fixed: "TV 0.2" },
  });
  assert.deepEqual(unsound(undefined), { verifier: {}, grower: {} });
});

test("what is promised follows from the verifier that is chosen", () => {
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

test("a button that is off says why", () => {
  const idle = buttons({ active: false, paused: false, ready: true, measuring: false, baseline });
  assert.equal(idle.run.off, "");
  assert.equal(idle.stop.off, "no run in progress");
  const busy = buttons({ active: true, paused: true, ready: true, measuring: false, baseline });
  assert.equal(busy.pause.label, "Resume");
  assert.match(busy.run.off, /in progress/);
});

test("while the baseline is measured only Stop can be pressed", () => {
  const result = buttons({
    active: true,
    paused: false,
    ready: true,
    measuring: true,
    baseline: { label: "Baseline 3", off: "x" },
  });
  assert.deepEqual(Object.entries(result).filter(([, b]) => !b.off).map(([name]) => name), ["stop"]);
});

test("what this place cannot do is off with its reason, running or not", () => {
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

test("words that tell why the output is the target's are not said of a verifier that does not keep it", () => {
  const promises = { lossless: "exact", judge: "approximate" };
  const method = { promise: "exact", promises, teaches: "Exactly the target's." };
  assert.equal(explanation(method, { verifier: "lossless" }), "Exactly the target's.");
  assert.equal(explanation(method, { verifier: "judge" }), "With its default settings: Exactly the target's.");
  assert.equal(explanation(undefined), "");
});

test("the sign in the head says what is approximate, or will be, and nothing of what is exact", () => {
  const markOf = (promise, next) => {
    const el = /** @type {any} */ ({ textContent: "" });
    mark(el, { promise, next });
    return [el.textContent, el.className, el.hidden];
  };
  assert.deepEqual(markOf("approximate", false), ["APPROXIMATE", "wb-badge is-approximate", false]);
  assert.deepEqual(markOf("simulation", true), ["NEXT RUN: SIMULATION", "wb-badge is-simulation", false]);
  assert.deepEqual(markOf("", false), ["", "wb-badge is-exact", true]);
});
