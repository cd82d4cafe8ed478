import assert from "node:assert/strict";
import { test } from "node:test";
import { meaning } from "./help.js";

test("arrows move over tokens, inside the tree over nodes", () => {
  assert.deepEqual(meaning({ key: "ArrowLeft", inTree: false }), ["token", -1]);
  assert.deepEqual(meaning({ key: "ArrowLeft", inTree: true }), ["node", "ArrowLeft"]);
});

test("keys without a meaning are left to the browser", () => {
  assert.equal(meaning({ key: "Tab", inTree: true }), null);
  assert.equal(meaning({ key: "x", inTree: false }), null);
});

test("digits select views, braces change the summed range", () => {
  assert.deepEqual(meaning({ key: "3", inTree: false }), ["view", 2]);
  assert.equal(meaning({ key: "7", inTree: false }), null);
  assert.deepEqual(meaning({ key: "}", inTree: true }), ["sum", 1]);
});
