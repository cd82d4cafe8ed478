/** "What if" part of the node card: sliders for u, temperature, K and the rule's own parameters, and the resulting
 *  test. Marked as computed, so that it is not taken for recorded data. */

import * as formula from "./formula.js";
import * as preferences from "../shared/preferences.js";
import * as pq from "../shared/pq.js";
import * as kit from "../shared/kit.js";
import { h, visible, write } from "../shared/kit.js";
import * as retest from "./retest.js";
import * as acceptanceRule from "./acceptancerule.js";

const SHOWN = 6;
/** Tokens in the picture of p and q, and its height in pixels. */
const PICTURED = 4, HEIGHT = 136;
/** Name of the preference: whether the details of a test are unfolded. */
const OPEN = "wb-whatif";

/** Draw into `el`; hidden if the node was not tested or the trace does not name its rule.
 *  @param {{round: object|null, node: number|null, rules: Record<string, object>|undefined}} data */
export function render(el, data) {
  const { round, node, rules } = data;
  const isTested = round && node !== null && round.nodes.accept[node] !== null,
    nodeRule = isTested ? acceptanceRule.ruleOf(round, node, rules) : null;
  el.hidden = !nodeRule || !round.top_p.length;
  if (el.hidden) return;
  const ui = (el._play ??= build(el));
  if (ui.round !== round || ui.node !== node)
    Object.assign(ui, { round, node, rules, start: retest.recorded(round, node, nodeRule.rule), moved: null });
  ui.moved ??= structuredClone(ui.start);
  draw(ui);
}

function draw(ui) {
  const { round, node, start, moved } = ui;
  const values = { ...moved, u: moved.u ?? 0.5 }, seen = retest.testAgain(round, node, ui.rules, values);
  const list = sliders(start, seen, ui.rules[round.nodes.rule[node]]);
  while (ui.sliders.childElementCount < list.length) ui.sliders.append(slider(ui));
  [...ui.sliders.children].forEach((row, i) => {
    row.hidden = i >= list.length;
    if (!row.hidden) set(row, list[i], values, start, seen);
  });
  ui.reset.disabled = seen.asRecorded || (moved.u === null && same(moved, start));
  ui.badge.dataset.moved = !ui.reset.disabled;
  write(ui.badge, ui.reset.disabled ? "as recorded" : "what if: computed, not recorded");
  const status = seen.accepted ? "accepted" : "rejected", was = round.nodes.status[node];
  ui.verdict.dataset.status = status;
  write(
    ui.verdict,
    `${sentence(seen, values, formula, (token) => nameOf(seen, token))} → ${ui.reset.disabled ? was : `would be ${status}${status === was ? ", as it was" : `; it was ${was}`}`}`,
  );
  const pictured = picturedRows(seen.rows);
  ui.pictured = pictured;
  pq.render(ui.pq, {
    p: pictured.map((row) => row.p ?? 0),
    q: seen.mass.q === null ? null : pictured.map((row) => row.q ?? 0),
    words: pictured.map((row) => row.text),
    height: HEIGHT,
  });
  if (!ui.details.open) return;
  const rows = seen.rows
    .filter((row) => row.p !== null)
    .sort((a, b) => Number(b.own) - Number(a.own) || Math.max(b.residual, b.p) - Math.max(a.residual, a.p))
    .slice(0, SHOWN);
  while (ui.bars.childElementCount < rows.length) ui.bars.append(bar());
  [...ui.bars.children].forEach((row, i) => {
    row.hidden = i >= rows.length;
    if (!row.hidden) fill(row, rows[i]);
  });
  write(ui.keyP, seen.rule.leaves !== "all" && acceptanceRule.earlierSiblings(round, node).length ? "residual distribution after rejected drafts" : "p");
  write(ui.expected, outlook(seen, moved.K, formula));
  write(ui.known, coverage(seen, moved, start));
}

/** Return the tokens of the picture: the node's own first, then the likeliest. Pure. */
export function picturedRows(rows) {
  const weight = (row) => Math.max(row.p ?? 0, row.q ?? 0);
  return [...rows].sort((a, b) => Number(b.own) - Number(a.own) || weight(b) - weight(a)).slice(0, PICTURED);
}

/** Add a change of p or q; successive changes of one bar count once. Pure. */
export function withChange(changes, change) {
  const last = changes.at(-1), again = last && last.which === change.which && last.token === change.token;
  return [...(again ? changes.slice(0, -1) : changes), change];
}

const same = (a, b) =>
  !a.changes?.length &&
  a.temperature === b.temperature &&
  a.K === b.K &&
  Object.keys(b.params).every((name) => a.params[name] === b.params[name]);

