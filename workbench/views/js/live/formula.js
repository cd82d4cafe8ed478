/** Formulas of acceptance rules: parse, evaluate, and print with numbers for which the equation holds.
*
 *  A formula has numbers, ( ), + − · /, min, max, exp, at most one of = > <, and symbols that the rule names. It comes
 *  from a trace, so no part of it is ever run as code. */

const LONGEST = 200, FUNCTIONS = { min: Math.min, max: Math.max, exp: Math.exp };
const SIGNS = {
  "−": "-",
  "-": "-",
  "·": "*",
  "*": "*",
  "+": "+",
  "/": "/",
  "(": "(",
  ")": ")",
  ",": ",",
  "=": "=",
  ">": ">",
  "<": "<",
};

/** @returns {{raw: string, kind: string, value?: *}[]|null}  `kind`: "symbol", "number", "function", "sign" or "space";
 *  null: not a formula */
export function tokens(formula, symbols) {
  const known = [...symbols].sort((a, b) => b.length - a.length), found = [];
  if (typeof formula !== "string" || formula.length > LONGEST) return null;
  for (let at = 0; at < formula.length;) {
    const rest = formula.slice(at);
    const number = rest.match(/^\d+(\.\d+)?/)?.[0], space = rest.match(/^\s+/)?.[0];
    const name = Object.keys(FUNCTIONS).find((each) => rest.startsWith(each)),
      symbol = known.find((each) => each && rest.startsWith(each));
    const raw = space ?? number ?? name ?? symbol ?? (rest[0] in SIGNS ? rest[0] : null);
    if (raw === null) return null;
    const kind = space ? "space" : number ? "number" : name ? "function" : symbol ? "symbol" : "sign";
    found.push({ raw, kind, value: kind === "number" ? Number(raw) : kind === "sign" ? SIGNS[raw] : raw });
    at += raw.length;
  }
  return found;
}

/** Return the value of a formula; NaN if it cannot be parsed or a value is missing. A comparison gives 1 or 0. Pure.
 *  @param {string} formula  @param {Record<string, number>} values  of its symbols */
export function evaluate(formula, values) {
  const list = tokens(formula, Object.keys(values))?.filter((token) => token.kind !== "space");
  if (!list) return NaN;
  let at = 0;
  const sign = (...some) => (list[at]?.kind === "sign" && some.includes(list[at].value) ? list[at++].value : null);
  const comparison = () => {
    const left = sum(), how = sign("=", ">", "<");
    if (how === null) return left;
    const right = sum();
    if (Number.isNaN(left) || Number.isNaN(right)) return NaN;
    return Number(how === "=" ? left === right : how === ">" ? left > right : left < right);
  };
  const sum = () => {
    let total = product();
    for (let how = sign("+", "-"); how !== null; how = sign("+", "-"))
      total = how === "+" ? total + product() : total - product();
    return total;
  };
  const product = () => {
    let total = factor();
    for (let how = sign("*", "/"); how !== null; how = sign("*", "/"))
      total = how === "*" ? total * factor() : total / factor();
    return total;
  };
  const factor = () => {
    if (sign("-") !== null) return -factor();
    if (sign("(") !== null) return closed(comparison());
    const token = list[at++];
    if (token?.kind === "number") return token.value;
    if (token?.kind === "symbol") return Number(values[token.value] ?? NaN);
    if (token?.kind !== "function" || sign("(") === null) return NaN;
    const args = [comparison()];
    while (sign(",") !== null) args.push(comparison());
    return closed(FUNCTIONS[token.value](...args));
  };
  const closed = (value) => (sign(")") === null ? NaN : value);
  const value = comparison();
  return at === list.length ? value : NaN;
}

/** Return a formula with its symbols replaced by `words`. Pure. */
export function written(formula, words) {
  return (tokens(formula, Object.keys(words)) ?? [])
    .map((token) => (token.kind === "symbol" ? words[token.value] : token.raw))
    .join("");
}

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** Format a number with `n` significant digits, without trailing zeros. Pure. */
export function digits(value, n) {
  if (!Number.isFinite(value)) return String(value);
  const rounded = Number(value.toPrecision(n));
  if (rounded === 0 || Math.abs(rounded) >= 1e-3)
    return String(Math.abs(rounded) < 1e6 ? rounded : Math.round(rounded));
  const [mantissa, power] = rounded.toExponential().split("e");
  return `${mantissa}·10${[...power].map((c) => RAISED[c] ?? "").join("")}`;
}

/** Round the numbers of an equation to the fewest digits with which it still holds: the formula of the printed values
 *  rounds to the printed result. Pure.
 *  @param {Record<string, number>} values  @param {Set<string>} whole  symbols of tokens, which are not
 *    rounded
 *  @returns {{words: Record<string, string>, result: string}|null}  null: the formula does not give `result` */
export function rounded(formula, values, result, whole = new Set()) {
  const exact = evaluate(formula, values);
  if (!(Math.abs(exact - result) <= 1e-4 * Math.max(Math.abs(result), 1e-9))) return null;
  for (let n = 2; n <= 15; n += 1) {
    const printed = Object.fromEntries(
      Object.entries(values).map(([name, v]) => [name, whole.has(name) ? v : Number(v.toPrecision(n))]),
    );
    const shown = Number(result.toPrecision(Math.min(n, 3)));
    if (Number(evaluate(formula, printed).toPrecision(Math.min(n, 3))) !== shown) continue;
    const words = Object.fromEntries(
      Object.entries(values).map(([name, v]) => [name, whole.has(name) ? String(v) : digits(v, n)]),
    );
    return { words, result: digits(result, Math.min(n, 3)) };
  }
  return null;
}

/** Format two numbers with the fewest digits that still show their order. Pure.  @returns {[string, "<"|"≥", string]}
 *  */
export function compared(a, b) {
  const less = a < b;
  let n = 2;
  while (n < 16 && less && !(Number(a.toPrecision(n)) < Number(b.toPrecision(n)))) n += 1;
  while (n < 16 && !less && Number(a.toPrecision(n)) < Number(b.toPrecision(n))) n += 1;
  return [digits(a, n), less ? "<" : "≥", digits(b, n)];
}
