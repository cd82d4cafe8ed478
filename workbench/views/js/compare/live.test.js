import assert from "node:assert/strict";
import test from "node:test";
import { foot } from "./stage.js";
import { banner, level, merge, canRace, rows } from "./live.js";

const words = { sentence: (found) => `${found.value.toFixed(2)}×` };
const lane = (name, more = {}) => ({
  name,
  plain: name === "Plain",
  error: "",
  figures: { n: 0, speedup: null },
  race: {},
  ...more,
});
const comparison = (...lanes) => ({
  prompts: [{ name: "a" }, { name: "b" }],
  settings: { repeats: 3, dtype: "float32" },
  machine: { cpu: "X", cores: 2, date: "2026-11-22" },
  lanes,
});

test("a race is possible as soon as plain decoding and another lane have a run, and stays while the next prompt is measured", () => {
  const first = merge(null, comparison(lane("Plain", { race: { 0: "p" } }), lane("Draft")));
  assert.ok(!canRace(first, 0));
  const second = merge(first, comparison(lane("Plain", { race: { 0: "p" } }), lane("Draft", { race: { 0: "d" } })));
  assert.ok(canRace(second, 0));
  const third = merge(second, comparison(lane("Plain", { race: { 1: "q" } }), lane("Draft")));
  assert.deepEqual(
    third.lanes.map((each) => each.race),
    [
      ["p", "q"],
      ["d", null],
    ],
  );
  assert.ok(canRace(third, 0) && !canRace(third, 1));
  assert.ok(
    !canRace(comparison(lane("Draft", { race: ["d"] }), lane("Tree", { race: ["t"] })), 0),
    "two drafters without plain decoding make no race",
  );
  const last = comparison(lane("Plain", { race: ["P", "Q"] }), lane("Draft", { race: ["D", null] }));
  assert.deepEqual(merge(third, last).lanes[0].race, ["P", "Q"], "the last step has all races");
});

test("the running lane shows its tokens, the others their number of runs", () => {
  const step = { lane: "Draft", tokens: 16, limit: 64, waiting: "" };
  const found = rows(
    step,
    comparison(
      lane("Plain", { figures: { n: 2, speedup: { value: 1 } } }),
      lane("Draft", { figures: { n: 1, speedup: { value: 1.5 } } }),
      lane("Tree"),
      lane("Bad", { error: "no" }),
    ),
    words,
  );
  assert.deepEqual(
    found.map((row) => row.text),
    ["2 of 6 runs so far", "16 of at most 64 tokens · run 2 of 6", "waiting", "lane left out after an error"],
  );
  assert.equal(found[1].share, 0.25);
  assert.deepEqual(found.map((row) => row.now), [false, true, false, false]);
  assert.equal(
    rows(
      { ...step, lane: "" },
      comparison(lane("Plain"), lane("Draft", { figures: { n: 1, speedup: { value: 1.5 } } })),
      words,
    )[1].text,
    "1 of 6 runs so far · 1.50×",
  );
  assert.equal(
    rows({ ...step, waiting: "waiting for the device" }, comparison(lane("Draft")), words)[0].text,
    "waiting for the device",
  );
});

test("a lane with an error does not delay announcements", () => {
  assert.equal(level(comparison(lane("Plain", { figures: { n: 2 } }), lane("Bad", { error: "no" }))), 2);
  assert.equal(level(null), 0);
});

test("a measurement in progress is not shown as stopped", () => {
  const half = {
    ...comparison(),
    complete: false,
    settings: { repeats: 2, max_new_tokens: 8, seed: 0, sampling: {} },
    machine: { cpu: "X", date: "today" },
  };
  assert.doesNotMatch(foot(half, true), /Stopped/);
  assert.match(foot(half, false), /Stopped before the end/);
});

test("the banner of an example names machine and date, and whether the panel has the same settings", () => {
  assert.match(banner(comparison(), true), /^RECORDED example, measured on X, 2 cores, float32; 2026-11-22\. Press Measure/);
  assert.match(banner(comparison(), false), /differ from the panel/);
});
