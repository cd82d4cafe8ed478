import assert from "node:assert/strict";
import { test } from "node:test";
import { control, heads, onMessage, loadCatalogue, start, whenLoaded } from "./backend.js";
import { newRun } from "../shared/store.js";
import { first } from "./choice.js";

const listed = (more) => ({
  targets: [{ name: "t", kind: "bundled" }, { name: "big", kind: "published", ...more }],
  drafters: [{ name: "d" }],
  methods: [{ name: "plain", params: [] }],
  sampling: [],
  presets: [{ name: "story", prompt: "Once" }, { name: "ask", prompt: "Why?", target: "big" }],
  chosen: { target: "t", drafter: "d", method: "plain", max_new_tokens: 9 },
});

/** A page with a typed question; `answers` are the catalogues that it fetches, in order. */
function asking(answers, run = null) {
  const calls = [];
  const call = async (name, request) => {
    calls.push(request.target);
    return answers[Math.min(calls.length, answers.length) - 1];
  };
  const choice = { ...first(answers[0]), preset: null, prompt: "<|user|>Who?<|assistant|>" };
  return { asked: calls, choice, run, host: { call }, errors: [], note: "", draw() {} };
}

test("a question typed while its target loads is sent to that target once it is ready", async () => {
  const page = asking([listed({ loading: true }), listed({ ready: true })]);
  await loadCatalogue(page, "t", "d");
  clearTimeout(page.asksAgain);
  assert.equal(page.choice.target, "t");
  assert.match(page.note, /still loading/);
  await loadCatalogue(page, "t", "d");
  assert.deepEqual([page.choice.target, page.asked], ["big", ["t", "t", "big"]], "its own catalogue was fetched");
  assert.match(page.note, /goes to big/);
});

test("the heads of the methods are refreshed, and nothing else of the catalogue changes", async () => {
  const mine = listed({ ready: true });
  mine.methods[0].head = "my-head";
  const running = { from: "live", state: "running" };
  const page = asking([listed({ ready: true }), { ...mine, drafters: [] }], running);
  await loadCatalogue(page, "t", "d");
  await heads(page);
  assert.equal(page.catalogue.methods[0].head, "my-head");
  assert.equal(page.catalogue.drafters.length, 1);
});

test("the choice stays during a run", async () => {
  const page = asking([listed({ ready: true })], { from: "live", state: "running" });
  await loadCatalogue(page, "t", "d");
  assert.deepEqual([page.choice.target, page.asked], ["t", ["t"]]);
});

test("a run without messages can be cancelled; it is stopped once the backend sends its id", async () => {
  const calls = [], ended = [];
  const call = async (name, request) => void calls.push([name, request.run, request.action]);
  const run = Object.assign(newRun("run-1"), { lastMessageAt: performance.now() });
  const page = { run, plain: null, host: { call }, errors: [], draw() {}, ended: (which) => ended.push(which) };
  control(page, "cancel");
  assert.deepEqual([run.state, ended.length], ["starting", 0], "it was requested just now");
  run.lastMessageAt -= 60000;
  control(page, "pause");
  assert.equal(run.state, "starting");
  control(page, "cancel");
  assert.deepEqual([run.state, ended], ["error", [run]]);
  assert.match(run.error.message, /did not answer for this run/);
  assert.deepEqual(calls, []);
  onMessage(page, { channel: "run-1", run: "r7", state: "running" });
  assert.equal(run.state, "error", "it stays cancelled");
  assert.deepEqual(calls.at(-1), ["control", "r7", "cancel"]);
});

test("if the backend refuses a run, the previous run stays on the page", () => {
  const sent = [], before = { from: "live", state: "finished", rounds: [{}], id: "r1" };
  const page = {
    run: before, plain: null, recorded: "a-kept-run", channels: 0, errors: [], ended() {}, draw() {},
    choice: { ...first(listed({ ready: true })), prompt: "Once" }, catalogue: listed({ ready: true }),
    host: { decode: (calls) => sent.push(calls) },
    clear() {
      Object.assign(this, { recorded: null, note: "" });
    },
  };
  start(page, false);
  assert.notEqual(page.run, before);
  onMessage(page, { channel: sent[0].channel, error: { message: "The prompt has 9,000 tokens.", remedy: "Shorten it." } });
  assert.deepEqual([page.run, page.recorded], [before, "a-kept-run"]);
  assert.equal(page.errors[0].message, "The prompt has 9,000 tokens.");
  start(page, false);
  onMessage(page, { channel: sent[1].channel, run: "r2", state: "queued" });
  onMessage(page, { channel: sent[1].channel, run: "r2", error: { message: "No.", remedy: "" } });
  assert.equal(page.run.id, "r2", "an error of a run that has started is shown with the run");
});

/** A page whose target was just changed to `big`; `answer` sends the catalogue of a target that the page asked for. */
function switched() {
  const waiting = [], catalogue = { ...listed({ ready: true }), drafters: [{ name: "d" }] };
  const call = (name, request) => new Promise((done) => waiting.push({ target: request.target, done }));
  const page = {
    run: null, plain: null, channels: 0, errors: [], note: "", catalogue, choice: { ...first(catalogue), prompt: "Once" },
    host: { call, decode: (request) => page.sent.push(request) }, sent: [], draw() {}, clear() {},
  };
  const answer = (target, drafter) => {
    const at = waiting.findIndex((each) => each.target === target);
    const chosen = { ...catalogue.chosen, target, drafter };
    waiting.splice(at, 1)[0].done({ ...catalogue, drafters: [{ name: drafter }], chosen });
    return new Promise((done) => setTimeout(done));
  };
  page.choice.target = "big";
  return { page, answer, waiting };
}

test("Run right after a change of the target waits for its draft models", async () => {
  const { page, answer } = switched(), run = () => whenLoaded(page, () => start(page, false));
  loadCatalogue(page, "big", "d");
  run();
  run();
  assert.deepEqual(page.sent, [], "the old target's draft model is not sent");
  assert.match(page.note, /big/);
  await answer("big", "small");
  assert.deepEqual(page.sent.map(({ target, drafter }) => [target, drafter]), [["big", "small"]]);
  assert.equal(page.note, "");
});

test("a target whose catalogue nobody asked for is loaded before the run", async () => {
  const { page, answer } = switched();
  whenLoaded(page, () => start(page, false));
  await answer("big", "small");
  assert.deepEqual(page.sent.map((request) => request.drafter), ["small"]);
});

test("no run starts if the catalogue does not arrive", async () => {
  const { page, waiting } = switched();
  whenLoaded(page, () => start(page, false));
  waiting.pop().done({ error: { message: "No.", remedy: "" } });
  await new Promise((done) => setTimeout(done));
  assert.deepEqual([page.sent, page.errors.map((e) => e.message), page.startsLater], [[], ["No."], false]);
});

test("the answer for an earlier target does not replace that for the chosen one", async () => {
  const { page, answer } = switched();
  page.choice.target = "t";
  loadCatalogue(page, "t", "d");
  page.choice.target = "big";
  const loaded = loadCatalogue(page, "big", "d");
  await answer("big", "small");
  await answer("t", "d");
  await loaded;
  assert.deepEqual([page.catalogue.chosen.target, page.choice.drafter], ["big", "small"]);
});
