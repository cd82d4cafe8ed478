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

test("the first choice can be run", () => {
  const choice = first(catalogue);
  assert.deepEqual([choice.target, choice.drafter, choice.method, choice.prompt], ["t", "d", "a", "Once"]);
});

test("a preset brings the target that it was made for, once that is loaded", () => {
  const listed = (more) => ({
    ...catalogue,
    targets: [...catalogue.targets, { name: "big", ...more }],
    presets: [...catalogue.presets, { name: "ask", prompt: "Why?", target: "big" }],
  });
  const chosen = first(catalogue), picked = (more) => pick(chosen, listed(more), "ask");
  assert.deepEqual([picked({}).choice.target, picked({}).choice.prompt], ["big", "Why?"]);
  assert.match(picked({}).note, /Target changed to big/, "it does not change silently");
  assert.equal(picked({ loading: true }).choice.target, "t");
  assert.match(picked({ loading: true }).note, /big, which is still loading/);
  assert.deepEqual([picked({ available: false }).choice.target, picked({ available: false }).note], ["t", ""]);
  assert.deepEqual(
    [pick({ ...chosen, target: "big" }, listed({}), "story").choice.target, pick(chosen, catalogue, "story").note],
    ["big", ""],
    "others are for any target",
  );
});

test("a question of one's own goes to the model that answers questions, once it is ready and none was chosen", () => {
  const listed = (more) => ({
    ...catalogue,
    targets: [{ name: "t", kind: "bundled" }, { name: "big", kind: "published", ...more }],
    presets: [...catalogue.presets, { name: "ask", prompt: "Why?", target: "big" }],
  });
  const question = { ...first(catalogue), preset: null, prompt: "<|user|>Who?<|assistant|>" };
  const choice = targetForTyped(question, listed({ ready: true }));
  assert.deepEqual([choice.target, choice.lent], ["big", true]);
  assert.match(choice.note, /decoded by big/);
  assert.match(targetForTyped({ ...question, ...choice }, listed({ ready: true })).note, /decoded by big/, "as long as words are written");
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
  assert.equal(targetForTyped(question, elsewhere).target, "t", "whoever started the app with a model of theirs chose it");
});

test("a prompt in letters that the bundled target has not learnt suggests one that may know them", () => {
  const listed = { ...catalogue, targets: [{ name: "toy", kind: "bundled" }, { name: "big", kind: "published" }] },
    question = (prompt, target = "toy", more = {}) => scriptWarning({ prompt, target }, { ...listed, ...more });
  const presets = [{ name: "ask", prompt: "Why?", target: "big" }];
  assert.match(question("<|user|>讲一个故事<|assistant|>", "toy", { presets }), /toy was trained on .*: choose big as target\.$/);
  assert.match(question("Расскажи"), /start the app with --target/);
  assert.deepEqual([question("Once upon a time, café ½ → 3"), question("讲", "big")], ["", ""]);
});

test("held values follow a new method as far as its range goes", () => {
  const choice = { ...first(catalogue), params: { depth: 10 } };
  assert.equal(parameters(choice, catalogue, "a", clamp).depth, 10);
  assert.equal(parameters(choice, catalogue, "b", clamp).depth, 6);
});

test("a choice that stopped being possible is replaced, the rest stays", () => {
  const revised = revise({ ...first(catalogue), method: "c", prompt: "mine" }, catalogue);
  assert.deepEqual([revised.method, revised.prompt], ["a", "mine"]);
});

test("the baseline asks for the same prompt, seed and sampling, without method parameters", () => {
  const choice = { ...first(catalogue), params: { temperature: 0.2, depth: 3 } };
  const plain = plainRequest(choice, catalogue, "x", clamp), run = request(choice, catalogue, "y", clamp, false);
  assert.deepEqual(plain.params, { temperature: 0.2 });
  assert.deepEqual([plain.prompt, plain.seed, plain.max_new_tokens], [run.prompt, run.seed, run.max_new_tokens]);
});

test("a baseline belongs to a run whatever the method, but not across prompts", () => {
  const choice = first(catalogue);
  assert.equal(
    pairing(choice, catalogue, clamp),
    pairing({ ...choice, method: "b", params: { depth: 1 } }, catalogue, clamp),
  );
  assert.notEqual(pairing(choice, catalogue, clamp), pairing({ ...choice, prompt: "other" }, catalogue, clamp));
});
