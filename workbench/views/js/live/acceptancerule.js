/** Why a node was accepted or rejected. The trace names the rule and its inputs, its header gives the rule's formula;
 *  no rule is hard-coded here. */

/** Inputs printed as token text, not as a number. */
const NAMES = new Set(["token", "likeliest"]);

/** Return the value of an input of a rule's formula (`workbench.core.rules.Rule.places`); NaN if it was not recorded.
 *  Pure. */
export function valueAt(round, node, where) {
  const { nodes } = round;
  if (where === "elders.p") return earlierSiblings(round, node).reduce((sum, i) => sum + nodes.p[i], 0);
  const recorded = Object.hasOwn(nodes.inputs ?? {}, where)
    ? nodes.inputs[where][node]
    : { p: nodes.p, q: nodes.q, token: nodes.tokens }[where]?.[node];
  return Number(recorded ?? (Object.hasOwn(round.params, where) ? round.params[where] : undefined) ?? NaN);
}

/** Return the siblings that were tested before this node. Pure. */
export function earlierSiblings({ nodes }, node) {
  return nodes.parents.flatMap((parent, i) => (i < node && parent === nodes.parents[node] ? [i] : []));
}

/** Return the rule of a node and the values of its symbols; null if the trace does not name it. Pure. */
export function ruleOf(round, node, rules) {
  const name = round.nodes.rule?.[node] ?? null,
    rule = name !== null && Object.hasOwn(rules ?? {}, name) ? rules[name] : null;
  return (
    rule && {
      rule,
      values: Object.fromEntries(
        Object.entries(rule.places).map(([symbol, where]) => [symbol, valueAt(round, node, where)]),
      ),
    }
  );
}

/** Return an equation that holds for its printed digits, or null. Pure.
 *  @returns {{left: string, filled: string, result: string, holds: boolean|null}|null}  `holds`: of a comparison */
export function equation(formula, { rule, values }, result, round, node, f, visible = (text) => String(text)) {
  const used = new Set(
    (f.tokens(formula, Object.keys(rule.places)) ?? []).filter((t) => t.kind === "symbol").map((t) => t.value),
  );
  const names = new Set([...used].filter((symbol) => NAMES.has(rule.places[symbol])));
  const mine = Object.fromEntries([...used].map((symbol) => [symbol, values[symbol]]));
  const found = f.rounded(formula, mine, result, names);
  if (!found) return null;
  const texts = [...names].map((symbol) => tokenText(round, node, values[symbol], visible)),
    alike = new Set(texts).size < new Set([...names].map((symbol) => values[symbol])).size;
  // two tokens may read the same
  [...names].forEach((symbol, i) => (found.words[symbol] = alike ? `id ${values[symbol]}` : texts[i]));
  return {
    left: formula,
    filled: f.written(formula, found.words),
    result: found.result,
    holds: /[=<>]/.test(formula) ? result === 1 : null,
  };
}

/** Return the text of a token at a node's position. Pure. */
function tokenText(round, node, token, visible) {
  const { nodes, top_p } = round, place = nodes.parents[node] + 1, top = top_p[place];
  const at = top?.tokens.indexOf(token) ?? -1, drafted = nodes.tokens.indexOf(token);
  const text =
    at >= 0 ? top.text[at] : drafted >= 0 ? nodes.text[drafted] : round.emitted.find((e) => e.token === token)?.text;
  return text === undefined ? `id ${token}` : `“${visible(text)}”`;
}

/** Describe the rule of a tested node for the card: [term, text] pairs. Pure.
 *  @param {Record<string, object>} rules  of the trace's header  @param {object} f  the module `formula`
 *  @param {(text: string) => string} visible  formats a token's text */
export function statement(round, node, rules, f, visible) {
  const accept = round.nodes.accept[node], nodeRule = ruleOf(round, node, rules);
  if (accept === null || accept === undefined) return [];
  if (!nodeRule) {
    const named = round.nodes.rule?.[node];
    const unknown = named ? `the trace has no description of the rule “${named}”` : "the trace does not name the rule";
    return [["acceptance probability", `${f.digits(accept, 3)}, as recorded; ${unknown}`]];
  }
  const { rule } = nodeRule, main = equation(rule.formula, nodeRule, accept, round, node, f, visible);
  const out = [["rule", rule.title]];
  if (!main) out.push(["acceptance probability", `${f.digits(accept, 3)}, as recorded; ${rule.formula} gives another value`]);
  else if (main.holds !== null)
    out.push(["accepted if", `${main.left}: ${main.filled} ${main.holds ? "holds" : "does not hold"}`]);
  else out.push(["acceptance probability", chain(main)]);
  for (const [symbol, formula] of Object.entries(rule.because ?? {})) {
    const why = equation(formula, nodeRule, nodeRule.values[symbol], round, node, f, visible);
    if (why) out.push([symbol, chain(why)]);
  }
  const formulas = [rule.formula, ...Object.values(rule.because ?? {})], symbols = Object.keys(rule.places);
  const used = new Set(formulas.flatMap((formula) => f.tokens(formula, symbols) ?? []).map((t) => t.value));
  for (const symbol of symbols)
    if (!used.has(symbol) && Number.isFinite(nodeRule.values[symbol]))
      out.push([symbol, f.digits(nodeRule.values[symbol], 3)]);
  return [...out, ["why", rule.says]];
}

const chain = ({ left, filled, result }) => [...new Set([left, filled, result])].join(" = ");
