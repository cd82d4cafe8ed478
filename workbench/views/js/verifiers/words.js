/** Texts of the bench about its figures. Pure. */

import { acceptance, APPROXIMATE, outcome, transport } from "./acceptance.js";
import { distance, noise } from "./distributions.js";
import { RULES, sound } from "./rules.js";
import { WAYS } from "./sampling.js";

export const figure = (x) => x.toFixed(3);
const list = (set, words) => `{${set.map((i) => `“${words[i]}”`).join(", ")}}`;

/** Explain the bound: the set of tokens that is too likely among the drafts. */
export function boundWords({ p, q }, { k, way: sampling, words }) {
  const found = transport(p, q, k, sampling), how = sampling === "head" || sampling === "fixed" ? "These drafts" : "Drafts sampled this way";
  if (!found.set.length)
    return `${how}: no set of tokens contains all drafts with a higher probability than p gives the set, so the bound is 1.`;
  return `The bound, ${figure(found.bound)}, follows from H = ${list(found.set, words)}: ${k === 1 ? "the draft is" : "all drafts are"} in H with probability ${figure(found.inAll)}, but p gives H only ${figure(found.inP)}, so any exact rule must reject with probability ${figure(found.inAll - found.inP)}.`;
}

/** Compare the greedy draft (only one draft is sampled) with the bounds of sampled drafts. */
export function crossing({ p, q }, { k }) {
  const greedy = acceptance(p, q, k, "head", "greedy-draft");
  const bounds = ["independent", "without"].map((sampling) => transport(p, q, k, sampling).bound);
  const over = ["independent", "without"].filter((_, i) => greedy > bounds[i] + 1e-9);
  const names = over.map((sampling) => `${figure(bounds[sampling === "without" ? 1 : 0])} of drafts sampled ${sampling === "without" ? "without replacement" : "independently"}`);
  if (k === 1) return "With k = 1, the only draft is sampled from q, so the greedy rule is the usual test of one draft.";
  if (!over.length)
    return `The greedy draft has acceptance rate ${figure(greedy)}, not above the bounds of sampled drafts here (${bounds.map(figure).join(" and ")}).`;
  return `The greedy draft has acceptance rate ${figure(greedy)}, above the bound ${names.join(" and ")}. Both are correct: a bound holds for one way of sampling. Here k − 1 drafts are fixed, so q's most likely tokens are always among them, and no rule for such drafts accepts more.`;
}

/** Describe the gain and the error of the approximate rules, and name those that need more than p and q. */
export function prices(found, prices, { k }) {
  const each = APPROXIMATE.map(({ id, title, exact }) => {
    const { accepted, error } = prices[id][k - 1], more = accepted - found[exact][k - 1];
    return `${title}: ${more < -5e-4 ? "loses" : "gains"} ΔA ${figure(Math.abs(more))} at TV distance ${figure(error)}`;
  });
  const drafts = k === 1 ? "one draft" : `${k} independent drafts`;
  return `Approximate rules (dashed, ≈) with ${drafts}, compared with SpecInfer’s exact rule: ${each.join("; ")}. Not shown, because they need more than p and q: nearest (token embeddings), judge (hidden states), reflective (a second forward pass of the target), entropy-adaptive (earlier tokens). “As drafted” always accepts one draft, at TV distance TV(p, q).`;
}

/** Describe the error of an unsound combination; "" for a sound one. */
export function unsound({ p, q }, { k, way: sampling, rule }) {
  if (sound(rule, sampling, k)) return "";
  const title = RULES[rule].title;
  let n = k, found = null;
  while (n > 0 && !(found = outcome(p, q, n, sampling, rule))) n -= 1;
  const drafts = n < k ? ` with ${n} drafts` : "", error = distance(found.probs, p);
  if (error < 5e-4)
    return `${title} is not designed for drafts of kind “${WAYS[sampling].title}”; with this p and q its output happens to equal p. Move a bar to see an error.`;
  return `${title} is not designed for drafts of kind “${WAYS[sampling].title}”: its output${drafts} would differ from p by TV ${figure(error)}. Sample rounds to see it.`;
}

/** Describe the sampled rounds. */
export function sampledWords(p, { counts, accepted }, rounds) {
  if (!rounds) return "No rounds sampled yet. The outline shows p.";
  const shares = counts.map((x) => x / rounds);
  return `${rounds.toLocaleString("en")} rounds: TV from p ${distance(shares, p).toFixed(4)}; the same number of samples from p would give about ${noise(p, rounds).toFixed(4)}. Share of accepted drafts: ${(accepted / rounds).toFixed(3)}.`;
}
