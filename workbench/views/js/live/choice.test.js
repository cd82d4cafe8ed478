import assert from "node:assert/strict";
import { test } from "node:test";
import { first, scriptWarning, targetForTyped, pairing, parameters, pick, plainRequest, request, revise } from "./choice.js";
import { clamp } from "../shared/form.js";

const int = (name, value, ge, le) => ({ name, kind: "int", default: value, ge, le, choices: null, doc: "" });
const catalogue = {
  targets: [{ name: "t" }],
  drafters: [
    { name: "bad", available: false },
    { name: "d", available: true },
  ],
  methods: [
    { name: "plain", params: [] },
    { name: "a", params: [int("depth", 4, 1, 12)] },
    { name: "b", params: [int("depth", 2, 1, 6)] },
    { name: "c", available: false, params: [] },
  ],
  sampling: [{ name: "temperature", kind: "float", default: 0.7, ge: 0, le: 2, choices: null, doc: "" }],
  presets: [{ name: "story", title: "story", prompt: "Once" }],
  baseline: "plain",
  chosen: { target: "t", drafter: "bad", method: "a", max_new_tokens: 9 },
};

test("the initial choice can be run", () => {
  const choice = first(catalogue);
  assert.deepEqual([choice.target, choice.drafter, choice.method, choice.prompt], ["t", "d", "a", "Once"]);
});

test("a preset selects its target once that is loaded", () => {
  const listed = (more) => ({
    ...catalogue,
    targets: [...catalogue.targets, { name: "big", ...more }],
    presets: [...catalogue.presets, { name: "ask", prompt: "Why?", target: "big" }],
  });
  const chosen = first(catalogue), picked = (more) => pick(chosen, listed(more), "ask");
  assert.deepEqual([picked({}).choice.target, picked({}).choice.prompt], ["big", "Why?"]);
  assert.match(picked({}).note, /Target changed to big/, "the change has a note");
  assert.equal(picked({ loading: true }).choice.target, "t");
  assert.match(picked({ loading: true }).note, /big, which is still loading/);
  assert.deepEqual([picked({ available: false }).choice.target, picked({ available: false }).note], ["t", ""]);
  assert.deepEqual(
    [pick({ ...chosen, target: "big" }, listed({}), "story").choice.target, pick(chosen, catalogue, "story").note],
    ["big", ""],
    "other presets fit any target",
  );
});

test("a typed question selects the chat model once it is ready, unless a target was chosen", () => {
  const listed = (more) => ({
    ...catalogue,
    targets: [{ name: "t", kind: "bundled" }, { name: "big", kind: "published", ...more }],
    presets: [...catalogue.presets, { name: "ask", prompt: "Why?", target: "big" }],
  });
  const question = { ...first(catalogue), preset: null, prompt: "<|user|>Who?<|assistant|>" };
  const choice = targetForTyped(question, listed({ ready: true }));
  assert.deepEqual([choice.target, choice.lent], ["big", true]);
  assert.match(choice.note, /goes to big/);
  assert.match(targetForTyped({ ...question, ...choice }, listed({ ready: true })).note, /goes to big/, "while the prompt is typed");
  assert.equal(targetForTyped(question, listed({ loading: true })).target, "t");
  assert.match(targetForTyped(question, listed({ loading: true })).note, /big is still loading/);
  const stays = (more, there = { ready: true }) => targetForTyped({ ...question, ...more }, listed(there));
  for (const unchanged of [
    stays({ fixed: true }),
    stays({ preset: "story" }),
    stays({ prompt: "Once upon" }),
    stays({ prompt: "<|user|> <|assistant|>" }),
    stays({}, {}),
  ])
    assert.deepEqual(unchanged, { target: "t", lent: false, note: "" });
  const elsewhere = { ...listed({ ready: true }), targets: [{ name: "t", kind: "hub" }, { name: "big", ready: true }] };
  assert.equal(targetForTyped(question, elsewhere).target, "t", "a target given at the start of the app counts as chosen");
});

test("a prompt in another script suggests a target that may support it", () => {
  const listed = { ...catalogue, targets: [{ name: "toy", kind: "bundled" }, { name: "big", kind: "published" }] },
    question = (prompt, target = "toy", more = {}) => scriptWarning({ prompt, target }, { ...listed, ...more });
  const presets = [{ name: "ask", prompt: "Why?", target: "big" }];
  assert.match(question("<|user|>讲一个故事<|assistant|>", "toy", { presets }), /toy was trained on .*: choose big as target\.$/);
  assert.match(question("Расскажи"), /start the app with --target/);
  assert.deepEqual([question("Once upon a time, café ½ → 3"), question("讲", "big")], ["", ""]);
});

test("values are clamped to the ranges of a new method", () => {
  const choice = { ...first(catalogue), params: { depth: 10 } };
  assert.equal(parameters(choice, catalogue, "a", clamp).depth, 10);
  assert.equal(parameters(choice, catalogue, "b", clamp).depth, 6);
});

test("an unavailable choice is replaced, the rest stays", () => {
  const revised = revise({ ...first(catalogue), method: "c", prompt: "mine" }, catalogue);
  assert.deepEqual([revised.method, revised.prompt], ["a", "mine"]);
});

test("the baseline has the same prompt, seed and sampling, without method parameters", () => {
  const choice = { ...first(catalogue), params: { temperature: 0.2, depth: 3 } };
  const plain = plainRequest(choice, catalogue, "x", clamp), run = request(choice, catalogue, "y", clamp, false);
  assert.deepEqual(plain.params, { temperature: 0.2 });
  assert.deepEqual([plain.prompt, plain.seed, plain.max_new_tokens], [run.prompt, run.seed, run.max_new_tokens]);
});

test("a baseline is valid for every method, but only for its prompt", () => {
  const choice = first(catalogue);
  assert.equal(
    pairing(choice, catalogue, clamp),
    pairing({ ...choice, method: "b", params: { depth: 1 } }, catalogue, clamp),
  );
  assert.notEqual(pairing(choice, catalogue, clamp), pairing({ ...choice, prompt: "other" }, catalogue, clamp));
});
