/** Distributions over a few tokens, as arrays of probabilities, and operations of rules on them. Pure. */

export const sum = (values) => values.reduce((total, x) => total + x, 0);

/** Divide weights by their sum; return `otherwise` if the sum is 0. */
export function normalised(weights, otherwise = weights) {
  const total = sum(weights);
  return total > 0 ? weights.map((x) => x / total) : otherwise;
}

/** Return Σ min(p, q): acceptance rate of one draft from q. */
export function overlap(p, q) {
  return sum(p.map((x, i) => Math.min(x, q[i])));
}

/** Return (p − q)₊, normalised: the residual distribution; p if nothing is left. */
export function residual(p, q) {
  return normalised(p.map((x, i) => Math.max(0, x - q[i])), p);
}

/** Return the total variation distance: half of Σ |a − b|. */
export function distance(a, b) {
  return sum(a.map((x, i) => Math.abs(x - b[i]))) / 2;
}

/** Return a distribution at a temperature: its powers 1/T, normalised. */
export function atTemperature(probs, temperature) {
  const most = Math.max(...probs);
  return normalised(probs.map((x) => (x / most) ** (1 / temperature)));
}

/** Set one entry of a distribution to `value`; the others keep their proportions. */
export function withEntry(probs, at, value) {
  const v = Math.min(1, Math.max(0, value)), others = 1 - probs[at], n = probs.length - 1;
  return probs.map((x, i) => (i === at ? v : others > 1e-9 ? (x * (1 - v)) / others : (1 - v) / n));
}

/** Return a point mass. */
export function point(at, n) {
  return Array.from({ length: n }, (_, i) => Number(i === at));
}

/** Remove tokens from a distribution and normalise; zeros if nothing is left. */
export function without(probs, tokens) {
  return normalised(probs.map((x, i) => (tokens.includes(i) ? 0 : x)));
}

/** Return the expected total variation distance between `probs` and the frequencies of n samples from it: ½·√(2/π)·Σ
 *  √(p(1 − p)/n), with each count approximately normal. */
export function noise(probs, n) {
  return 0.5 * Math.sqrt(2 / Math.PI) * sum(probs.map((x) => Math.sqrt((x * (1 - x)) / n)));
}
