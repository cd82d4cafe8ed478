import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { candidates, facts as factsOf, overlap, plainVerdict, roundFacts } from "./card.js";
import { legible, words } from "../shared/ribbon.js";
import { visible } from "../shared/kit.js";

const { header, rounds } = JSON.parse(
  readFileSync(new URL("../../../../tests/fixtures/wire/chain.json", import.meta.url)),
);

const facts = (round, node, rules = header.rules) => factsOf(round, node, rules);

test("the selected node is always among the candidates, with its recorded probabilities", () => {
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
  const round = {
    path: [],
    top_p: [top([1])],
    top_q: [top([2])],
    nodes: { parents: [], tokens: [], text: [], p: [], q: [] },
  };
  const [a, b] = candidates(round, null);
  assert.deepEqual([a.q, b.p], [null, null]);
});

test("without a recorded distribution, the node's own p and q are shown", () => {
  const round = {
    path: [],
    top_p: [],
    top_q: [],
    nodes: { parents: [-1], tokens: [7], text: ["x"], p: [0.5], q: [null] },
  };
  assert.deepEqual(candidates(round, 0), [{ token: 7, text: "x", p: 0.5, q: null, own: true }]);
});

test("a test shows both sides of the comparison", () => {
  const round = rounds.find((r) => r.nodes.status.includes("rejected")), i = round.nodes.status.indexOf("rejected");
  const drawn = facts(round, i).find(([term]) => term === "test")[1];
  assert.match(drawn, /^u = 0\.\d+ ≥ .* → rejected; “.*” (is the corrected token|was (accepted|rejected))$/);
});

test("one sentence says why a token was accepted, rejected or not tested", () => {
  for (const round of rounds)
    round.nodes.status.forEach((status, i) => {
      const say = plainVerdict(round, i, header.rules);
      assert.match(say, { accepted: /^Accepted: /, rejected: /^Rejected: /, discarded: /^Not tested: / }[status]);
      const drawn = say.match(/u = ([\d.·⁻¹²³⁴⁵⁶⁷⁸⁹]+) is (below|not below)/);
      if (drawn) assert.equal(drawn[2] === "below", status === "accepted");
    });
  assert.equal(plainVerdict(rounds[0], null, header.rules), "");
});

test("at temperature 0 the sentence names the target's most likely token", () => {
  const nodes = {
    parents: [-1, -1], tokens: [5, 6], text: ["a", "b"], p: [0.22, 0.001], status: ["rejected", "rejected"],
    accept: [0, 0], u: [null, null], rule: ["greedy", "greedy"], inputs: { likeliest: [9, 9] },
  };
  const round = { nodes, path: [], top_p: [{ tokens: [9, 5], text: ["best", "a"], prob: [0.36, 0.22] }], top_q: [] };
  assert.equal(
    plainVerdict(round, 0, {}),
    "Rejected: the target's most likely token here is “best” (p 0.36), not “a” (p 0.22).",
  );
  assert.match(plainVerdict(round, 1, {}), /not “b” \(p below 0\.01\)\.$/);
  const other = { greedy: { title: "Token after a second pass" } };
  const fused = { ...round, nodes: { ...nodes, inputs: { likeliest: [5, 5] } } };
  assert.equal(plainVerdict(fused, 1, other), "Rejected by the rule “Token after a second pass”.");
  const kept = { ...round, nodes: { ...nodes, status: ["accepted", "discarded"] } };
  assert.equal(plainVerdict(kept, 0, {}), "Accepted: “a” (p 0.22) is the target's most likely token here.");
  assert.equal(plainVerdict(kept, 1, {}), "Not tested: “a” was accepted instead of this draft.");
});

test("a ranking of drafts that were not drawn from q shows their probabilities", () => {
  const nodes = { parents: [-1], tokens: [7], text: ["x"], p: [0.5], q: [0.6] };
  const ranking = [{ tokens: [7, 8], text: ["x", "y"], prob: [0.6, 0.3] }];
  const found = candidates({ path: [], top_p: [], top_q: [], ranking, nodes }, 0);
  assert.deepEqual(found.map((row) => [row.token, row.q]), [[7, 0.6], [8, 0.3]]);
});

test("a discarded node shows why it was not tested", () => {
  const round = rounds.find((r) => r.nodes.status.includes("discarded")), i = round.nodes.status.indexOf("discarded");
  assert.match(facts(round, i).find(([term]) => term === "test")[1], /never tested/);
});

