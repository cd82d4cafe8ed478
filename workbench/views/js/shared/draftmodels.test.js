import assert from "node:assert/strict";
import { test } from "node:test";
import * as draftModels from "./draftmodels.js";

const catalogue = {
  drafters: [
    { name: "own", available: true, reason: "" },
    { name: "foreign", available: false, reason: "They do not share a vocabulary.", stranger: true },
    { name: "broken", available: false, reason: "It cannot be read." },
  ],
  methods: [
    { name: "plain", needs: [] },
    { name: "draft", needs: ["drafter"] },
    { name: "translate", needs: ["any-drafter"] },
  ],
};

test("a draft model with a different vocabulary is usable only with a translating method", () => {
  const usable = (method) => draftModels.usable(catalogue, method).filter((e) => e.available).map((e) => e.name);
  assert.deepEqual(usable("translate"), ["own", "foreign"]);
  for (const method of ["plain", "draft", "nobody", null]) assert.deepEqual(usable(method), ["own"]);
  assert.equal(draftModels.usable(catalogue, "translate")[1].reason, "");
  assert.equal(catalogue.drafters[1].available, false, "the catalogue is unchanged");
});

test("a method drafts with a model, with or without translation", () => {
  assert.deepEqual(catalogue.methods.map(draftModels.usesDraftModel), [false, true, true]);
  assert.equal(draftModels.usesDraftModel(undefined), false);
});
