import assert from "node:assert/strict";
import { test } from "node:test";
import * as words from "./words.js";

const RUN = { id: "a", state: "running", drafts: false, memory: 3 * 2 ** 20 };
const AT = { stage: 3, of: 4, name: "training", done: 0.5, left_s: 75, evaluating_s: 4 };

test("a training run shows stage, remaining time, memory and evaluation time", () => {
  const progress = words.progress({ ...RUN, progress: AT });
  assert.equal(progress.text, "stage 3 of 4: training · about 75 s left in this stage");
  assert.equal(progress.note, "3 MB memory, low priority · evaluation on policy took 4 s, not included");
  assert.equal(words.progress({ ...RUN, progress: { ...AT, done: null, left_s: null } }).total, 0, "the remaining time is unknown");
});

test("before its first stage, a run shows its activity and the elapsed time", () => {
  const at = { stage: null, of: null, name: "", done: null, left_s: null, evaluating_s: 0 },
    run = { ...RUN, progress: at, created: "2026-11-28T12:00:00Z" };
  const text = words.progress(run, Date.parse("2026-11-28T12:00:12Z")).text;
  assert.equal(text, "loading PyTorch and the target: 12 s so far; this usually takes 10 to 30 s");
});

test("the settings line of a run lists changed options only", () => {
  assert.equal(words.settingsLine({ minutes: 2.5, answer_tokens: 25000, seed: 0 }), "2.5 min · 25,000 answer tokens");
  assert.equal(words.settingsLine({ minutes: 2.5, steps: 1000, loss: "ce_hard:1", seed: 3 }), "1,000 steps · ce_hard:1 · seed 3");
  assert.equal(words.settingsLine({}), "");
});

test("a stopping run cannot be stopped again; a run with unreadable settings can only be deleted", () => {
  assert.match(words.actions({ ...RUN, stopping: true }, { busy: "a", swaps: true }).stop, /stops after the current step/);
  const { stop, resume, promote, forget } = words.actions({ ...RUN, state: "damaged" }, { busy: null, swaps: true });
  assert.deepEqual([Boolean(stop), Boolean(resume), Boolean(promote), forget], [true, true, true, ""]);
  assert.equal(words.state("damaged"), "unreadable");
});

test("a disabled action has a reason", () => {
  assert.deepEqual(words.actions(RUN, { busy: "a", swaps: true }), {
    stop: "",
    resume: "this run is already training",
    promote: "this run has no checkpoint yet",
    forget: "stop this run first",
    none: "choose a run first",
  });
  const killed = { ...RUN, state: "killed", drafts: true };
  assert.equal(words.actions(killed, { busy: null, swaps: true }).resume, "");
  assert.match(words.actions(killed, { busy: "b", swaps: true }).resume, /another run/);
  assert.match(words.actions(killed, { busy: null, swaps: false }).promote, /backend/);
});

test("an estimate lists its parts and unknown values", () => {
  const values = { minutes: 2.5, steps: 0, answer_tokens: 25000 };
  assert.match(
    words.estimate(values, { head: "", target: "", rate: 250 }),
    /^Takes about 4 min to 6 min: 2.5 min of training after generating and processing 25,000 answer tokens \(measured here: 250 per second\)/,
    "one estimate for the whole run",
  );
  const steps = words.estimate({ ...values, steps: 7 }, { head: "", target: "", rate: null });
  assert.match(steps, /^Takes 7 steps of training, after .* at a speed not yet measured here/);
  assert.match(words.estimate({ ...values, steps: 7 }, { head: "", target: "", rate: 250 }), /^Takes about 1.5 min to 3.5 min to generate/);
});

test("durations are rounded to their precision", () => {
  assert.deepEqual([0.2, 89, 100, 150, 1790, 36420, undefined].map(words.time), ["1 s", "89 s", "1.5 min", "2.5 min", "30 min", "10.1 h", ""]);
});

test("a promotion note names the runs that use the head", () => {
  assert.match(words.promotionNote({ step: 7, switched: 1 }, "EAGLE-3"), /step 7.*EAGLE-3.*One run in progress/);
  assert.match(words.promotionNote({ step: 7, switched: 0 }, "EAGLE-3"), /New runs use the head/);
});

test("the recorded training is shown only while there is no own run, and says that it is recorded", () => {
  const recorded = { head: "eagle-3", target: "text-target", created: "2026-11-30T05:57:39+00:00", hardware: "two cores", options: { minutes: 2 } };
  assert.equal(words.shownRun({ opened: null, runs: [], recorded }), recorded);
  assert.equal(words.shownRun({ opened: null, runs: [{}], recorded }), null, "own runs are being loaded");
  assert.deepEqual(words.shownRun({ opened: { id: "a" }, runs: [{}], recorded }), { id: "a" });
  assert.equal(words.shownRun({ opened: null, runs: [], recorded: null }), null);
  const note = words.recordedNote(recorded);
  for (const part of ["RECORDED", "eagle-3 for text-target", "2026-11-30", "two cores", "2 min"]) assert.ok(note.includes(part), part);
});