/** State the expected tokens of K drafts like this one; for drafts drawn from q it is a lower bound: unrecorded tokens
 *  can only add. Pure. */
export function outlook({ rate, drawn, expected, mass, rest }, K, f) {
  if (rate >= 1) return `K = ${K} drafts, all accepted: K + 1 = ${K + 1} tokens per round`;
  const sign = drawn && Math.min(1 - mass.p, 1 - mass.q, rest.p, rest.q) > 5e-4 ? "≥" : "=";
  const a = drawn ? `a = Σ min(p, q) ${sign} ${f.digits(rate, 3)}` : `a = ${f.digits(rate, 3)}`;
  return `K = ${K} drafts${drawn ? " with distributions like these" : ""}, each accepted with ${a}: (1 − aᴷ⁺¹)/(1 − a) ${sign} ${expected.toFixed(2)} tokens per round`;
}

/** State the test with numbers for which it holds. Pure but for `name`. */
function sentence(seen, { u }, f, name) {
  const { rule, values, accept, compares } = seen,
    names = new Set(Object.keys(rule.places).filter((symbol) => ["token", "likeliest"].includes(rule.places[symbol])));
  const used = Object.fromEntries(
    Object.entries(values).filter(([symbol]) =>
      f.tokens(rule.formula, Object.keys(values)).some((t) => t.kind === "symbol" && t.value === symbol),
    ),
  );
  const found = f.rounded(rule.formula, used, accept, names);
  const alike =
    new Set([...names].map((symbol) => name(values[symbol]))).size <
    new Set([...names].map((symbol) => values[symbol])).size;
  for (const symbol of found ? names : []) found.words[symbol] = alike ? `id ${values[symbol]}` : name(values[symbol]);
  const filled = found ? f.written(rule.formula, found.words) : "";
  if (compares) return `${rule.formula}: ${filled || "?"} ${accept === 1 ? "holds" : "does not hold"}`;
  return `${[...new Set([rule.formula, filled, found?.result ?? f.digits(accept, 3)])].filter(Boolean).join(" = ")}; u = ${f.compared(u, accept).join(" ")}`;
}

function nameOf(seen, token) {
  const row = seen.rows.find((each) => each.token === token);
  return row ? `“${visible(row.text)}”` : `id ${token}`;
}

/** State how much of p and q was recorded, and the assumption about the rest. Pure. */
export function coverage({ rows, mass, rest }, moved, start) {
  const n = (name) => rows.filter((row) => row[name] !== null).length,
    percent = (v) => (v > 0.9995 ? "100 %" : `${(100 * v).toFixed(1)} %`);
  const ofQ = mass.q === null ? "" : `; q of ${n("q")} tokens, together ${percent(mass.q)}`;
  const known = `Recorded probabilities: p of ${n("p")} tokens, together ${percent(mass.p)}${ofQ}.`;
  const bound =
    moved.temperature === start.temperature || rest.p < 5e-4
      ? ""
      : moved.temperature < start.temperature
        ? ` All other tokens are assumed to be as likely as the least likely recorded one: ${percent(rest.p)} together, an upper bound.`
        : ` All other tokens are assumed to be as likely as the least likely recorded one: ${percent(rest.p)} together, a lower bound.`;
  const own = moved.temperature === 0 && start.temperature === 0
    ? " At temperature 0 the most likely token is taken; p is the distribution before temperature scaling."
    : "";
  return (
    known +
    bound +
    own +
    (moved.temperature !== start.temperature && start.temperature === 0
      ? " The draft was chosen greedily, so it is accepted with probability p."
      : "")
  );
}

/** Return the sliders of a node: [name, label, least, most, step, value]. Pure. */
export function sliders(start, seen, rule) {
  const symbol = (where) => Object.keys(rule.places).find((each) => rule.places[each] === where) ?? where;
  return [
    ...(seen.compares
      ? []
      : [{ name: "u", label: "u", short: "random", words: "uniform random number", low: 0, high: 1, step: 0.001 }]),
    {
      name: "temperature",
      label: "T",
      short: "temperature",
      words: "temperature of p and q",
      low: 0,
      high: Math.max(2, start.temperature),
      step: 0.01,
    },
    { name: "K", label: "K", short: "drafts", words: "consecutive drafts", low: 1, high: Math.max(16, start.K), step: 1 },
    ...Object.keys(start.params).map((name) => ({
      name,
      label: symbol(name),
      short: name,
      words: name,
      low: 0,
      high: 1,
      step: 0.01,
      param: true,
    })),
  ];
}

