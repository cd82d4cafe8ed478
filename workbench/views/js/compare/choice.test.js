import assert from "node:assert/strict";
import test from "node:test";
import {
  asksFor,
  command,
  first,
  fromQuery,
  OWN,
  ownTexts,
  picture,
  problem,
  promptTexts,
  request,
  revise,
  runs,
  take,
  toQuery,
} from "./choice.js";
import { clamp } from "../shared/form.js";
import * as roles from "../shared/roles.js";

const depth = { name: "depth", kind: "int", default: 4, ge: 1, le: 12 },
  policy = { name: "policy", kind: "choice", default: "fixed", choices: ["fixed", "confidence"] };
const catalogue = {
  targets: [{ name: "text-target" }],
  drafters: [{ name: "small" }],
  presets: [
    { name: "story", title: "story", prompt: "Once" },
    { name: "copy", title: "copy ×3", prompt: "Again" },
  ],
  methods: [
    { name: "autoregressive", params: [] },
    { name: "draft-model", params: [policy, depth] },
    { name: "prompt-lookup", params: [depth] },
    { name: "medusa", params: [], available: false },
  ],
  sampling: [{ name: "temperature", kind: "float", default: 0, ge: 0, le: 2 }],
  chosen: { target: "text-target" },
  baseline: "autoregressive",
  lanes: 4,
  numbers: {
    repeats: { name: "repeats", kind: "int", default: 3, ge: 1, le: 21 },
    max_new_tokens: { name: "max_new_tokens", kind: "int", default: 64, ge: 1, le: 4096 },
    seed: { name: "seed", kind: "int", default: 0, ge: 0, le: 2147483647 },
  },
};

test("an address restores lanes, prompts and numbers", () => {
  const choice = {
    ...first(catalogue),
    lanes: [
      { method: "draft-model", params: { depth: 3, policy: "confidence" }, drafter: "small" },
      { method: "prompt-lookup", params: {}, drafter: null },
    ],
    text: "My own & only",
    repeats: 5,
    sampling: { temperature: 0.7 },
  };
  const back = fromQuery(`?tab=compare&${toQuery(choice, catalogue)}`, catalogue, clamp);
  assert.deepEqual(back, { choice, problems: [] });
});

test("invalid parts of an address are ignored and reported", () => {
  const { choice, problems } = fromQuery(
    "?tab=compare&lane=nonsense&lane=draft-model:depth=99&lane=draft-model:width=2&repeats=0&temperature=9&other=1&lane=prompt-lookup:depth=2",
    catalogue,
    clamp,
  );
  assert.equal(problems.length, 6);
  assert.deepEqual(choice.lanes, [{ method: "prompt-lookup", params: { depth: 2 }, drafter: null }]);
  assert.equal(choice.repeats, 3);
  assert.deepEqual(
    fromQuery("?tab=sweep&lane=nonsense", catalogue, clamp).problems,
    [],
    "the address of another tab is ignored",
  );
});

test("plain decoding in an address becomes no lane, because it is always measured", () => {
  const read = (query) => fromQuery(`?tab=compare${query}`, catalogue, clamp);
  assert.deepEqual(
    read("&lane=autoregressive"),
    { choice: first(catalogue), problems: [] },
    "alone: the default lanes",
  );
  assert.deepEqual(read("&lane=autoregressive&lane=prompt-lookup").choice.lanes, [
    { method: "prompt-lookup", params: {}, drafter: null },
  ]);
});

test("an unknown prompt and a fifth lane are reported", () => {
  const lanes = ["draft-model", "draft-model:depth=2", "draft-model:depth=3", "prompt-lookup", "prompt-lookup:depth=2"]
    .map((lane) => `&lane=${lane}`)
    .join("");
  const { choice, problems } = fromQuery(`?tab=compare&prompts=story,nonsense${lanes}`, catalogue, clamp);
  assert.deepEqual(choice.presets, ["story"]);
  assert.equal(choice.lanes.length, 4);
  assert.match(problems[0], /nonsense: unknown prompt; choose from story, copy/);
  assert.match(problems[1], /at most 4 lanes/);
});

