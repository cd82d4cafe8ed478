import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { candidates, facts, roundFacts } from "./card.js";

const { rounds } = JSON.parse(readFileSync(new URL("../../../tests/fixtures/wire/chain.json", import.meta.url)));

test("the chosen node is always among the candidates, with its recorded probabilities known", () => {
  for (const round of rounds) {
    round.nodes.tokens.forEach((token, i) => {
      const own = candidates(round, i).find((c) => c.own);
      assert.equal(own.token, token);
      assert.notEqual(own.p, null);
    });
  }
});

test("a probability that was not recorded is unknown, not zero", () => {
  const top = (tokens) => ({ tokens, text: tokens.map(String), prob: tokens.map(() => 0.4) });
  const round = { path: [], top_p: [top([1])], top_q: [top([2])], nodes: { parents: [], tokens: [], text: [], p: [], q: [] } };
  const [a, b] = candidates(round, null);
  assert.deepEqual([a.q, b.p], [null, null]);
});

test("no recorded distribution still shows the node's own p and q", () => {
  const round = { path: [], top_p: [], top_q: [], nodes: { parents: [-1], tokens: [7], text: ["x"], p: [0.5], q: [null] } };
  assert.deepEqual(candidates(round, 0), [{ token: 7, text: "x", p: 0.5, q: null, own: true }]);
});

test("a draw is told with both sides of the comparison", () => {
  const round = rounds.find((r) => r.nodes.status.includes("rejected")), i = round.nodes.status.indexOf("rejected");
  const drawn = facts(round, i).find(([term]) => term === "drawn")[1];
  assert.match(drawn, /^u = 0\.\d\d ≥ .* → rejected$/);
});

test("a discarded node says why nothing was drawn", () => {
  const round = rounds.find((r) => r.nodes.status.includes("discarded")), i = round.nodes.status.indexOf("discarded");
  assert.match(facts(round, i).find(([term]) => term === "drawn")[1], /never tested/);
});

test("a round's own facts name method and times", () => {
  assert.deepEqual(roundFacts(rounds[0]).map(([term]) => term), ["method", "draft · verify · host", "forwards"]);
});
