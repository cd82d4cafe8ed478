import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { steps } from "./intro.js";

const read = (name) =>
  JSON.parse(readFileSync(new URL(`../../../../tests/fixtures/wire/${name}.json`, import.meta.url))).rounds;

test("without a round the steps explain themselves", () => {
  const { active, steps: all } = steps(null);
  assert.equal(active, -1);
  assert.ok(all.every(({ text, tokens }) => text.endsWith(".") && !tokens.length));
});

test("the steps show the round's own counts", () => {
  const round = read("tree").find((r) => r.path.length && r.bonus_kind === "corrected") ?? read("tree")[0];
  const [draft, verify, keep] = steps(round).steps;
  assert.ok(draft.text.startsWith(`${round.nodes.status.length} token`), draft.text);
  assert.ok(verify.text.includes(`all ${round.nodes.status.length}`), verify.text);
  assert.ok(keep.text.startsWith(round.path.length ? `${round.path.length} accepted` : "none accepted"), keep.text);
  assert.equal(keep.tokens.length, round.path.length + 1, "the accepted tokens and the target's own");
  assert.ok(verify.tokens.every(([, status]) => status !== "discarded"));
});

test("while a round is verified, its result is not shown", () => {
  const round = read("tree")[0];
  const drafted = steps(round, { tested: 0, line: [] }), tested = steps(round, { tested: 1, line: [] });
  assert.deepEqual([drafted.active, tested.active], [0, 1]);
  assert.deepEqual([tested.steps[1].tokens, tested.steps[2].tokens], [[], []]);
  assert.ok(drafted.steps[0].tokens.length, "the draft is shown");
});

test("plain decoding has no draft", () => {
  const [draft, verify, keep] = steps(read("plain")[0]).steps;
  assert.equal(draft.text, "no draft in this round");
  assert.match(verify.text, /for one token/);
  assert.match(keep.text, /from the target/);
});
