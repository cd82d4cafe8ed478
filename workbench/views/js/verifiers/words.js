/** What the bench says of its figures, in sentences. Pure. */

import { acceptance, APPROXIMATE, outcome, transport } from "./acceptance.js";
import { distance, noise } from "./laws.js";
import { RULES, sound } from "./rules.js";
import { WAYS } from "./ways.js";

export const figure = (x) => x.toFixed(3);
const list = (set, words) => `{${set.map((i) => `“${words[i]}”`).join(", ")}}`;

/** Where the bound comes from: the set of tokens that is too likely among the drafts. */
export function boundWords({ p, q }, { k, way, words }) {
  const found = transport(p, q, k, way), how = way === "head" || way === "fixed" ? "Such drafts" : "Drafts so drawn";
  if (!found.set.length)
    return `${how} have no set of tokens that would hold them all more often than p allows: the bound is 1.`;
  return `The bound, ${figure(found.bound)}, is set by H = ${list(found.set, words)}: ${k === 1 ? "the draft is" : "all drafts are"} in H with ${figure(found.inAll)}, and p has only ${figure(found.inP)} there, so that ${figure(found.inAll - found.inP)} must be rejected, whatever the rule.`;
}

/** Whether drafts of which one alone is drawn are kept more often than any rule could keep drawn ones. */
export function crossing({ p, q }, { k }) {
  const greedy = acceptance(p, q, k, "head", "greedy-draft");
  const bounds = ["independent", "without"].map((way) => transport(p, q, k, way).bound);
  const over = ["independent", "without"].filter((_, i) => greedy > bounds[i] + 1e-9);
  const names = over.map((way) => `${figure(bounds[way === "without" ? 1 : 0])} of drafts drawn ${way === "without" ? "without replacement" : "independently"}`);
  if (k === 1) return "With one draft the greedy rule is the test of one draw: nothing is fixed.";
  if (!over.length)
    return `The greedy draft is kept with ${figure(greedy)}, not above the bounds of drawn drafts here (${bounds.map(figure).join(" and ")}).`;
  return `The greedy draft is kept with ${figure(greedy)}, more than the bound ${names.join(" and ")}. Neither is wrong: a bound holds for drafts of its own way of drawing. Here k − 1 of them are fixed, so q's likeliest tokens are always among them; and no rule for drafts made so keeps more.`;
}

/** What the rules that do not keep p buy, and what they pay; and which of them cannot be drawn from p and q. */
export function prices(found, prices, { k }) {
  const each = APPROXIMATE.map(({ id, title, exact }) => {
    const { accepted, paid } = prices[id][k - 1], more = accepted - found[exact][k - 1];
    return `${title}: ${more < -5e-4 ? "loses" : "buys"} ΔA ${figure(Math.abs(more))}, pays TV ${figure(paid)}`;
  });
  return `Approximate rules (dashed, ≈), on ${k === 1 ? "one draft" : `${k} independent drafts`}, against SpecInfer’s exact rule: ${each.join("; ")}. Not drawn, since p and q do not tell what they do: nearest (reads the tokens’ embeddings), judge (hidden states), reflective (a second reading by the target), entropy-adaptive (the tokens before). As drafted keeps one draft always, and pays TV(p, q).`;
}

/** What comes of a pair that is not sound: "" of one that is. */
export function unsound({ p, q }, { k, way, rule }) {
  if (sound(rule, way, k)) return "";
  const title = RULES[rule].title;
  let n = k, found = null;
  while (n > 0 && !(found = outcome(p, q, n, way, rule))) n -= 1;
  const drafts = n < k ? ` with ${n} drafts` : "", paid = distance(found.law, p);
  if (paid < 5e-4)
    return `${title} is not made for drafts that come ${WAYS[way].title}; with this p and q it happens to emit p all the same. Move a bar to see it miss.`;
  return `${title} is not made for drafts that come ${WAYS[way].title}: its output${drafts} would differ from p by TV ${figure(paid)}. Draw rounds to see it.`;
}

/** What the drawn rounds say. */
export function drawnWords(p, { counts, accepted }, rounds) {
  if (!rounds) return "Nothing is drawn yet. Outline: p.";
  const law = counts.map((x) => x / rounds);
  return `${rounds.toLocaleString("en")} rounds: TV from p ${distance(law, p).toFixed(4)}; as many draws from p itself would show about ${noise(p, rounds).toFixed(4)}. A draft came out in ${(accepted / rounds).toFixed(3)} of them.`;
}