test("the request has only the chosen parameters, clamped to their ranges", () => {
  const choice = {
    ...first(catalogue),
    lanes: [{ method: "draft-model", params: { depth: 40 }, drafter: null }],
    presets: ["copy"],
  };
  const comparison = request(choice, catalogue, roles, clamp);
  assert.deepEqual(comparison.lanes, [{ method: "draft-model", params: { depth: 12 }, drafter: null }]);
  assert.deepEqual(comparison.prompts, [{ name: "copy ×3", text: "Again" }]);
  assert.deepEqual(comparison.sampling, {});
});

test("the run count includes plain decoding and one warm-up per lane", () => {
  assert.equal(runs({ ...first(catalogue), repeats: 5 }), 3 * (2 * 5 + 1));
});

test("a choice that cannot be measured is reported before the request", () => {
  const choice = first(catalogue);
  assert.equal(problem(choice), null);
  assert.match(problem({ ...choice, lanes: [] }).message, /No lane/);
  assert.match(problem({ ...choice, presets: [], text: " " }).message, /No prompt/);
  assert.match(problem({ ...choice, lanes: [choice.lanes[0], { ...choice.lanes[0] }] }).message, /the same/);
});

test("the command line quotes special characters of the shell", () => {
  assert.match(
    command({ ...first(catalogue), presets: [], text: "it's" }, catalogue, roles),
    /compare 'it'\\''s' --lane draft-model /,
  );
});

const scenes = [
  {
    name: "four",
    url: "data:4",
    alt: "four shapes",
    questions: ["Describe it.", "Count the crosses.", "What is left?"],
  },
  { name: "two", url: "data:2", alt: "two", questions: ["Describe it."] },
];
const seeing = {
  ...catalogue,
  scenes,
  questions: ["Describe it."],
  targets: [{ name: "text-target" }, { name: "vision-target", pictures: true }],
  chosen: { target: "vision-target" },
  methods: [...catalogue.methods, { name: "vlm-draft", params: [] }, { name: "vlm-text-only", params: [] }],
};

test("a target with image input gets questions about an image, and drafters with image input", () => {
  const choice = revise({ ...first(catalogue), target: "vision-target" }, seeing);
  assert.deepEqual(choice.lanes.map((lane) => lane.method), ["vlm-draft", "vlm-text-only"]);
  assert.deepEqual([choice.scene, choice.questions], ["four", ["Describe it.", "Count the crosses."]]);
  const comparison = request({ ...choice, text: "Is it red?\n\nDescribe it." }, seeing, roles, clamp);
  assert.deepEqual(comparison.images, ["data:4"]);
  assert.deepEqual(
    comparison.prompts.map((p) => p.text),
    ["Describe it.", "Count the crosses.", "Is it red?"],
    "one question per line, without duplicates",
  );
  assert.equal(runs(choice), 3 * (2 * choice.repeats + 1));
  assert.match(
    command(choice, seeing, roles),
    /compare --image four.png --question 'Describe it.' --question 'Count the crosses.' /,
  );
  assert.deepEqual(request(first(catalogue), catalogue, roles, clamp).images, []);
  assert.deepEqual(
    revise({ ...choice, target: "text-target" }, { ...seeing, chosen: { target: "text-target" } }).lanes.map(
      (lane) => lane.method,
    ),
    ["draft-model", "prompt-lookup"],
    "and back to the text target",
  );
});

test("an address restores the image and its questions; an unknown scene is reported", () => {
  const choice = { ...first(seeing), scene: "two", questions: ["Describe it.", "Why?"] };
  assert.deepEqual(fromQuery(`?tab=compare&${toQuery(choice, seeing)}`, seeing, clamp), { choice, problems: [] });
  assert.match(
    fromQuery("?tab=compare&target=vision-target&scene=nine", seeing, clamp).problems[0],
    /nine: unknown scene/,
  );
});

