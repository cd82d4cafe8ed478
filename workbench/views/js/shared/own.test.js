import assert from "node:assert/strict";
import test from "node:test";

import { ofRound, ownToken } from "./own.js";

const token = (text, node) => ({ text, node });
const [held, drafted, own] = [token("before", null), token("draft", 0), token("own", null)];

test("the target's own token is the last without a node, and no earlier one that was held", () => {
  assert.equal(ownToken({ emitted: [held, drafted, own], bonus_kind: "bonus" }), own);
  assert.equal(ownToken({ emitted: [held], bonus_kind: null, placed: [{}] }), undefined, "its own is not final");
  assert.equal(ownToken({ emitted: [own] }), own, "older traces");
  assert.equal(ownToken({ emitted: [] }), undefined);
});

test("tokens of earlier rounds are not the round's", () => {
  assert.deepEqual(ofRound({ emitted: [held, drafted, own], bonus_kind: "bonus" }), [drafted, own]);
  assert.deepEqual(ofRound({ emitted: [held, drafted], bonus_kind: null, placed: [{}] }), [drafted]);
});
