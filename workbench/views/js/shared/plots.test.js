import assert from "node:assert/strict";
import { test } from "node:test";
import { broken } from "./plots.js";

test("a legend name is wrapped at spaces into lines that fit", () => {
  const name = "formula: every draft accepted alike, at the costs measured", lines = broken(name, 38).split("<br>");
  assert.deepEqual(lines, ["formula: every draft accepted alike,", "at the costs measured"]);
  assert.equal(broken(name, name.length), name, "a name that fits stays unchanged");
  assert.equal(broken(name, 1), name.replaceAll(" ", "<br>"));
  assert.equal(broken("draft-tree:depth=2,policy=fixed", 9), "draft-tree:depth=2,policy=fixed");
});
