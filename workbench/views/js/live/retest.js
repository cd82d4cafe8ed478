/** What if: test a recorded node again with another uniform random number, temperature or threshold, computed from the
 *  recorded p and q without the model.
 *
 *  Only the most likely tokens of a position were recorded. At temperature T a distribution becomes p^(T0/T),
 *  normalised. Unrecorded tokens are taken to be as likely as the least likely recorded one: at T0 this gives their
 *  recorded mass, below T0 an upper bound of it, above T0 a lower bound. As T → 0 the rule becomes greedy equality. */

import * as formula from "./formula.js";
import * as acceptanceRule from "./acceptancerule.js";
import { expectedTau } from "./theory.js";

const CERTAIN = 1e-3;

/** Return the recorded part of p and q at a node's position. Pure.
 *  @returns {{rows: {token: number, text: string, p: number|null, q: number|null}[], mass: {p: number, q: number|null},
 *            least: {p: number, q: number|null}}}  `mass`: total probability of the recorded tokens; `least`: smallest
 *            probability in the list */
export function recordedProbs(round, node) {
  const { nodes, top_p, top_q } = round, parent = nodes.parents[node], place = parent + 1, found = new Map();
  const put = (token, text, more) => found.set(token, { token, text, p: null, q: null, ...found.get(token), ...more });
  top_p[place]?.tokens.forEach((token, i) => put(token, top_p[place].text[i], { p: top_p[place].prob[i] }));
  top_q[place]?.tokens.forEach((token, i) => put(token, top_q[place].text[i], { q: top_q[place].prob[i] }));
  const drawn = Boolean(top_q[place]);
  nodes.parents.forEach((other, i) => {
    if (other === parent)
      put(nodes.tokens[i], nodes.text[i], { p: nodes.p[i], ...(drawn && nodes.q[i] !== null && { q: nodes.q[i] }) });
  });
  const rows = [...found.values()], total = (name) => Math.min(1, rows.reduce((sum, row) => sum + (row[name] ?? 0), 0));
  const least = (top) => (top?.prob.length ? Math.min(...top.prob.filter((v) => v > 0)) : null);
  return {
    rows,
    mass: { p: total("p"), q: drawn ? total("q") : null },
    least: { p: least(top_p[place]) ?? 0, q: least(top_q[place]) },
  };
}

/** Set the probability of a token; all other tokens, also those not recorded, keep their proportions. Pure.
 *  @param {(number|null)[]} known  recorded probabilities  @param {number} at  index  @param {number} value  0–1 */
export function withProbability(known, at, value) {
  const others = 1 - (known[at] ?? 0), scale = others > 1e-9 ? (1 - value) / others : 0;
  return known.map((v, i) => (i === at ? value : v === null ? null : v * scale));
}

/** Apply the reader's changes of p and q to the recorded rows. Pure.
 *  @param {{which: "p"|"q", token: number, value: number}[]} changes  in the order in which they were made */
function changedProbs(known, changes) {
  let { rows } = known;
  for (const { which, token, value } of changes) {
    const changed = withProbability(rows.map((row) => row[which]), rows.findIndex((row) => row.token === token), value);
    rows = rows.map((row, i) => ({ ...row, [which]: changed[i] }));
  }
  return { ...known, rows };
}

/** Return a distribution at another temperature. Pure.
 *  @param {(number|null)[]} known  probabilities at `from`  @param {number} least  of the recorded list
 *  @returns {{known: (number|null)[], rest: number}}  at `to`; `rest`: mass of the unrecorded tokens */
export function atTemperature(known, least, from, to) {
  const recordedMass = known.reduce((sum, v) => sum + (v ?? 0), 0), restMass = Math.max(0, 1 - recordedMass);
  if (to === from) return { known, rest: restMass }; // at temperature 0: the distribution before temperature scaling
  if (to <= CERTAIN) {
    const best = known.reduce((at, v, i) => ((v ?? -1) > (known[at] ?? -1) ? i : at), 0);
    return { known: known.map((v, i) => (v === null ? null : Number(i === best))), rest: 0 };
  }
  const power = (from || 1) / to, highest = Math.max(...known.map((v) => v ?? 0)) || 1;
  const raised = known.map((v) => (v === null ? null : (v / highest) ** power));
  const others = restMass > 1e-9 && least > 0 ? (restMass / least) * (least / highest) ** power : 0;
  const total = raised.reduce((sum, v) => sum + (v ?? 0), others);
  return { known: raised.map((v) => (v === null ? null : v / total)), rest: others / total };
}

