import assert from "node:assert/strict";
import { test } from "node:test";
import { offered } from "./promptsets.js";

test("the last prompts come first and cannot be deleted as a set", () => {
  const sets = [{ name: "mine", prompts: ["a", "b"] }];
  assert.deepEqual(offered({ last: ["x"], sets }), [
    { name: "last prompts", prompts: ["x"], isSaved: false },
    { name: "mine", prompts: ["a", "b"], isSaved: true },
  ]);
  assert.deepEqual(offered({ last: [], sets: [] }), []);
});
