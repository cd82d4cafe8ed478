/** Details of one node, or of one round when no node is selected: probabilities, test, result. */

import { isCell } from "./cells.js";
import * as benchlink from "../shared/benchlink.js";
import * as formula from "./formula.js";
import * as treebuilder from "./treebuilder.js";
import * as kit from "../shared/kit.js";
import * as preferences from "../shared/preferences.js";
import { roundTokens, ownToken } from "../shared/store.js";
import * as retestCard from "./retestcard.js";
import * as ribbon from "../shared/ribbon.js";
import * as acceptanceRule from "./acceptancerule.js";
import { visible } from "../shared/kit.js";

const ROWS = 5;
/** Name of the preference: whether the details of a node are unfolded. */
const FACTS = "wb-cardfacts";
/** Visible label of the button beside a token; its accessible name and tooltip are longer. */
export const FROM = "continue";

/** Return the likeliest tokens at the place that a node was drafted for, target and drafter side by side. Pure.
 *  A probability that was not recorded is null: it is unknown, not zero.
 *  @returns {{token: number, text: string, p: number|null, q: number|null, own: boolean}[]} */
export function candidates(round, node) {
  const { nodes } = round, place = (node === null ? (round.path.at(-1) ?? -1) : nodes.parents[node]) + 1;
  const found = new Map();
  const add = (top, name) => top?.tokens.forEach((token, i) => {
    const row = found.get(token) ?? { token, text: top.text[i], p: null, q: null, own: false };
    row[name] = top.prob[i];
    found.set(token, row);
  });
  add(round.top_p[place], "p");
  add(round.top_q[place] ?? round.ranking?.[place], "q");
  nodes.parents.forEach((parent, i) => {
    if (parent + 1 !== place || (found.size === 0 && i !== node)) return;
    const row = found.get(nodes.tokens[i]) ?? {
      token: nodes.tokens[i],
      text: nodes.text[i],
      p: null,
      q: null,
      own: false,
    };
    Object.assign(row, { p: row.p ?? nodes.p[i], q: row.q ?? nodes.q[i], own: i === node });
    found.set(nodes.tokens[i], row);
  });
  const ranked = [...found.values()].sort((a, b) => Math.max(b.p ?? 0, b.q ?? 0) - Math.max(a.p ?? 0, a.q ?? 0));
  const best = ranked.slice(0, ROWS), own = ranked.find((r) => r.own);
  return own && !best.includes(own) ? [...best.slice(0, ROWS - 1), own] : best;
}

/** Describe a node: [term, text] pairs. Pure.
 *  @param {Record<string, object>} rules  rules of the trace's header */
export function facts(round, node, rules) {
  const { nodes } = round;
  if (node === null) return [];
  const p = nodes.p[node],
    q = nodes.q[node],
    accept = nodes.accept[node],
    u = nodes.u[node],
    status = nodes.status[node];
  const ruleFacts = acceptanceRule.statement(round, node, rules, formula, visible),
    why = ruleFacts.at(-1)?.[0] === "why" ? [ruleFacts.pop()] : [];
  const out = [["probability", `p = ${short(p, formula)} · q = ${short(q, formula)}`], ...ruleFacts];
  const drawn = () => formula.compared(u, accept).join(" ");
  const passed = accept === 1 && status === "rejected";
  out.push([
    "test",
    (u !== null && accept !== null
      ? `u = ${drawn()} → ${status}`
      : status === "discarded"
        ? `never tested: ${untestedReason(round, node)}`
        : passed
          ? "passed its test, but another path that also passed was accepted"
          : `no random number → ${status}`) + (passed ? "" : afterRejection(round, node)),
  ]);
  const grown = treebuilder.statement(round, node, formula),
    there = grown.at(-1)?.[0] === "why drafted" ? [grown.pop()] : [];
  out.push(...grown, ...why);
  const entropy = round.entropy[nodes.parents[node] + 1];
  if (entropy !== undefined) out.push(["entropy", `${entropy.toFixed(2)} nats (of p)`]);
  const siblings = nodes.parents.flatMap((parent, i) => (parent === nodes.parents[node] ? [i] : []));
  const rank =
    siblings.length > 1 ? `, draft ${siblings.indexOf(node) + 1} of ${siblings.length} for this position` : "";
  out.push(
    ["position", `${nodes.position[node]} in the text, depth ${nodes.depth[node]}${rank}`],
    ["token", `id ${nodes.tokens[node]}, “${visible(nodes.text[node])}”`],
    ["time", timeText(round)],
  );
  if (nodes.source[node]) out.push(["drafted by", nodes.source[node]]);
  out.push(...there);
  return out;
}

/** State in one sentence why a draft was accepted, rejected or not tested; "" without a node. Pure.
 *  @param {Record<string, any>|undefined} rules  rules of the trace's header */
