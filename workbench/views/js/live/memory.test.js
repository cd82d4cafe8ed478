import test from "node:test";
import assert from "node:assert/strict";
import { base64, known, latestDraft, size } from "./memory.js";

const SEEN = {
  kind: "suffix", title: "Suffixes of texts", unit: "tokens", entries: 1200, bound: 131072, n_bytes: 4800,
  most_bytes: 1064960, asked: 20, hits: 17, kept: 34, shared: false, saves: true, counted: "times seen", top: [],
  made: { round: 3, before: " little", after: " fox\n" },
};

test("size, limit, bytes and hits are one sentence", () => {
  assert.equal(
    size(SEEN),
    "Suffixes of texts: 1,200 of at most 131,072 tokens, 4.8 kB of 1.1 MB; " +
      "17 of 20 look-ups had a hit; 34 tokens drafted from the state were accepted.",
  );
  assert.match(size({ ...SEEN, shared: true }), /The state is shared by all runs of this app in which “warm” is on\.$/);
  assert.match(size({ ...SEEN, saves: false }), /1,200 tokens, 4\.8 kB, read only/);
  assert.match(size({ ...SEEN, asked: 0 }), /no look-ups yet/);
  assert.equal(size({ kind: "", why: "It keeps nothing." }), "It keeps nothing.");
});

test("the entry of the latest draft is shown, with visible spaces and line breaks", () => {
  assert.equal(latestDraft(SEEN), "Round 4: after “␣little”, the entry “␣fox⏎” was drafted.");
  assert.equal(latestDraft({ made: null }), "The latest draft used no entry of the state.");
});

test("only a live run with an id is queried", () => {
  assert.equal(known(null), false);
  assert.equal(known({ from: "recorded", id: "x" }), false);
  assert.equal(known({ from: "live", id: null }), false);
  assert.equal(known({ from: "live", id: "x" }), true);
});

test("base64 of many bytes is correct", () => {
  const bytes = Uint8Array.from({ length: 100_000 }, (_, i) => i % 251);
  assert.deepEqual(new Uint8Array(Buffer.from(base64(bytes), "base64")), bytes);
});