function set(row, { name, label, short, words, low, high, step, param = false }, moved, start, seen) {
  const [text, input, output] = row.children,
    value = param ? moved.params[name] : moved[name],
    first = param ? start.params[name] : start[name];
  Object.assign(input, { min: low, max: high, step });
  if (document.activeElement !== input || Number(input.value) !== value) input.value = value;
  row._name = param ? ["params", name] : [name];
  write(text.firstChild, label === short ? label : `${label} ${short}`);
  text.title = words;
  kit.set(input, {
    "aria-label": `what if: ${words}`,
    "aria-valuetext": `${formula.digits(value, 3)}${first === value ? ", as recorded" : first === null ? "" : `; recorded ${formula.digits(first, 3)}`}`,
  });
  input.style.setProperty("--at", name === "u" ? seen.accept : 0);
  input.toggleAttribute("data-u", name === "u");
  write(output, name === "K" ? String(value) : value.toFixed(name === "u" ? 3 : 2));
}

function slider(ui) {
  const input = h("input", { type: "range" }),
    row = h("label", { className: "wb-slider" }, h("span", {}, ""), input, h("output"));
  row.firstChild.append("");
  input.addEventListener("input", () => {
    const [name, param] = row._name,
      value = Number(input.value);
    ui.moved = param ? { ...ui.moved, params: { ...ui.moved.params, [param]: value } } : { ...ui.moved, [name]: value };
    draw(ui);
  });
  // arrows move the slider, not the selected token
  input.addEventListener("keydown", (event) => event.stopPropagation());
  return row;
}

function bar() {
  const row = h("div", { className: "wb-bar" }, ...["code", "i", "i", "span", "span"].map((tag) => h(tag)));
  ["", "is-q", "is-p", "is-q", "is-p"].forEach((name, i) => (row.children[i].className = name));
  return row;
}

function fill(row, { text, p, residual, own }) {
  const [word, barP, barLeft, textP, textLeft] = row.children, shown = visible(text);
  row.classList.toggle("is-own", own);
  write(word, shown.length > 11 ? `${shown.slice(0, 10)}…` : shown);
  for (const [drawn, label, v] of [[barP, textP, p], [barLeft, textLeft, residual]]) {
    drawn.style.setProperty("--v", v);
    label.style.setProperty("--v", v);
    write(label, v > 0 && v < 0.005 ? "<0.01" : v.toFixed(2));
  }
}

/** Return the legend entry of bars: a swatch and a label. */
export const keyOf = (name, word) => h("span", {}, h("i", { className: name }), word);

function build(el) {
  const ui = { details: h("details", { className: "wb-play-more" }), round: null, node: null, moved: null };
  const part = (name, tag, more, ...inner) => (ui[name] = h(tag, more, ...inner));
  part("badge", "span", { className: "wb-play-badge" });
  part(
    "reset",
    "button",
    {
      type: "button",
      className: "wb-tool",
      onclick: () => {
        ui.moved = structuredClone(ui.start);
        draw(ui);
      },
    },
    "Reset",
  );
  part("sliders", "div", { className: "wb-sliders" });
  part("verdict", "p", { className: "wb-play-verdict" });
  ui.verdict.setAttribute("aria-live", "polite");
  part("bars", "div", { className: "wb-bars" });
  part("keyP", "span", {}, "p");
  part("expected", "p");
  part("known", "p", { className: "wb-play-known" });
  part("pq", "div", { className: "wb-pq" });
  ui.pq.addEventListener("wb:bar", (event) => {
    event.stopPropagation();
    const { which, at, value } = event.detail, change = { which, token: ui.pictured[at].token, value };
    ui.moved = { ...ui.moved, changes: withChange(ui.moved.changes ?? [], change) };
    draw(ui);
  });
  ui.pq.addEventListener("wb:redraw", (event) => (event.stopPropagation(), draw(ui)));
  // arrows move the bar, not the selected token
  ui.pq.addEventListener("keydown", (event) => event.stopPropagation());
  ui.details.append(
    h("summary", {}, "Residual distribution and expected tokens per round"),
    ui.bars,
    h("div", { className: "wb-key" }, keyOf("is-q", ui.keyP), keyOf("is-p", "residual after a rejection")),
    ui.expected,
    ui.known,
  );
  ui.details.open = preferences.isOn(OPEN, false);
  ui.details.addEventListener("toggle", () => {
    preferences.set(OPEN, ui.details.open);
    if (ui.details.open && ui.round) draw(ui);
  });
  el.className = "wb-play";
  el.append(
    ui.verdict,
    h("div", { className: "wb-play-body" }, ui.pq, h("div", {}, ui.sliders, h("div", { className: "wb-play-head" }, ui.badge, ui.reset))),
    ui.details,
  );
  return ui;
}