export function plainVerdict(round, node, rules) {
  if (node === null) return "";
  const { nodes } = round, status = nodes.status[node], accept = nodes.accept[node], u = nodes.u[node];
  const of = (text, p) => `“${visible(text)}”${p === null || p === undefined ? "" : ` (p ${p >= 0.01 ? p.toFixed(2) : "below 0.01"})`}`;
  const own = of(nodes.text[node], nodes.p[node]);
  if (status === "discarded") return `Not tested: ${untestedReason(round, node)}.`;
  if (accept === 1 && status === "rejected") return "It passed its test, but another path that also passed was accepted.";
  const verdict = status === "accepted" ? "Accepted" : "Rejected";
  const required = nodes.inputs?.likeliest?.[node], top = round.top_p[nodes.parents[node] + 1];
  if (required !== undefined && required !== null && top && top.tokens[0] === required)
    return status === "accepted"
      ? `Accepted: ${own} is the target's most likely token here.`
      : `Rejected: the target's most likely token here is ${of(top.text[0], top.prob[0])}, not ${own}.`;
  if (u !== null && accept !== null)
    return `${verdict}: the random number u = ${formula.compared(u, accept)[0]} is ${u < accept ? "below" : "not below"} the acceptance probability ${formula.compared(u, accept)[2]}.`;
  const title = rules?.[nodes.rule[node]]?.title;
  return title ? `${verdict} by the rule “${title}”.` : "";
}

const short = (v, f) => (v === null || v === undefined ? "–" : f.digits(v, 2));

/** Say why a draft was never tested: an ancestor was rejected, a sibling was accepted, or the accepted path ended
 *  before it. */
function untestedReason({ nodes }, node) {
  const { parents, status } = nodes, isAccepted = (i) => i < 0 || status[i] === "accepted";
  let top = node; // where its branch leaves the accepted path
  while (!isAccepted(parents[top])) top = parents[top];
  if (status[top] === "rejected") return `the earlier draft “${visible(nodes.text[top])}” on the same path was rejected`;
  const winner = parents.findIndex((parent, i) => parent === parents[top] && status[i] === "accepted");
  if (winner < 0) return "the accepted path ended before this draft";
  const replaced = top === node ? "this draft" : `“${visible(nodes.text[top])}”`;
  return `“${visible(nodes.text[winner])}” was accepted instead of ${replaced}`;
}

/** Describe the step after a rejection: the next draft for the same position, or the target's own token. */
function afterRejection(round, node) {
  const { nodes, bonus_kind } = round;
  if (nodes.status[node] !== "rejected") return "";
  const next = nodes.parents.findIndex(
    (parent, i) => i > node && parent === nodes.parents[node] && nodes.status[i] !== "discarded",
  );
  if (next >= 0) return `; then “${visible(nodes.text[next])}” was ${nodes.status[next]}`;
  const own = ownToken(round);
  return own && bonus_kind === "corrected" ? `; “${visible(own.text)}” is the corrected token` : "";
}

/** Return Σ min(p, q) over the tokens whose p and q are both recorded: a lower bound of the acceptance rate of a draft
 *  from q. Pure. */
export function overlap(rows) {
  const known = rows.filter((r) => r.p !== null && r.q !== null);
  return known.length ? known.reduce((sum, r) => sum + Math.min(r.p, r.q), 0) : null;
}

function timeText(round) {
  const ms = (s) => (1e3 * s).toFixed(1),
    waited = round.waited_s ? ` + ${ms(round.waited_s)} waiting for other runs` : "",
    n = round.emitted.length;
  return `round ${round.index + 1}: ${ms(round.seconds)} ms for ${n} token${n === 1 ? "" : "s"} = ${ms(round.draft_s)} draft + ${ms(round.verify_s)} verify + ${ms(round.overhead_s)} overhead${waited}`;
}

/** Describe a whole round: [term, text] pairs. Pure. */
export function roundFacts(round) {
  const out = [
    ["method", round.method],
    ["time", timeText(round)],
    ["forward passes", `${round.draft_forwards} of the drafter, ${round.target_forwards} of the target`],
  ];
  for (const [name, value] of Object.entries(round.signals).filter(([name]) => !isCell(name)))
    out.push([name, Number.isInteger(value) ? `${value}` : Number(value).toPrecision(3)]);
  for (const note of round.notes) out.push(["note", note]);
  return out;
}

/** Return the parent of the tokens that the card lists: the node's parent, or the end of the accepted path. Pure. */
export function placeOf(round, node) {
  return node === null ? (round.path.at(-1) ?? -1) : round.nodes.parents[node];
}

/** Draw into `el`; emits `wb:branch` {round, place, token, text} when a token is chosen to continue from.
 *  @param {{round: object|null, node: number|null, barred: string, rules: Record<string, object>|undefined,
 *         base?: string}} data  `barred`: why no run can be continued; `rules`: of the trace's header; `base`: URL of
 *         the app, if there is one */
