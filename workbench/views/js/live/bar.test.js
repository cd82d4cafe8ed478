import assert from "node:assert/strict";
import { test } from "node:test";
import { offered, outOfSight } from "./bar.js";
import { buttons } from "../shared/controls.js";

const state = { active: false, paused: false, ready: true, measuring: false, baseline: { label: "Baseline", off: "" } };

test("the toolbar has the panel's buttons; Run and Pause are always shown", () => {
  assert.deepEqual(
    offered(buttons(state)).map(({ name, off }) => [name, off]),
    [
      ["run", ""],
      ["pause", "no run in progress"],
      ["step", ""],
      ["stop", "no run in progress"],
    ],
  );
  assert.deepEqual(
    offered(buttons({ ...state, active: true })).map(({ name, label, off }) => [name, label, off]),
    [
      ["run", "Run", "a run is in progress: stop it first"],
      ["pause", "Pause", ""],
      ["step", "Step", ""],
      ["stop", "Stop", ""],
    ],
  );
  assert.equal(offered(buttons({ ...state, active: true, paused: true }))[1].label, "Resume");
});

test("Run scrolls to the tokens on a narrow page only; on a wide one the images above them stay visible", () => {
  assert.ok(outOfSight({ top: 760, bottom: 1100 }, true, 844), "below the fold");
  assert.ok(outOfSight({ top: -400, bottom: -60 }, true, 844), "above the window");
  assert.ok(!outOfSight({ top: 40, bottom: 380 }, true, 844), "already visible");
  assert.ok(!outOfSight({ top: 606, bottom: 900 }, false, 900), "Vision on a wide page");
});
