import assert from "node:assert/strict";
import { test } from "node:test";
import { grouped, where } from "../shared/alerts.js";
import { alerts, badge, changeNote, announcement, progress, status, waiting } from "./words.js";

const figures = { tokens: 5, rounds: 2, acceptance_rate: 0.5 };

test("errors of the request, of the run and of its end are all shown, with remedies", () => {
  const [message] = alerts([{ message: "no", remedy: "do" }], null, []);
  assert.deepEqual([message.kind, message.message, message.remedy, message.times], ["error", "no", "do", 1]);
  assert.equal(alerts([], { footer: { error: "out of memory", warnings: ["inactive"] } }, []).length, 2);
  assert.equal(alerts([], { state: "error", message: "" }, [])[0].kind, "error");
});

test("a repeated note is shown once, with the number of rounds", () => {
  const rounds = [
      { index: 0, notes: ["nothing to propose"] },
      { index: 3, notes: ["nothing to propose"] },
    ],
    [message, ...others] = alerts([], null, rounds);
  assert.deepEqual(
    [message.kind, message.message, message.times, where(message.rounds), others],
    ["warning", "nothing to propose", 2, "(rounds 1, 4)", []],
  );
});

test("six warnings that differ only in numbers are one, with a count and their rounds", () => {
  const say = (n) => `Almost nothing is accepted: ${n} of ${20 + n} tested tokens in 10 rounds.`,
    rounds = [0, 1, 2, 3, 4, 5].map((n) => ({ index: 10 * n + 9, notes: [say(n)] }));
  const message = alerts([], { warnings: rounds.map((r) => r.notes[0]) }, rounds);
  assert.equal(message.length, 1);
  assert.deepEqual(
    [message[0].times, message[0].message, where(message[0].rounds)],
    [6, say(5), "(rounds 10, 20, 30, 40, 50, 60)"],
  );
  assert.equal(where([1, 2, 3, 4, 5, 6, 7, 8]), "(rounds 1, 2, 3, 4, 5, 6 and 2 more)");
});

test("an outdated warning shows the acceptance of later rounds", () => {
  const round = (index, accepted, notes = []) => ({
    index,
    notes,
    path: accepted ? [0] : [],
    emitted: [{}],
    nodes: { status: [accepted ? "accepted" : "rejected"] },
  });
  const say = "Almost nothing is accepted: 0 of 50 tested tokens in 50 rounds.",
    warning = Array.from({ length: 50 }, (_, i) => round(i, false, i === 49 ? [say] : [])),
    better = Array.from({ length: 77 }, (_, i) => round(50 + i, i % 10 === 0));
  const now = (rounds) => alerts([], { warnings: [say] }, rounds)[0];
  assert.deepEqual([now(warning).kind, now(warning).message], ["warning", say]);
  const later = now([...warning, ...better]);
  assert.deepEqual([later.kind, later.message], ["note", `Up to round 50: ${say}`]);
  assert.equal(later.remedy, "In later rounds 8 of 77 tested tokens were accepted.");
});

test("warnings of two drafters stay separate, an error and a warning stay separate, and groups are not counted twice", () => {
  const list = [
    { kind: "warning", message: "A: 3 missing", remedy: "" },
    { kind: "warning", message: "B: 4 missing", remedy: "" },
    { kind: "error", message: "A: 3 missing", remedy: "look" },
  ];
  assert.deepEqual(
    grouped(list).map((a) => a.times),
    [1, 1, 1],
  );
  assert.deepEqual(
    grouped(grouped([...list, ...list])).map((a) => a.times),
    [2, 2, 2],
  );
});

test("the status names state, tokens and pin", () => {
  const run = { state: "running", header: { max_new_tokens: 9 } };
  assert.equal(status({ run, figures, pinned: true, measuring: null }), "running · 5 of 9 tokens · pinned");
  assert.match(
    status({ run: { state: "finished", footer: { reason: "eos" } }, figures, pinned: false, measuring: null }),
    /end-of-sequence token/,
  );
});

test("every state before the first round has a text", () => {
  for (const state of ["starting", "queued", "loading", "prefill", "paused", "error", "cancelled"])
    assert.ok(waiting({ state, message: "" }).length > 5);
  assert.match(waiting(null), /Press Run/);
  assert.match(waiting(null, false), /starting/);
});

test("the badge shows whether the numbers are live", () => {
  assert.match(badge(null, "CPU"), /^LIVE · CPU$/);
  const header = { target: "t", method: "draft-tree", device: "cpu", dtype: "float32", hardware: "H" };
  assert.equal(badge({ from: "recorded", header }, "CPU"), "RECORDED · draft-tree · t · CPU · float32 · H");
  assert.equal(badge({ from: "live", header }, "CPU"), "LIVE · t · CPU", "its method may change during the run");
});

test("the note names the round of a change; the summary is one sentence", () => {
  assert.match(changeNote([{ index: 8, text: "depth 2 → 4" }], true), /depth 2 → 4 was applied at round 9/);
  assert.match(announcement(figures, true), /^Ended\. 5 tokens in 2 rounds, 50 percent/);
});

test("inactive speculation is an error, shown once although its rounds note it too", () => {
  const message = "Speculation is inactive: x had nothing to propose for 16 rounds";
  const shown = alerts([], { warnings: [message], footer: null }, [{ index: 15, notes: [message] }]);
  assert.deepEqual(shown, [{ kind: "error", message, remedy: "", times: 1, rounds: [16] }]);
});

test("a queue shows its position, a download its bytes, a lost connection its seconds", () => {
  assert.match(waiting({ state: "queued", message: "", queue: { position: 2, of: 3 } }), /position 2 of 3/);
  const run = { state: "loading", message: "", loading: { stage: "downloading x", done: 12.3e6, total: 26e6 } };
  assert.match(waiting(run), /^Downloading x: 12\.3 of 26\.0 MB/);
  assert.deepEqual(progress(run), { done: 12.3e6, total: 26e6 });
  assert.equal(progress({ state: "running" }), null);
  assert.match(
    status({ run: null, figures, pinned: false, measuring: null, lost: 4.2 }),
    /reconnecting: no answer for 4 s/,
  );
});

test("an unknown end reason is shown unchanged; a trace without a footer is truncated", () => {
  const at = (footer) =>
    status({ run: { state: "finished", header: null, footer }, figures, pinned: false, measuring: null });
  assert.match(at({ reason: "quota" }), /^stopped: quota/);
  assert.match(at(null), /^truncated/);
});

test("a run that ended because its page was closed was not cancelled by the user", () => {
  const message = (reason) =>
    status({ run: { state: "cancelled", footer: { reason } }, figures, pinned: false, measuring: null });
  assert.match(message("cancelled"), /^cancelled/);
  for (const reason of ["lease", "limit", "memory"]) assert.doesNotMatch(message(reason), /by you/);
  assert.match(message("lease"), /^stopped: the page of the run was closed/);
});
