import assert from "node:assert/strict";
import { test } from "node:test";
import { barred, continueAfter, onMessage, keyOf, line, measured, request, stopStale, toggle } from "./repeats.js";

const header = {
  prompt: "Once",
  prompt_tokens: [5, 6],
  method: "draft-model",
  drafter: "d",
  params: { depth: 3 },
  target: "t",
  max_new_tokens: 9,
  seed: 1,
};
const run = { key: "k", header, from: "live", state: "finished" }, rounds = [{ changes: [] }];

function page(more = {}) {
  const sent = [], calls = [];
  return {
    run,
    plain: { state: "finished" },
    pairs: null,
    channels: 0,
    barred: "",
    sent,
    asked: calls,
    drawn: 0,
    parts: { live: {} },
    draw() {
      this.drawn += 1;
    },
    host: { decode: (wish) => sent.push(wish), call: (name, wish) => (calls.push([name, wish]), Promise.resolve({})) },
    ...more,
  };
}

test("pairs are requested with the tokens and settings of the run", () => {
  assert.deepEqual(request(run, "c"), { pairs: true, channel: "c", ...header });
  assert.equal(request({ ...run, id: "r" }, "c").run, "r");
  assert.notEqual(keyOf(run), keyOf({ ...run, header: { ...header, params: { depth: 4 } } }));
  assert.equal(keyOf({ key: "k", header: null }), null);
});

test("pairs are offered only with a baseline and unchanged settings", () => {
  assert.equal(barred(run, rounds, rounds, true), "");
  assert.equal(barred(run, rounds, null, true), null);
  assert.equal(barred(run, rounds, rounds, false), null);
  assert.equal(barred({ ...run, from: "recorded" }, rounds, rounds, true), null);
  assert.equal(barred({ ...run, header: { ...header, method: "autoregressive" } }, rounds, rounds, true), null);
  assert.match(barred(run, [{ changes: [{}] }], rounds, true), /cannot be repeated/);
});

test("the line has its place before the baseline is measured", () => {
  assert.equal(line(null, run, null), null);
  assert.match(line(null, run, null, true).text, /baseline/);
});

test("a baseline continues with pairs that narrow the interval; the end has a reason, and can be continued", () => {
  const at = page();
  continueAfter(at, () => at.barred);
  const [{ channel }] = at.sent, hears = (more) => onMessage(at, { channel, job: "j", ...more });
  continueAfter(at, () => at.barred);
  assert.equal(at.sent.length, 1, "only one measurement at a time");
  const widths = [[1.2, 1.4, 1.3], [1.2, 1.4, 1.3, 1.35, 1.25, 1.3]].map((ratios) => {
    hears({ pairs: { ratios, text: `pair ${ratios.length + 1}`, waiting: false, ended: "", most: 12 } });
    const found = measured(at.pairs, run);
    return found.high - found.low;
  });
  assert.ok(widths[1] < widths[0]);
  assert.match(
    line(at.pairs, run, "").text,
    /^6 pairs of runs measured · pair 7, at most 12$/,
    "the speed-up is shown only in the key figure",
  );
  assert.equal(line(at.pairs, run, "").button, "Stop");
  toggle(at);
  assert.deepEqual(at.asked, [["stop_pairs", { job: "j" }]]);
  hears({ pairs: { ratios: [1.2, 1.4, 1.3], text: "", waiting: false, ended: "stopped", most: 12 } });
  assert.match(line(at.pairs, run, "").text, /ended: stopped$/);
  assert.match(at.parts.live.textContent, /^Speed-up 1\.30×/);
  toggle(at);
  assert.deepEqual(at.pairs.before, [1.2, 1.4, 1.3], "earlier pairs still count");
});

test("a run with other settings ends the measurement; earlier pairs are not shown for it", () => {
  const at = page();
  toggle(at);
  onMessage(at, {
    channel: at.pairs.channel,
    job: "j",
    pairs: { ratios: [2, 2, 2], text: "", waiting: false, ended: "", most: 12 },
  });
  stopStale(at);
  assert.equal(at.asked.length, 0);
  at.run = { ...run, header: { ...header, method: "medusa" } };
  assert.equal(measured(at.pairs, at.run), null);
  stopStale(at);
  assert.equal(at.asked.length, 1);
});

test("measurement does not continue if the baseline or the run did not finish, or after an error", () => {
  for (const more of [{ plain: { state: "cancelled" } }, { run: { ...run, state: "cancelled" } }, { barred: null }]) {
    const at = page(more);
    continueAfter(at, () => at.barred);
    assert.equal(at.sent.length, 0);
  }
  const at = page();
  toggle(at);
  onMessage(at, { channel: at.pairs.channel, error: { message: "No.", remedy: "Do." } });
  assert.deepEqual(line(at.pairs, run, ""), { text: "Measuring pairs of runs · No. Do.", button: "Measure more" });
});
