/** Laws over a few tokens, as arrays of probabilities, and what rules make of them. Pure. */

export const sum = (values) => values.reduce((total, x) => total + x, 0);

/** Weights divided by their sum; `otherwise` where they have none. */
export function normalised(weights, otherwise = weights) {
  const total = sum(weights);
  return total > 0 ? weights.map((x) => x / total) : otherwise;
}

/** Σ min(p, q): how often one draft from q is kept. */
export function overlap(p, q) {
  return sum(p.map((x, i) => Math.min(x, q[i])));
}

/** (p − q)₊, normalised: the law after a rejection; p where nothing is left. */
export function residual(p, q) {
  return normalised(p.map((x, i) => Math.max(0, x - q[i])), p);
}

/** Total variation: half of Σ |a − b|. */
export function distance(a, b) {
  return sum(a.map((x, i) => Math.abs(x - b[i]))) / 2;
}

/** A law at a temperature: its powers 1/T, normalised. */
export function tempered(law, temperature) {
  const most = Math.max(...law);
  return normalised(law.map((x) => (x / most) ** (1 / temperature)));
}

/** A law of which one entry was moved to `value`: the others keep their proportions. */
export function moved(law, at, value) {
  const v = Math.min(1, Math.max(0, value)), others = 1 - law[at], n = law.length - 1;
  return law.map((x, i) => (i === at ? v : others > 1e-9 ? (x * (1 - v)) / others : (1 - v) / n));
}

/** A point mass. */
export function point(at, n) {
  return Array.from({ length: n }, (_, i) => Number(i === at));
}

/** The law without some tokens, normalised; zeros where nothing is left. */
export function without(law, tokens) {
  return normalised(law.map((x, i) => (tokens.includes(i) ? 0 : x)));
}

/** What total variation n draws from `law` itself would show, on average.
 *  ½·√(2/π)·Σ √(p(1 − p)/n): each count is nearly normal. */
export function noise(law, n) {
  return 0.5 * Math.sqrt(2 / Math.PI) * sum(law.map((x) => Math.sqrt((x * (1 - x)) / n)));
}
