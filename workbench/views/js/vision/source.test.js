import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_BYTES, background, refuse } from "./source.js";

test("a file that is not an image, or too large, is refused with a remedy", () => {
  assert.equal(refuse({ type: "image/png", size: 9 }), null);
  assert.match(refuse({ type: "text/html", size: 9, name: "a.html" }).message, /a\.html is not a supported image/);
  assert.match(refuse({ type: "", size: 9 }).message, /unknown type/);
  assert.match(refuse({ type: "image/gif", size: MAX_BYTES + 1 }).remedy, /20 MB/);
});

test("the background is the most frequent colour of the edge", () => {
  const pixels = new Uint8ClampedArray(4 * 16).fill(200);
  for (const inside of [5, 6, 9, 10]) pixels.fill(0, 4 * inside, 4 * inside + 4);
  pixels.fill(10, 0, 4);
  assert.deepEqual(background(pixels, 4, 4), [200, 200, 200]);
});
