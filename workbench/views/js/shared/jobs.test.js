import assert from "node:assert/strict";
import { test } from "node:test";
import { pollLoading } from "./jobs.js";

test("a loading target is polled until it is ready, and nothing else of the panel changes", async () => {
  const calls = [], loading = { name: "big", loading: true }, ready = { name: "big", title: "big: ready", loading: false };
  const call = async (name, { target }) => {
    calls.push([name, target]);
    return calls.length === 1 ? { error: { message: "busy" } } : { targets: [ready], methods: ["other"] };
  };
  const page = { host: { call }, choice: { target: "t" }, catalogue: { targets: [loading], methods: ["own"] }, draw() {} };
  await pollLoading(page);
  assert.deepEqual(page.catalogue.targets, [loading], "a missing answer changes nothing");
  await pollLoading(page);
  assert.deepEqual(page.catalogue, { targets: [ready], methods: ["own"] });
  await pollLoading(page);
  assert.deepEqual(calls, [["catalogue", "t"], ["catalogue", "t"]], "then polling ends");
});