test("an untested draft shows why it was not tested", () => {
  const text = ["a", "b", "c", "d", "e", "f"]; // a and its child e were accepted, b (with child c) came after a, f after e's rejected sibling d
  const nodes = {
    text,
    tokens: [0, 1, 2, 3, 4, 5],
    parents: [-1, -1, 1, 0, 0, 3],
    depth: [1, 1, 2, 2, 2, 3],
    position: [1, 1, 2, 2, 2, 3],
    source: text.map(() => ""),
    p: text.map(() => 0.5),
    q: text.map(() => 0.5),
    accept: text.map(() => null),
    u: text.map(() => null),
  };
  const drawn = (status, node) =>
    facts({ ...rounds[0], entropy: [], nodes: { ...nodes, rule: undefined, status } }, node).find(
      ([term]) => term === "test",
    )[1];
  const went = ["accepted", "discarded", "discarded", "rejected", "accepted", "discarded"];
  assert.equal(drawn(went, 1), "never tested: “a” was accepted instead of this draft");
  assert.equal(drawn(went, 2), "never tested: “a” was accepted instead of “b”");
  assert.equal(drawn(went, 5), "never tested: the earlier draft “d” on the same path was rejected");
  assert.equal(
    drawn(["accepted", ...text.slice(1).map(() => "discarded")], 4),
    "never tested: the accepted path ended before this draft",
  );
});

test("the facts of a round include method and times", () => {
  assert.deepEqual(roundFacts(rounds[0]).map(([term]) => term), ["method", "time", "forward passes"]);
});

test("the facts of a node include id, rank among siblings, position and the round's time", () => {
  const nodeFacts = Object.fromEntries(facts(rounds[0], 0));
  assert.match(nodeFacts.token, /^id \d+, “.+”$/);
  assert.match(nodeFacts.position, /^\d+ in the text, depth 1$/);
  assert.match(nodeFacts.time, /^round 1: [\d.]+ ms for \d+ tokens? = [\d.]+ draft/);
});

test("the overlap counts only tokens with both probabilities recorded", () => {
  assert.equal(overlap([{ p: 0.5, q: 0.2 }, { p: null, q: 0.4 }, { p: 0.1, q: 0.3 }]).toFixed(2), "0.30");
  assert.equal(overlap([{ p: null, q: 0.4 }]), null);
});

test("white space is visible at both ends", () => {
  assert.equal(visible("  a b "), "␣␣a b␣");
  assert.equal(visible("\n\t"), "⏎⇥");
});

test("the card shows the character of joined bytes, and the bytes of incomplete characters", () => {
  const text = [" ok", "‹D7›", "‹A9›", "‹9C›"],
    some = {
      ...rounds[0].nodes,
      text,
      tokens: [1, 2, 3, 4],
      parents: [-1, 0, 1, 1],
      depth: [1, 2, 3, 3],
      position: [1, 2, 3, 3],
      source: text.map(() => ""),
    };
  const status = ["accepted", "accepted", "rejected", "accepted"],
    half = text.map(() => 0.5),
    nodes = { ...some, status, p: half, q: half, accept: half, u: half, rule: undefined };
  const top = (tokens, texts) => ({ tokens, text: texts, prob: tokens.map((_, i) => 0.5 / (i + 1)) });
  const raw = {
    ...rounds[0],
    nodes,
    entropy: [],
    top_q: [],
    top_p: [top([1], [" ok"]), top([2, 9], ["‹D7›", "‹F0›"]), top([3, 4, 8, 5], ["‹A9›", "‹9C›", "‹F0›", "!"])],
  };
  const round = legible(raw);
  assert.equal(legible(raw), round, "cached: the same object is returned");
  assert.deepEqual(round.nodes.text, words(nodes));
  assert.deepEqual(
    candidates(round, 2).map((c) => c.text),
    ["\u05e9", "\u05dc", "bytes D7 F0", "·!"],
  );
  assert.deepEqual(
    candidates(round, 1).map((c) => c.text),
    ["byte D7", "byte F0"],
  );
  const written = facts(round, 2)
    .map(([, words]) => words)
    .join(" ");
  assert.match(written, /then “\u05dc” was accepted/);
  assert.match(written, /id 3, “\u05e9”/);
  assert.ok(!written.includes("‹"));
  assert.deepEqual(raw.nodes.text, text, "the trace is unchanged");
});