/** Return the normalised distribution after a rejection from distribution r. Pure.
 *  @param {{r: number|null, q: number|null}[]} rows  @param {{r: number, q: number}} rest  unrecorded mass of both
 *  @param {string} how  "excess": (r − q)₊; "others": r without the token; "all": r itself  @param {number} own  the
 *    token's row  @param {number} share  weight of q: (r − share · q)₊ */
export function residual(rows, rest, how, own, share = 1) {
  const weights = rows.map((row, i) =>
    row.r === null
      ? null
      : how === "excess"
        ? Math.max(0, row.r - share * (row.q ?? 0))
        : how === "others" && i === own
          ? 0
          : row.r,
  );
  const others = how === "excess" ? Math.max(0, rest.r - share * rest.q) : rest.r,
    total = weights.reduce((sum, w) => sum + (w ?? 0), others);
  return total > 1e-12
    ? { rows: weights.map((w) => (w === null ? null : w / total)), rest: others / total }
    : { rows: rows.map((row) => row.r), rest: rest.r };
}

/** Return the sliders' initial values: those recorded. Pure.
 *  @returns {{u: number|null, temperature: number, K: number, params: Record<string, number>}} */
export function recorded(round, node, rule) {
  const params = Object.values(rule.places).filter(
    (where) => typeof round.params[where] === "number" && !Object.hasOwn(round.nodes.inputs, where),
  );
  const depth = round.params.depth ?? Math.max(...round.nodes.depth, 1);
  return {
    u: round.nodes.u[node],
    temperature: round.params.temperature ?? 1,
    K: depth,
    params: Object.fromEntries(params.map((where) => [where, round.params[where]])),
  };
}

/** Test a node again with the sliders' values. Pure.
 *  @param {object} round  @param {number} node  @param {Record<string, object>} rules  of the trace's header
 *  @param {{u: number|null, temperature: number, K: number, params: Record<string, number>,
 *         changes?: {which: "p"|"q", token: number, value: number}[]}} moved  `changes`: of p and q, at the recorded
 *         temperature
 *  @returns {{rule: object, values: Record<string, number>, accept: number, compares: boolean, accepted: boolean|null,
 *            rows: {token: number, text: string, p: number|null, q: number|null, residual: number|null, own:
 *            boolean}[], rest: {p: number, q: number, residual: number}, mass: {p: number, q: number|null}, rate:
 *            number, drawn: boolean, expected: number, asRecorded: boolean}|null}
 *           `rate`: acceptance rate of drafts like this one; `drawn`: drafts are drawn from q, and `rate` is
 *           Σ min(p, q) over the recorded tokens; `rows`: the distributions that the node is tested with (after the
 *           rejection of its earlier siblings), and the `residual` after its own rejection */
