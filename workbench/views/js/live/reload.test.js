import assert from "node:assert/strict";
import { test } from "node:test";
import { fits, currentHeader, namesRun, last, note, others, reloaded, typedPrompt } from "./reload.js";

const header = {
  target: "t",
  drafter: "d",
  method: "draft-model",
  prompt: "A fox",
  prompt_tokens: [1, 2],
  seed: 0,
  max_new_tokens: 64,
  params: { depth: 4, temperature: 0.7 },
};
const rounds = [
  { method: "draft-model", params: { depth: 4, temperature: 0.7 } },
  { method: "draft-tree", params: { depth: 6, temperature: 0.7, width: 3 } },
];
const wanted = (choice, params = {}) => ({ choice, params });

test("the settings in force are those of the last round, not the initial ones", () => {
  const now = currentHeader({ header, rounds });
  assert.deepEqual([now.method, now.params.depth, now.params.width, now.prompt], ["draft-tree", 6, 3, "A fox"]);
  assert.deepEqual(currentHeader({ header, rounds: [] }).params, header.params);
  assert.deepEqual(
    [currentHeader({ header: null, rounds: [] }), fits(wanted({}), null), fits(wanted({ seed: 1 }), null)],
    [null, true, false],
    "its models are still loading",
  );
});

test("the previous run is not shown for an address with other settings", () => {
  const now = currentHeader({ header, rounds: rounds.slice(0, 1) });
  assert.ok(fits(wanted({}), now), "no settings in the address");
  assert.ok(fits(wanted({ method: "draft-model", prompt: "A fox", seed: 0 }, { depth: 4 }), now));
  for (const other of [
    { method: "medusa" },
    { prompt: "A dog" },
    { target: "u" },
    { drafter: "e" },
    { seed: 1 },
    { max_new_tokens: 8 },
    { prompt_tokens: [1, 3] },
  ]) {
    assert.ok(!fits(wanted(other), now), JSON.stringify(other));
  }
  assert.ok(!fits(wanted({}, { depth: 5 }), now));
});

test("differing settings are listed", () => {
  const now = currentHeader({ header, rounds: rounds.slice(0, 1) });
  assert.deepEqual(others(wanted({ method: "draft-model", seed: 1 }, { depth: 5 }), now), ["seed", "depth"]);
});

test("the previous run is shown only if the address names it", () => {
  const earlier = { run: "abcdefgh", header, rounds: rounds.slice(0, 1) },
    ask = (more) => ({ ...wanted({}), run: null, recorded: null, starts: false, ...more });
  assert.ok(namesRun(ask({}), earlier, false));
  assert.ok(namesRun(ask({ run: "abcdefgh", choice: { seed: 1 } }), earlier, false), "the id decides");
  assert.ok(!namesRun(ask({ run: "another-run" }), earlier, true));
  assert.ok(!namesRun(ask({ recorded: "draft-tree" }), earlier, true));
  assert.ok(!namesRun(ask({ choice: { seed: 1 } }), earlier, false), "settings of another run");
  assert.ok(!namesRun(ask({ starts: true }), earlier, false), "a new run is requested");
  assert.ok(namesRun(ask({ starts: true }), earlier, true), "once, but not at a reload");
});

test("settings that the method does not use are ignored: a drafter, a parameter of another method", () => {
  const plain = currentHeader({
    header: { ...header, drafter: null, method: "autoregressive", params: { temperature: 0.7 } },
  });
  assert.ok(fits(wanted({ method: "autoregressive", drafter: "d" }, { depth: 9 }), plain));
});

test("a prompt given as tokens is compared as tokens", () => {
  assert.ok(fits(wanted({ prompt_tokens: [1, 2], prompt: "a text with other tokens" }), currentHeader({ header })));
});

test("a reload and a step back restore the run, a link does not", () => {
  assert.deepEqual(
    ["reload", "back_forward", "navigate", "prerender"].map((type) => reloaded([{ type }])),
    [true, true, false, false],
  );
  assert.equal(reloaded([]), false);
});

test("after a reload a run in progress is found even while its models load; an ended or unknown run is not", async () => {
  const found = async (answer) => {
    const storage = new Map([["wb-run", "abcdefgh"]]),
      remember = { getItem: (name) => storage.get(name) ?? null, removeItem: (name) => storage.delete(name) };
    const got = await last({ call: async () => answer(), remember });
    return [got !== null, storage.size];
  };
  assert.deepEqual(await found(() => ({ header: null, state: "loading", rounds: [] })), [true, 1]);
  assert.deepEqual(await found(() => ({ header, state: "finished", rounds })), [true, 1]);
  assert.deepEqual(await found(() => ({ header: null, state: "cancelled", rounds: [] })), [false, 0]);
  assert.deepEqual(await found(() => ({ error: { message: "unknown run" } })), [false, 0]);
  assert.deepEqual(
    await found(() => {
      throw new Error("offline");
    }),
    [false, 0],
  );
});

test("the prompt of the tab's run is kept as it was typed", () => {
  const stored = new Map();
  const remember = { setItem: (name, value) => stored.set(name, value), getItem: (name) => stored.get(name) ?? null };
  note({ remember }, { id: "r", asked: "<|user|>Hi<|assistant|>" });
  assert.equal(stored.get("wb-run"), "r");
  assert.equal(typedPrompt({ remember }, "r"), "<|user|>Hi<|assistant|>");
  assert.equal(typedPrompt({ remember }, "other"), null);
  note({ remember }, { id: "s", asked: null });
  assert.equal(typedPrompt({ remember }, "s"), null, "a prompt of token ids has no typed text");
  stored.set("wb-run-prompt", "{");
  assert.equal(typedPrompt({ remember }, "s"), null);
  assert.equal(typedPrompt({ remember: undefined }, "s"), null);
});
