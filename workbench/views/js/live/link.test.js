import assert from "node:assert/strict";
import { test } from "node:test";
import { clamp } from "../shared/form.js";
import { fromQuery, toQuery } from "./link.js";

const number = (name, kind, value, ge, le) => ({ name, kind, default: value, ge, le, choices: [], doc: "" });
const catalogue = {
  numbers: {
    max_new_tokens: { name: "max_new_tokens", kind: "int", default: 128, ge: 1, le: 1000000 },
    seed: { name: "seed", kind: "int", default: 0, ge: 0, le: 9007199254740991 },
    pace: { name: "pace", kind: "int", default: 0, ge: 0, le: 1000 },
  },
  targets: [{ name: "t" }],
  drafters: [{ name: "d" }, { name: "bad", available: false, reason: "another vocabulary" }],
  methods: [
    { name: "a", params: [number("depth", "int", 4, 1, 12)] },
    {
      name: "b",
      params: [
        number("depth", "int", 2, 1, 30),
        { name: "policy", kind: "choice", default: "fixed", choices: ["fixed", "planned"] },
        { name: "warm", kind: "bool", default: false, choices: [] },
      ],
    },
  ],
  sampling: [number("temperature", "float", 0, 0, 5)],
};
const choice = {
  target: "t",
  drafter: "d",
  method: "b",
  prompt: "a & b = ü\n?",
  seed: 7,
  max_new_tokens: 40,
  prompt_tokens: null,
};
const params = { depth: 20, policy: "planned", warm: true, temperature: 0.7 };

test("a written address is parsed back: settings, parameters, view", () => {
  const read = fromQuery(
    toQuery(choice, catalogue, params, { pin: { round: 3, token: 1, node: null }, view: "tree", embed: true }),
    catalogue,
    clamp,
  );
  assert.deepEqual(read.choice, {
    target: "t",
    drafter: "d",
    method: "b",
    prompt: choice.prompt,
    seed: 7,
    max_new_tokens: 40,
  });
  assert.deepEqual(read.params, params);
  assert.deepEqual(
    [read.pin, read.view, read.embed, read.problems],
    [{ round: 3, token: 1, node: null }, "tree", true, []],
  );
});

test("a branch has its tokens in the address", () => {
  const read = fromQuery(toQuery({ ...choice, prompt_tokens: [5, 0, 12] }, catalogue, params), catalogue, clamp);
  assert.deepEqual(read.choice.prompt_tokens, [5, 0, 12]);
});

test("invalid values are ignored and reported, one sentence each", () => {
  const bad =
    "?method=nope&drafter=bad&depth=99&policy=x&temperature=hot&seed=-1&max_new_tokens=0&round=first&view=moon&ids=1.x&wat=1&__theme=dark";
  const read = fromQuery(bad, catalogue, clamp);
  assert.deepEqual([read.choice, read.params, read.pin, read.view], [{}, {}, null, null]);
  assert.equal(read.problems.length, 11);
  assert.match(read.problems.find((p) => p.startsWith("drafter")), /another vocabulary/);
});

test("unknown models are reported; a target that the backend reported is not reported twice", () => {
  const read = fromQuery("target=nope&drafter=none-such&method=b", catalogue, clamp);
  assert.deepEqual(read.choice, { method: "b" });
  assert.deepEqual(read.problems, [
    "target=nope: unknown target",
    "drafter=none-such: unknown drafter",
  ]);
  assert.deepEqual(
    fromQuery("target=nope&method=b", { ...catalogue, problem: { message: "There is no target 'nope'." } }, clamp)
      .problems,
    [],
  );
});

test("a parameter is checked against the range of its method", () => {
  assert.deepEqual(fromQuery("method=b&depth=20", catalogue, clamp).params, { depth: 20 });
  assert.equal(fromQuery("method=a&depth=20", catalogue, clamp).problems.length, 1);
});

test("an unknown tab is reported", () => {
  assert.deepEqual(fromQuery("tab=live", catalogue, clamp).problems, []);
  assert.deepEqual(fromQuery("tab=nowhere", catalogue, clamp).problems, ["tab=nowhere: unknown tab"]);
});

test("an empty query changes nothing", () => {
  const read = fromQuery("", catalogue, clamp);
  assert.deepEqual([read.settings, read.pin, read.embed, read.recorded], [false, null, false, null]);
});

test("a link to a run has its id and settings; a link can start a new run", () => {
  const read = fromQuery(toQuery(choice, catalogue, params, { run: "Ab_3-xyzQQ" }), catalogue, clamp);
  assert.deepEqual([read.run, read.starts, read.settings], ["Ab_3-xyzQQ", false, true]);
  assert.equal(read.choice.prompt, choice.prompt);
  const fresh = fromQuery("method=a&run=new", catalogue, clamp);
  assert.deepEqual([fresh.run, fresh.starts, fresh.problems], [null, true, []]);
});

test("a run in progress is named by its id only", () => {
  assert.equal(fromQuery("run=Ab_3-xyzQQ", catalogue, clamp).run, "Ab_3-xyzQQ");
  const read = fromQuery("run=../../etc", catalogue, clamp);
  assert.deepEqual([read.run, read.problems.length], [null, 1]);
});