export function render(el, data) {
  const state = (el._card ??= build(el));
  const { node } = data;
  el.classList.toggle("is-empty", !data.round);
  if (!data.round) return;
  const round = ribbon.legible(data.round),
    rows = candidates(round, node),
    own = candidates(data.round, node),
    taken = new Set(
      roundTokens(round)
        .filter(
          (e) => placeOf(round, node) === (e.node === null ? (round.path.at(-1) ?? -1) : round.nodes.parents[e.node]),
        )
        .map((e) => e.token),
    );
  while (state.bars.childElementCount < rows.length) state.bars.append(bar(el));
  [...state.bars.children].forEach((row, i) => {
    row.hidden = i >= rows.length;
    if (row.hidden) return;
    fill(row, rows[i]);
    // the raw vocabulary text: it becomes part of a prompt
    row._pick = { round: round.index, place: placeOf(round, node), token: rows[i].token, text: own[i].text };
    const button = row.lastChild,
      kept = taken.has(rows[i].token);
    kit.set(button, { "aria-label": `Continue from here with “${visible(rows[i].text)}”` });
    button.disabled = Boolean(data.barred) || kept;
    button.title = kept
      ? "the text already continues with this token"
      : data.barred || "start a new run from here with this token";
  });
  state.key.hidden = rows.length === 0;
  const bench = data.base === undefined ? null : benchQuery(round, node, rows);
  state.bench.hidden = bench === null;
  if (bench !== null) kit.set(state.bench, { href: `${data.base}/verifiers?${bench}` });
  retestCard.render(state.play, { ...data, round });
  const tested = facts(round, node, data.rules),
    outcome = state.play.hidden ? tested.find(([term]) => term === "test") : null;
  const verdict = plainVerdict(round, node, data.rules);
  state.verdict.hidden = !verdict;
  state.verdict.dataset.status = node === null ? "" : round.nodes.status[node];
  kit.write(state.verdict, verdict);
  state.outcome.hidden = !outcome || Boolean(verdict);
  kit.write(state.outcome, outcome?.[1] ?? "");
  // meaningful only where drafts were drawn from q
  const shared = round.top_q[placeOf(round, node) + 1] ? overlap(rows) : null;
  const list = [
    ...tested,
    ...(shared === null ? [] : [["overlap", `Σ min(p, q) ≥ ${shared.toFixed(2)}, over the tokens above`]]),
    ...(node === null ? roundFacts(round) : []),
  ];
  while (state.list.childElementCount < 2 * list.length) state.list.append(kit.h("dt"), kit.h("dd"));
  [...state.list.children].forEach((cell, i) => {
    const pair = list[i >> 1];
    cell.hidden = !pair;
    if (!pair) return;
    kit.write(cell, pair[i & 1]);
    cell.classList.toggle("is-words", pair[0].startsWith("why"));
  });
}

/** Return the verifier bench's query for a node's position; null where no node is selected or the drafter's
 *  distribution was not recorded (a score is not a distribution). Pure. */
export function benchQuery(round, node, rows) {
  if (node === null || !round.top_q[round.nodes.parents[node] + 1]) return null;
  const drafts = round.nodes.parents.filter((parent) => parent === round.nodes.parents[node]).length;
  const from = `node “${visible(round.nodes.text[node])}”, round ${round.index + 1}`;
  return benchlink.placeQuery(rows, drafts, from, round.params);
}

function build(el) {
  const bars = kit.h("div", { className: "wb-bars" }), list = kit.h("dl", { className: "wb-facts" });
  const key = kit.h(
    "div",
    { className: "wb-key" },
    retestCard.keyOf("is-q", "q drafter"),
    retestCard.keyOf("is-p", "p target"),
  );
  const play = kit.h("div", { hidden: true });
  const bench = kit.h("a", { className: "wb-tobench", target: "_blank", hidden: true }, "Open in the verifier bench ↗");
  const outcome = kit.h("p", { className: "wb-play-verdict", hidden: true });
  const folded = kit.h("details", { className: "wb-cardfacts" }, kit.h("summary", {}, "Details"), list);
  folded.open = preferences.isOn(FACTS, false);
  folded.addEventListener("toggle", () => preferences.set(FACTS, folded.open));
  const verdict = kit.h("p", { className: "wb-plainverdict", hidden: true });
  el.append(verdict, outcome, play, bars, key, bench, folded);
  return { bars, key, list, play, bench, outcome, verdict };
}

function bar(el) {
  const row = kit.h("div", { className: "wb-bar" }, ...["code", "i", "i", "span", "span"].map((tag) => kit.h(tag)));
  row.append(
    kit.h(
      "button",
      { type: "button", className: "wb-from", onclick: () => kit.emit(el, "wb:branch", row._pick) },
      FROM,
    ),
  );
  ["", "is-q", "is-p", "is-q", "is-p"].forEach((name, i) => (row.children[i].className = name));
  return row;
}

function fill(row, { text, p, q, own }) {
  const [word, barQ, barP, textQ, textP] = row.children, shown = visible(text);
  row.classList.toggle("is-own", own);
  kit.write(word, shown.length > 11 ? `${shown.slice(0, 10)}…` : shown);
  for (const [bar, label, v, name] of [[barQ, textQ, q, "q"], [barP, textP, p, "p"]]) {
    bar.style.setProperty("--v", v ?? 0);
    label.style.setProperty("--v", v ?? 0);
    bar.toggleAttribute("data-unknown", v === null);
    kit.write(label, v === null ? `${name} –` : `${name} ${figure(v)}`);
  }
}

function figure(v) {
  return v > 0 && v < 0.005 ? "<0.01" : v.toFixed(2);
}
