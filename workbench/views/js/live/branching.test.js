import assert from "node:assert/strict";
import { test } from "node:test";
import * as store from "../shared/store.js";
import { besides, note, restore } from "./branching.js";

/** A host with session storage, and a backend that has the run "p". */
function host() {
  const stored = new Map();
  return {
    remember: { getItem: (name) => stored.get(name) ?? null, setItem: (name, text) => stored.set(name, text) },
    call: async (_, { run }) =>
      run === "p" ? { run, state: "finished", header: { prompt: "Once" }, rounds: [] } : { error: { message: "gone" } },
  };
}

test("after a reload a branch links to its original run, if the backend still has that run", async () => {
  const at = host(), origin = { run: { id: "p" }, round: 2, text: " a", instead: " b" };
  note({ run: { id: null, origin }, host: at });
  assert.equal(at.remember.getItem("wb-origin"), null, "before it has an id");
  note({ run: { id: "b", origin }, host: at });
  const run = { id: "b", origin: null };
  await restore({ run, host: at, channels: 1 });
  assert.deepEqual([run.origin.round, run.origin.text, run.origin.instead], [2, " a", " b"]);
  assert.deepEqual([run.origin.run.id, run.origin.run.header.prompt], ["p", "Once"]);
  const other = { id: "c", origin: null };
  await restore({ run: other, host: at, channels: 1 });
  assert.equal(other.origin, null, "another run has no origin");
  at.call = async () => ({ error: { message: "gone" } });
  const alone = { id: "b", origin: null };
  await restore({ run: alone, host: at, channels: 1 });
  assert.deepEqual([alone.origin.round, alone.origin.run], [2, null]);
});

test("a branch and its original run are handed over in the same order from either of them", () => {
  const original = Object.assign(store.newRun("a"), { header: { method: "x" }, rounds: [{ index: 0 }] });
  const branch = Object.assign(store.newRun("b"), { header: { method: "y" }, rounds: [{ index: 0 }], origin: { run: original, round: 4, text: "t", instead: null } });
  const names = (pair) => pair.map((each) => `${each.name}: ${each.trace.header.method}`);
  const expected = ["original run: x", "branch at round 5: y"];
  assert.deepEqual(names(besides(branch)), expected);
  original.branch = branch;
  assert.deepEqual(names(besides(original)), expected);
  assert.equal(besides(Object.assign(store.newRun("c"), { header: {} })), null);
  const stopped = Object.assign(store.newRun("e"), { header: {}, origin: { run: original, round: 4 } });
  assert.equal(besides(stopped), null, "a branch that was stopped before its first round");
  assert.equal(besides(Object.assign(store.newRun("d"), { header: {}, origin: { run: null, round: 1 } })), null, "the original run is gone");
});
