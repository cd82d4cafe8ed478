import assert from "node:assert/strict";
import test from "node:test";
import { banner, choiceOf, differences, words } from "./keptsweeps.js";

const sweep = {
  axes: { method: ["draft-model:depth=2,policy=fixed", "prompt-lookup"], temperature: [0, 0.7] },
  method: "draft-model",
  params: { top_k: 5 },
  target: "text-target",
  drafter: null,
  prompts: [],
  group: ["copy"],
  limit: 3,
  max_new_tokens: 48,
  seed: 1,
  repeats: 4,
};
const usual = {
  axes: [],
  method: "draft-model",
  params: {},
  target: "text-target",
  drafter: null,
  groups: ["stories"],
  limit: 2,
  max_new_tokens: 48,
  seed: 0,
  repeats: 2,
};

test("a kept sweep is opened with its settings", () => {
  const choice = choiceOf(sweep, usual);
  assert.deepEqual(choice.axes, [
    { name: "method", text: "draft-model:depth=2,policy=fixed; prompt-lookup" },
    { name: "temperature", text: "0, 0.7" },
  ]);
  assert.deepEqual(
    [choice.repeats, choice.limit, choice.seed, choice.groups, choice.params],
    [4, 3, 1, ["copy"], { top_k: 5 }],
  );
});

test("a line of the list shows method, progress, date, device, and whether the sweep is being measured", () => {
  const line = {
    title: "depth",
    method: "draft-model",
    target: "text-target",
    done: 3,
    total: 4,
    date: "2026-11-22 18:00 UTC",
    on: "CPU · float32 · X",
    writing: true,
  };
  assert.equal(
    words(line),
    "draft-model · text-target · 3 of 4 cells, being measured · 2026-11-22 18:00 UTC · CPU · float32 · X",
  );
});

test("the banner marks an example, and lists its differences from the panel", () => {
  const stored = {
    axes: { depth: [1, 2] },
    method: "draft-model",
    target: "t",
    repeats: 5,
    limit: 2,
    max_new_tokens: 48,
    seed: 0,
  };
  const request = { ...stored, axes: [{ name: "depth", values: [1, 2] }] };
  assert.deepEqual(differences(request, stored), []);
  assert.deepEqual(differences({ ...request, axes: [{ name: "depth", values: [1, 3] }], method: "draft-tree" }, stored), [
    "axes",
    "method",
  ]);
  assert.deepEqual(differences({ ...request, target: "u" }, stored), ["target"]);
  assert.deepEqual(differences({ ...request, repeats: 2, seed: 7 }, stored), ["repeats 2, not 5", "seed 7, not 0"]);
  assert.equal(
    banner({ on: "CPU · X", date: "2026-11-22" }, ["repeats 2, not 5"]),
    "RECORDED example, measured on CPU · X; 2026-11-22. The panel has other settings: repeats 2, not 5. Press Measure for results of this machine.",
  );
  assert.doesNotMatch(banner({ on: "CPU", date: "" }, []), /something else/);
});
