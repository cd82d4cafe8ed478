import assert from "node:assert/strict";
import test from "node:test";
import { asksFor, banner, choiceOf, words } from "./sweepkept.js";

const sweep = { axes: { method: ["draft-model:depth=2,policy=fixed", "prompt-lookup"], temperature: [0, 0.7] }, method: "draft-model", params: { top_k: 5 }, target: "text-target", drafter: null, prompts: [], group: ["copy"], limit: 3, max_new_tokens: 48, seed: 1, repeats: 4 };
const usual = { axes: [], method: "draft-model", params: {}, target: "text-target", drafter: null, groups: ["stories"], limit: 2, max_new_tokens: 48, seed: 0, repeats: 2 };

test("a kept sweep is opened with its settings", () => {
  const choice = choiceOf(sweep, usual);
  assert.deepEqual(choice.axes, [{ name: "method", text: "draft-model:depth=2,policy=fixed; prompt-lookup" }, { name: "temperature", text: "0, 0.7" }]);
  assert.deepEqual([choice.repeats, choice.limit, choice.seed, choice.groups, choice.params], [4, 3, 1, ["copy"], { top_k: 5 }]);
});

test("a line of the list says what, how far, when and on what, and whether somebody measures it now", () => {
  const line = { title: "depth", method: "draft-model", target: "text-target", done: 3, total: 4, date: "2026-11-22 18:00 UTC", on: "CPU · float32 · X", writing: true };
  assert.equal(words(line), "draft-model · text-target · 3 of 4 cells, being measured · 2026-11-22 18:00 UTC · CPU · float32 · X");
});

test("an example is called one, and told apart from what the panel asks for", () => {
  assert.ok(asksFor({ axes: [{ name: "depth", values: [1, 2] }], method: "draft-model", target: "t" }, { axes: { depth: [1, 2] }, method: "draft-model", target: "t" }));
  assert.ok(!asksFor({ axes: [{ name: "depth", values: [1, 3] }], method: "draft-model", target: "t" }, { axes: { depth: [1, 2] }, method: "draft-model", target: "t" }));
  for (const other of [{ method: "draft-tree" }, { target: "u" }]) {
    assert.ok(!asksFor({ axes: [{ name: "depth", values: [1, 2] }], method: "draft-model", target: "t", ...other }, { axes: { depth: [1, 2] }, method: "draft-model", target: "t" }), JSON.stringify(other));
  }
  assert.match(banner({ on: "CPU · float32 · X", date: "2026-11-22" }, false), /^RECORDED example, measured on CPU · float32 · X; 2026-11-22\. Its axes are not/);
});
