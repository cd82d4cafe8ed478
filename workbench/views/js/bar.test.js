import assert from "node:assert/strict";
import { test } from "node:test";
import { offered } from "./bar.js";
import { buttons } from "./controls.js";

const state = { active: false, paused: false, ready: true, measuring: false, baseline: { label: "Baseline", off: "" } };

test("the controls at hand are those of the panel: what is idle can be run, what runs can be paused", () => {
  assert.deepEqual(offered(buttons(state), false).map(({ name, off }) => [name, off]), [["run", ""], ["step", ""], ["stop", "nothing is running"]]);
  assert.deepEqual(offered(buttons({ ...state, active: true }), true).map(({ name, label, off }) => [name, label, off]), [["pause", "Pause", ""], ["step", "Step", ""], ["stop", "Stop", ""]]);
  assert.equal(offered(buttons({ ...state, active: true, paused: true }), true)[0].label, "Resume");
});
