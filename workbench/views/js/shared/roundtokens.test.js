import assert from "node:assert/strict";
import test from "node:test";

import { roundTokens, ownToken } from "./roundtokens.js";

const token = (text, node) => ({ text, node });
const [earlier, drafted, own] = [token("before", null), token("draft", 0), token("own", null)];

test("the target's own token is the last one without a node, not an earlier tentative one", () => {
  assert.equal(ownToken({ emitted: [earlier, drafted, own], bonus_kind: "bonus" }), own);
  assert.equal(ownToken({ emitted: [earlier], bonus_kind: null, placed: [{}] }), undefined, "its own token is tentative");
  assert.equal(ownToken({ emitted: [own] }), own, "older traces");
  assert.equal(ownToken({ emitted: [] }), undefined);
});

test("tokens of earlier rounds are left out", () => {
  assert.deepEqual(roundTokens({ emitted: [earlier, drafted, own], bonus_kind: "bonus" }), [drafted, own]);
  assert.deepEqual(roundTokens({ emitted: [earlier, drafted], bonus_kind: null, placed: [{}] }), [drafted]);
});