test("the image of the Vision tab can be used; if there is none, an error is shown", () => {
  const choice = { ...first(seeing), ...take(first(seeing), seeing, OWN, { url: "data:own", alt: "mine" }) };
  assert.equal(picture(choice, seeing).url, "data:own");
  assert.equal(problem(choice, seeing), null);
  assert.deepEqual(choice.questions, ["Describe it."], "questions that fit any image stay");
  assert.match(problem({ ...choice, own: null }, seeing).message, /No image/);
  assert.match(problem({ ...choice, questions: [] }, seeing).message, /No question/);
});

test("an example with other settings than the panel's is recognised", () => {
  const choice = first(catalogue),
    comparison = {
      settings: { target: "text-target" },
      prompts: [{ text: "Once" }, { text: "Again" }],
      lanes: [{ text: "autoregressive", added: true }, { text: "draft-model" }, { text: "prompt-lookup" }],
    };
  assert.ok(asksFor(choice, catalogue, comparison, roles));
  assert.ok(!asksFor({ ...choice, presets: ["copy"] }, catalogue, comparison, roles));
  assert.ok(!asksFor({ ...choice, lanes: choice.lanes.slice(1) }, catalogue, comparison, roles));
});

test("a chat preset is sent as plain text, for the target's own chat template; so it is in the command line", () => {
  const chats = {
    ...catalogue,
    presets: [{ name: "sum", title: "sum", prompt: "<|user|>What is 2 + 3?<|assistant|>" }, catalogue.presets[0]],
  };
  const choice = { ...first(chats), text: "<|user|>My own<|assistant|>" },
    { prompts } = request(choice, chats, roles);
  assert.deepEqual(prompts, [
    { name: "sum", text: "What is 2 + 3?", chat: true },
    { name: "story", text: "Once" },
    { name: "own prompt", text: "My own", chat: true },
  ]);
  assert.match(
    command(choice, chats, roles),
    /^workbench compare --chat 'What is 2 \+ 3\?' Once --chat 'My own' --lane /,
  );
  const lanes = choice.lanes.map((lane) => ({ text: lane.method })),
    comparison = (all) => ({ settings: { target: choice.target }, prompts: all, lanes });
  assert.ok(asksFor(choice, chats, comparison(prompts), roles));
  assert.ok(
    asksFor(
      { ...choice, text: "" },
      chats,
      comparison([{ text: "<|user|>What is 2 + 3?<|assistant|>", chat: false }, { text: "Once" }]),
      roles,
    ),
    "an example that was sent with chat markers is the same prompt",
  );
  assert.ok(
    !asksFor({ ...choice, text: "" }, chats, comparison([{ text: "What is 2 + 3?", chat: false }, { text: "Once" }]), roles),
    "text without markers is a different prompt",
  );
});

test("prompts of a set are measured too, each once, and an address restores them", () => {
  const choice = { ...first(catalogue), presets: ["story"], text: "Mine", texts: ["Two", "Mine", "Three & 3"] };
  assert.deepEqual(ownTexts(choice), ["Mine", "Two", "Three & 3"]);
  assert.deepEqual(promptTexts(choice, catalogue), ["Once", "Mine", "Two", "Three & 3"]);
  const { prompts } = request(choice, catalogue, roles, clamp);
  assert.deepEqual(prompts.map((prompt) => prompt.name), ["story", "own prompt 1", "own prompt 2", "own prompt 3"]);
  assert.equal(runs(choice), (3 + 1) * (4 * 3 + 1) - (3 - choice.lanes.length) * 13);
  assert.deepEqual(fromQuery(`?tab=compare&${toQuery(choice, catalogue)}`, catalogue, clamp).choice.texts, choice.texts);
  const none = { ...choice, presets: [] };
  assert.deepEqual(fromQuery(`?tab=compare&${toQuery(none, catalogue)}`, catalogue, clamp).choice.presets, [], "deselected");
  const many = Array.from({ length: 20 }, (_, i) => `own=${i}`).join("&");
  const { choice: cut, problems } = fromQuery(`?tab=compare&${many}`, catalogue, clamp);
  assert.deepEqual([cut.texts.length, problems.length], [12, 8]);
  const single = { ...first(catalogue), text: "Mine" };
  assert.equal(request(single, catalogue, roles, clamp).prompts.at(-1).name, "own prompt", "as before");
});
