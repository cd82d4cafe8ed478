/** One node, or one round when no node is chosen: probabilities, the test that was made, what came of it. */

const ROWS = 5;

/** The likeliest tokens at the place a node was drafted for, target and drafter side by side. Pure.
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
  add(round.top_q[place], "q");
  nodes.parents.forEach((parent, i) => {
    if (parent + 1 !== place || (found.size === 0 && i !== node)) return;
    const row = found.get(nodes.tokens[i]) ?? { token: nodes.tokens[i], text: nodes.text[i], p: null, q: null, own: false };
    Object.assign(row, { p: row.p ?? nodes.p[i], q: row.q ?? nodes.q[i], own: i === node });
    found.set(nodes.tokens[i], row);
  });
  const ranked = [...found.values()].sort((a, b) => Math.max(b.p ?? 0, b.q ?? 0) - Math.max(a.p ?? 0, a.q ?? 0));
  const best = ranked.slice(0, ROWS), own = ranked.find((r) => r.own);
  return own && !best.includes(own) ? [...best.slice(0, ROWS - 1), own] : best;
}

/** Sentences about a node: [term, words] pairs. Pure. */
export function facts(round, node) {
  const { nodes } = round, f = (v) => (v === null || v === undefined ? "–" : v < 0.005 && v > 0 ? v.toPrecision(1) : v.toFixed(2));
  if (node === null) return [];
  const p = nodes.p[node], q = nodes.q[node], accept = nodes.accept[node], u = nodes.u[node];
  const out = [["probability", `p = ${f(p)} · q = ${f(q)}`]];
  const greedy = u === null && round.params.temperature === 0;
  if (accept !== null) out.push(["accept with", greedy ? `${f(accept)}: the target's likeliest token or not` : ratioText(p, q, accept, f)]);
  out.push(["drawn", u !== null ? `u = ${f(u)} ${u < accept ? "<" : "≥"} ${f(accept)} → ${nodes.status[node]}`
    : nodes.status[node] === "discarded" ? "never tested: the path ended before it" : `no draw (greedy) → ${nodes.status[node]}`]);
  const entropy = round.entropy[nodes.parents[node] + 1];
  if (entropy !== undefined) out.push(["entropy of p", `${entropy.toFixed(2)} nats`]);
  out.push(["place", `depth ${nodes.depth[node]}, position ${nodes.position[node]}, id ${nodes.tokens[node]}`]);
  if (nodes.source[node]) out.push(["drafted by", nodes.source[node]]);
  return out;
}

function ratioText(p, q, accept, f) {
  const usual = q ? Math.min(1, p / q) : null;
  return usual !== null && Math.abs(usual - accept) < 0.006 ? `min(1, p/q) = min(1, ${f(p)} / ${f(q)}) = ${f(accept)}` : `${f(accept)}`;
}

/** Facts about a whole round. Pure. */
export function roundFacts(round) {
  const ms = (s) => `${(1e3 * s).toFixed(1)} ms`;
  const out = [
    ["method", round.method],
    ["draft · verify · host", `${ms(round.draft_s)} · ${ms(round.verify_s)} · ${ms(round.overhead_s)}`],
    ["forwards", `${round.draft_forwards} of the drafter, ${round.target_forwards} of the target`],
  ];
  for (const [name, value] of Object.entries(round.signals)) out.push([name, Number(value).toPrecision(3)]);
  for (const note of round.notes) out.push(["note", note]);
  return out;
}

/** Draw into `el`. @param {{round: object|null, node: number|null, label: (t: string) => string}} data */
export function render(el, data) {
  const state = (el._card ??= build(el));
  const { round, node } = data;
  el.classList.toggle("is-empty", !round);
  if (!round) return;
  const rows = candidates(round, node);
  while (state.bars.childElementCount < rows.length) state.bars.append(bar());
  [...state.bars.children].forEach((row, i) => {
    row.hidden = i >= rows.length;
    if (!row.hidden) fill(row, rows[i]);
  });
  state.key.hidden = rows.length === 0;
  const list = [...facts(round, node), ...(node === null ? roundFacts(round) : [])];
  while (state.list.childElementCount < 2 * list.length) state.list.append(document.createElement("dt"), document.createElement("dd"));
  [...state.list.children].forEach((cell, i) => {
    const pair = list[i >> 1];
    cell.hidden = !pair;
    if (pair && cell.textContent !== pair[i & 1]) cell.textContent = pair[i & 1];
  });
}

function build(el) {
  const make = (tag, className) => Object.assign(document.createElement(tag), { className });
  const bars = make("div", "wb-bars"), key = make("div", "wb-key"), list = make("dl", "wb-facts");
  for (const [name, words] of [["is-q", "q drafter"], ["is-p", "p target"]]) {
    const item = make("span", name);
    item.textContent = words;
    key.append(item);
  }
  el.append(bars, key, list);
  return { bars, key, list };
}

function bar() {
  const row = document.createElement("div");
  row.className = "wb-bar";
  row.append(...["code", "i", "i", "span", "span"].map((tag) => document.createElement(tag)));
  return row;
}

function fill(row, { text, p, q, own }) {
  const [word, barQ, barP, textQ, textP] = row.children;
  const shown = text.replace(/^ /, "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "·";
  row.classList.toggle("is-own", own);
  word.textContent = shown.length > 11 ? `${shown.slice(0, 10)}…` : shown;
  barQ.className = "is-q";
  barP.className = "is-p";
  barQ.style.setProperty("--v", q ?? 0);
  barP.style.setProperty("--v", p ?? 0);
  textQ.className = "is-q";
  textP.className = "is-p";
  textQ.style.setProperty("--v", q ?? 0);
  textP.style.setProperty("--v", p ?? 0);
  barQ.toggleAttribute("data-unknown", q === null);
  barP.toggleAttribute("data-unknown", p === null);
  textQ.textContent = q === null ? "q –" : `q ${short(q)}`;
  textP.textContent = p === null ? "p –" : `p ${short(p)}`;
}

function short(v) {
  return v > 0 && v < 0.005 ? "<0.01" : v.toFixed(2);
}

export default { render };
