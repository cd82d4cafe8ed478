import assert from "node:assert";
import { test } from "node:test";
import { open, press } from "./page.js";

const HINT = "Press again to delete the run permanently.";

/** A page with a run open, and the calls that it sends. */
function pageOf(id) {
  const calls = [], page = { openId: id, opened: { id, state: "done" }, runs: [], chosen: new Set(), errors: [] };
  const host = {
    address: { write: () => {} },
    call: async (name, request) => {
      calls.push(name);
      return name === "runs" ? { runs: [], opened: { id: request.opened, state: "done" }, compared: {} } : {};
    },
  };
  Object.assign(page, { host, calls, offer: { heads: [] }, choice: {}, asksToForget: null, draw: () => {} });
  return Object.assign(page, { parts: { live: { textContent: "" } } });
}

const hint = (page) => page.parts.live.textContent;

test("the hint to press again goes away with the question, and a later press asks once more", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const page = pageOf("a");
  await press(page, "forget");
  assert.deepEqual([hint(page), page.asksToForget, page.calls], [HINT, "a", []]);
  t.mock.timers.tick(60_000);
  assert.deepEqual([hint(page), page.asksToForget], ["", null]);
  await press(page, "forget");
  assert.deepEqual([hint(page), page.calls], [HINT, []], "nothing was deleted");
});

test("a second press deletes, and its hint is gone", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const page = pageOf("a");
  await press(page, "forget");
  await press(page, "forget");
  assert.ok(page.calls.includes("forget"));
  assert.deepEqual([hint(page), page.asksToForget], ["", null]);
});

test("another button or another run withdraws the question and its hint", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const page = pageOf("a");
  await press(page, "forget");
  await press(page, "stop");
  assert.deepEqual([hint(page), page.asksToForget], ["", null]);
  await press(page, "forget");
  assert.equal(hint(page), HINT);
  await open(page, "b");
  assert.deepEqual([hint(page), page.asksToForget], ["", null]);
  await press(page, "forget");
  assert.deepEqual([hint(page), page.asksToForget, page.calls.includes("forget")], [HINT, "b", false]);
});
