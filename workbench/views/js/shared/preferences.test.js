import assert from "node:assert/strict";
import { test } from "node:test";
import * as preferences from "./preferences.js";

test("a choice is kept, and replaces the default", () => {
  const kept = new Map(), storage = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v) };
  assert.ok(preferences.isOn("a", true, storage));
  assert.ok(!preferences.isOn("a", false, storage));
  preferences.set("a", false, storage);
  assert.ok(!preferences.isOn("a", true, storage));
  preferences.set("a", true, storage);
  assert.ok(preferences.isOn("a", false, storage));
});

test("a browser that blocks storage has the defaults", () => {
  const fails = () => {
    throw new Error("blocked");
  };
  assert.ok(preferences.isOn("a", true, { getItem: fails }));
  preferences.set("a", false, { setItem: fails });
});
