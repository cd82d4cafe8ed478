import assert from "node:assert/strict";
import { test } from "node:test";
import { join, split, turns, typed, word } from "./roles.js";

test("a chat message is split into its text and joined to the same prompt", () => {
  assert.deepEqual(split("<|user|>What is 2 + 3?<|assistant|>"), { words: "What is 2 + 3?", chat: true });
  assert.deepEqual(split("Once upon"), { words: "Once upon", chat: false });
  for (const prompt of [
    "",
    "Once",
    "<|user|>",
    "<|assistant|>",
    "<|user|><|assistant|>",
    "<|user|>a",
    "<|user|>a<|user|>b<|assistant|>",
    " <|user|>a<|assistant|>",
    "<|user|>a<|assistant|> 5",
  ]) {
    const { words, chat } = split(prompt);
    assert.equal(join(words, chat), prompt);
  }
  assert.deepEqual(
    split(join("<|user|>a<|assistant|>", true)),
    { words: "<|user|>a<|assistant|>", chat: true },
    "typed markers stay text",
  );
});

test("marker tokens become roles, text that looks like a marker stays text", () => {
  assert.deepEqual(turns(["<|user|>", "Hi", " you", "<|assistant|>"]), [
    { role: "user", text: "Hi you" },
    { role: "assistant", text: "" },
  ]);
  assert.deepEqual(turns(["<|", "user", "|>", "Hi"]), [{ role: null, text: "<|user|>Hi" }]);
  assert.deepEqual(turns(["Once", " upon"]), [{ role: null, text: "Once upon" }]);
  assert.deepEqual(turns([]), []);
});

test("formats with the name between markers are parsed, completely or not at all", () => {
  assert.deepEqual(turns(["<|im_start|>", "user", "\n", "Hi"]), [{ role: "user", text: "Hi" }]);
  assert.deepEqual(turns(["<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n"]), [
    { role: "assistant", text: "" },
  ]);
  assert.deepEqual(
    turns(["<|im_start|>", "user", "\n", "Hi", ".", "<|im_end|>", "\n", "<|im_start|>", "ass", "istant", "\n"]),
    [
      { role: "user", text: "Hi." },
      { role: "assistant", text: "" },
    ],
    "SmolLM2's format: a name of two tokens, and the end of a turn is not part of it",
  );
  assert.deepEqual(turns(["<|im_start|>", "user", "\n", "a", "<|im_end|>", "\n", "b"]), [
    { role: "user", text: "a<|im_end|>\nb" },
  ]);
  assert.deepEqual(turns(["<|im_start|>", "banana", "\n"]), [{ role: null, text: "<|im_start|>banana\n" }]);
});

test("the root of a tree shows a role if it is a marker", () => {
  assert.equal(word("<|assistant|>"), "assistant");
  assert.equal(word(" kite"), " kite");
  assert.equal(word("<|image|>"), "<|image|>");
});

test("typed text is a chat message or text to continue; empty text is neither", () => {
  assert.deepEqual(split(typed("Say hello", true)), { words: "Say hello", chat: true });
  assert.equal(typed("Say hello", false), "Say hello");
  assert.equal(typed(" ", true), " ");
});