export function testAgain(round, node, rules, moved) {
  const nodeRule = acceptanceRule.ruleOf(round, node, rules);
  if (!nodeRule) return null;
  const start = recorded(round, node, nodeRule.rule),
    before = start.temperature,
    { temperature } = moved,
    { nodes } = round;
  const changes = moved.changes ?? [],
    known = changedProbs(recordedProbs(round, node), changes),
    same = temperature === before && !changes.length,
    own = known.rows.findIndex((row) => row.token === nodes.tokens[node]);
  const p = atTemperature(
    known.rows.map((row) => row.p),
    known.least.p,
    before,
    temperature,
  );
  const q =
    known.mass.q === null
      ? { known: known.rows.map(() => null), rest: 0 }
      : atTemperature(
          known.rows.map((row) => row.q),
          known.least.q,
          before,
          temperature,
        );
  // residual after each earlier sibling, by that sibling's rule; where siblings are drawn without replacement, a drawn
  // token cannot be drawn again
  const siblings = acceptanceRule.earlierSiblings(round, node),
    without =
      siblings.length > 0 &&
      Number.isFinite(nodes.inputs.q_left?.[node]) &&
      Math.abs(nodes.inputs.q_left[node] - nodes.q[node]) > 1e-9;
  const whole = { rows: known.rows.map((_, i) => ({ r: p.known[i], q: q.known[i] })), rest: { r: p.rest, q: q.rest } };
  let { rows, rest } = whole;
  const share = nodeRule.rule.share && before > CERTAIN ? (moved.params[nodeRule.rule.share] ?? 1) : 1;
  for (const sibling of siblings) {
    const removed = known.rows.findIndex((row) => row.token === nodes.tokens[sibling]),
      taken = without ? 1 - (rows[removed].q ?? 0) : 1;
    const how = before <= CERTAIN ? POINT.leaves : residualType(round, sibling, rules, nodeRule.rule);
    const after = residual(rows, rest, how, removed, share);
    rows = rows.map((row, i) => ({
      r: after.rows[i],
      q: row.q === null ? null : without && i === removed ? 0 : row.q / taken,
    }));
    rest = { r: after.rest, q: rest.q / taken };
  }
  const likeliest = known.rows.reduce((best, row, i) => ((row.p ?? -1) > (known.rows[best]?.p ?? -1) ? i : best), 0);
  const at = (i) => known.rows.findIndex((row) => row.token === nodes.tokens[i]);
  const anew = {
    p: p.known[own],
    q: q.known[own],
    residual: rows[own].r,
    q_left: rows[own].q,
    "elders.p": siblings.reduce((sum, i) => sum + p.known[at(i)], 0),
    entropy: entropy(round, node, known, p),
    token: nodes.tokens[node],
    likeliest: known.rows[likeliest].token,
  };
  const greedy = temperature <= CERTAIN,
    rule = greedy ? GREEDY : before <= CERTAIN ? (siblings.length ? POINT_RESIDUAL : POINT) : nodeRule.rule;
  if (rule.leaves === "all") ({ rows, rest } = whole); // a comparison leaves the distribution unchanged
  const settled = Object.entries(moved.params).every(([name, v]) => v === start.params[name]) && same;
  const value = (where) =>
    Object.hasOwn(moved.params, where)
      ? moved.params[where]
      : ((same ? undefined : anew[where]) ?? acceptanceRule.valueAt(round, node, where));
  const values = Object.fromEntries(Object.entries(rule.places).map(([symbol, where]) => [symbol, value(where)]));
  if (!settled)
    for (const [symbol, why] of Object.entries(rule.because ?? {})) values[symbol] = formula.evaluate(why, values);
  // the next draft is sampled anew where q is a distribution: its acceptance rate is Σ min(p, q), not this token's
  // probability
  const drawn = rule.leaves === "excess" && rows[own].q !== null,
    overlap = rows.reduce((sum, row) => sum + Math.min((row.r ?? 0) / share, row.q ?? 0), 0);
  const exact = formula.evaluate(rule.formula, values),
    accept = Number.isNaN(exact) ? nodes.accept[node] : Math.min(1, Math.max(0, exact)),
    rate = drawn ? Math.min(1, overlap) : accept;
  const compares = /[=<>]/.test(rule.formula),
    after = residual(rows, rest, rule.leaves, own, share);
  return {
    rule,
    values,
    accept,
    compares,
    accepted: compares ? accept === 1 : moved.u === null ? null : moved.u < accept,
    rows: known.rows.map((row, i) => ({
      token: row.token,
      text: row.text,
      p: rows[i].r,
      q: rows[i].q,
      residual: after.rows[i],
      own: i === own,
    })),
    rest: { p: rest.r, q: rest.q, residual: after.rest },
    mass: known.mass,
    rate,
    drawn,
    expected: expectedTau(rate, moved.K),
    asRecorded: settled && moved.u === start.u && moved.K === start.K,
  };
}

/** Rules at another temperature: at 0 the most likely token; above 0 a greedily chosen draft remains a point mass. */
const GREEDY = {
  name: "greedy",
  formula: "x = x*",
  places: { x: "token", "x*": "likeliest" },
  because: {},
  leaves: "all",
};
const POINT = { name: "point", formula: "p", places: { p: "p" }, because: {}, leaves: "others" };
const POINT_RESIDUAL = {
  name: "point-residual",
  formula: "r",
  places: { r: "residual", p: "p", t: "elders.p" },
  because: { r: "p / (1 − t)" },
  leaves: "others",
};

/** Return the residual type of a node's rule; that of `otherwise` if the trace does not name the rule. */
function residualType(round, node, rules, otherwise) {
  const name = round.nodes.rule?.[node];
  return (name && Object.hasOwn(rules, name) ? rules[name] : otherwise).leaves;
}

/** Return p's entropy at the moved temperature, in nats; it moves like the entropy of the recorded tokens. */
function entropy(round, node, { rows, least }, p) {
  const of = (known, rest, small) =>
    known.reduce((sum, v) => sum - (v > 0 ? v * Math.log(v) : 0), rest > 0 && small > 0 ? -rest * Math.log(small) : 0);
  const before = rows.map((row) => row.p), missing = Math.max(0, 1 - before.reduce((sum, v) => sum + (v ?? 0), 0));
  const at = before.findIndex((v) => v === least.p), small = at >= 0 ? p.known[at] : least.p;
  const whole =
    round.nodes.inputs.entropy?.[node] ?? round.entropy[round.nodes.parents[node] + 1] ?? of(before, missing, least.p);
  const missed = whole - of(before, missing, least.p);
  return Math.max(0, of(p.known, p.rest, small) + (missing > 0 ? (missed * p.rest) / missing : 0));
}
