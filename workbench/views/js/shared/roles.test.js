import assert from "node:assert/strict";
import { test } from "node:test";
import { join, split, turns, typed, word } from "./roles.js";

test("a message is its words; put together again it is the same prompt", () => {
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
    "markers that somebody types stay what they typed",
  );
});

test("tokens that are markers are roles, text that looks like one is text", () => {
  assert.deepEqual(turns(["<|user|>", "Hi", " you", "<|assistant|>"]), [
    { role: "user", text: "Hi you" },
    { role: "assistant", text: "" },
  ]);
  assert.deepEqual(turns(["<|", "user", "|>", "Hi"]), [{ role: null, text: "<|user|>Hi" }]);
  assert.deepEqual(turns(["Once", " upon"]), [{ role: null, text: "Once upon" }]);
  assert.deepEqual(turns([]), []);
});

test("formats that write the name between markers are read too, whole or not at all", () => {
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
    "as SmolLM2 is asked: a name of two tokens, and what ends a turn is no part of it",
  );
  assert.deepEqual(turns(["<|im_start|>", "user", "\n", "a", "<|im_end|>", "\n", "b"]), [
    { role: "user", text: "a<|im_end|>\nb" },
  ]);
  assert.deepEqual(turns(["<|im_start|>", "banana", "\n"]), [{ role: null, text: "<|im_start|>banana\n" }]);
});

test("the first committed word of a tree is a role where it is a marker", () => {
  assert.equal(word("<|assistant|>"), "assistant");
  assert.equal(word(" kite"), " kite");
  assert.equal(word("<|image|>"), "<|image|>");
});

test("what is typed is a message or text that is gone on with; nothing is neither", () => {
  assert.deepEqual(split(typed("Say hello", true)), { words: "Say hello", chat: true });
  assert.equal(typed("Say hello", false), "Say hello");
  assert.equal(typed(" ", true), " ");
});
