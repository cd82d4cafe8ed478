import assert from "node:assert/strict";
import { test } from "node:test";
import * as words from "./words.js";

const RUN = { id: "a", state: "running", drafts: false, memory: 3 * 2 ** 20 };
const AT = { stage: 3, of: 4, name: "training", done: 0.5, left_s: 75, evaluating_s: 4 };

test("a run that trains says its stage, what is left of it, its memory, and what evaluating took", () => {
  const said = words.progress({ ...RUN, progress: AT });
  assert.equal(said.text, "stage 3 of 4: training · about 75 s left of this stage");
  assert.equal(said.note, "3 MB of memory, low priority · drafting on policy took 4 s, counted apart");
  assert.equal(words.progress({ ...RUN, progress: { ...AT, done: null, left_s: null } }).total, 0, "how far is unknown");
});

test("what cannot be done has its reason", () => {
  assert.deepEqual(words.deeds(RUN, { busy: "a", swaps: true }), {
    stop: "",
    resume: "it trains already",
    promote: "there is no checkpoint yet",
    forget: "stop it first",
    none: "choose a run first",
  });
  const killed = { ...RUN, state: "killed", drafts: true };
  assert.equal(words.deeds(killed, { busy: null, swaps: true }).resume, "");
  assert.match(words.deeds(killed, { busy: "b", swaps: true }).resume, /another run/);
  assert.match(words.deeds(killed, { busy: null, swaps: false }).promote, /backend/);
});

test("an estimate says what it is made of, and what is not known", () => {
  const values = { minutes: 2.5, steps: 0, answer_tokens: 25000 };
  assert.match(words.estimate(values, { head: "", target: "", rate: 250 }), /^About 1.5 min for 25,000 tokens.*2.5 min of training/);
  assert.match(words.estimate({ ...values, steps: 7 }, { head: "", target: "", rate: null }), /not known here yet.*7 steps/);
});

test("a stretch of time is said no finer than it is known", () => {
  assert.deepEqual([0.2, 89, 100, 150, 1790, undefined].map(words.time), ["1 s", "89 s", "1.5 min", "2.5 min", "30 min", ""]);
});

test("a promotion says which generations draft with it", () => {
  assert.match(words.promoted({ step: 7, switched: 1 }, "EAGLE-3"), /step 7.*EAGLE-3.*One generation/);
  assert.match(words.promoted({ step: 7, switched: 0 }, "EAGLE-3"), /begin from now on/);
});
