/** Why a node was accepted or not, in the words of the rule that judged it: the trace names the rule and its inputs,
 *  its header says what the rule's formula is, and this file knows no rule by heart. */

/** What is printed without its quantity: names of tokens. */
const NAMES = new Set(["token", "likeliest"]);

/** The value that stands at a place of a rule's formula (`workbench.core.rules.Rule.places`); NaN where none is
 *  recorded. Pure. */
export function valueAt(round, node, where) {
  const { nodes } = round;
  if (where === "elders.p") return elders(round, node).reduce((sum, i) => sum + nodes.p[i], 0);
  const recorded = Object.hasOwn(nodes.inputs ?? {}, where)
    ? nodes.inputs[where][node]
    : { p: nodes.p, q: nodes.q, token: nodes.tokens }[where]?.[node];
  return Number(recorded ?? (Object.hasOwn(round.params, where) ? round.params[where] : undefined) ?? NaN);
}

/** Drafts for the same place that were tested before this one. Pure. */
export function elders({ nodes }, node) {
  return nodes.parents.flatMap((parent, i) => (i < node && parent === nodes.parents[node] ? [i] : []));
}

/** The rule of a node and the values of its symbols; null where the trace does not say. Pure. */
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

/** An equation that is true to the digits it is printed with, or null. Pure.
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

/** The text of a token that stands at a node's place. Pure. */
function tokenText(round, node, token, visible) {
  const { nodes, top_p } = round, place = nodes.parents[node] + 1, top = top_p[place];
  const at = top?.tokens.indexOf(token) ?? -1, drafted = nodes.tokens.indexOf(token);
  const text =
    at >= 0 ? top.text[at] : drafted >= 0 ? nodes.text[drafted] : round.emitted.find((e) => e.token === token)?.text;
  return text === undefined ? `id ${token}` : `“${visible(text)}”`;
}

/** What the card says of a tested node's rule: [term, words] pairs. Pure.
 *  @param {Record<string, object>} rules  of the trace's header  @param {object} f  the module `formula`
 *  @param {(text: string) => string} visible  how a token's text is shown */
export function statement(round, node, rules, f, visible) {
  const accept = round.nodes.accept[node], told = ruleOf(round, node, rules);
  if (accept === null || accept === undefined) return [];
  if (!told) {
    const named = round.nodes.rule?.[node];
    return [
      [
        "accept with",
        `${f.digits(accept, 3)}, as recorded; the trace does not ${named ? `explain its rule “${named}”` : "say by which rule"}`,
      ],
    ];
  }
  const { rule } = told, main = equation(rule.formula, told, accept, round, node, f, visible);
  const out = [["rule", rule.title]];
  if (!main) out.push(["accept with", `${f.digits(accept, 3)}, as recorded; ${rule.formula} does not give it`]);
  else if (main.holds !== null)
    out.push(["kept if", `${main.left}: ${main.filled} ${main.holds ? "holds" : "does not hold"}`]);
  else out.push(["accept with", chain(main)]);
  for (const [symbol, formula] of Object.entries(rule.because ?? {})) {
    const why = equation(formula, told, told.values[symbol], round, node, f, visible);
    if (why) out.push([symbol, chain(why)]);
  }
  const formulas = [rule.formula, ...Object.values(rule.because ?? {})], symbols = Object.keys(rule.places);
  const used = new Set(formulas.flatMap((formula) => f.tokens(formula, symbols) ?? []).map((t) => t.value));
  for (const symbol of symbols)
    if (!used.has(symbol) && Number.isFinite(told.values[symbol])) out.push([symbol, f.digits(told.values[symbol], 3)]);
  return [...out, ["why", rule.says]];
}

const chain = ({ left, filled, result }) => [...new Set([left, filled, result])].join(" = ");
