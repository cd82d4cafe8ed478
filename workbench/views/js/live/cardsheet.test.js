import assert from "node:assert/strict";
import { test } from "node:test";

import { aboveSheet, distance } from "./cardsheet.js";

test("a card in view is not scrolled to", () => {
  assert.equal(distance({ top: 200, bottom: 600 }, { top: 150 }, 900), 0);
  assert.equal(distance({ top: 500, bottom: 840 }, { top: 300 }, 900), 0, "it ends above the scrubber");
});

test("a card below the window comes into view, and the chosen token stays in view", () => {
  assert.equal(distance({ top: 700, bottom: 1000 }, { top: 500 }, 900), 156);
  assert.equal(distance({ top: 700, bottom: 1600 }, { top: 300 }, 900), 232, "the token stops below the header");
  assert.equal(distance({ top: 3000, bottom: 3400 }, { top: 40 }, 900), 0, "no way to show both");
});

test("a token below the sheet is scrolled above it", () => {
  assert.equal(aboveSheet({ top: 200, bottom: 220 }, { top: 400 }), 0);
  assert.equal(aboveSheet({ top: 500, bottom: 520 }, { top: 400 }), 380);
  assert.ok(aboveSheet({ top: 10, bottom: 30 }, { top: 400 }) < 0);
});
