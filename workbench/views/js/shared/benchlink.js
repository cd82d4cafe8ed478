/** Link from a position of a run to the verifier bench: its p and q as a URL query. Pure. */

/** Label of the token that stands for all unlisted tokens. */
export const OTHERS = "all others";
const MOST = 5, DRAFTS = 8;

/** Sampling of siblings by tree builder, in the bench's names; all other tree builders draft without replacement. */
export const WAY_OF = {
  specinfer: "independent", "head-and-one": "head", "eagle-2": "fixed", template: "fixed", superposed: "fixed",
  "dynamic-sparse": "fixed",
};
/** The bench's names of rules, by verifier. */
export const RULE_OF = {
  lossless: "recursive", independent: "independent", "k-seq": "k-seq", "optimal-two": "optimal-two",
  "greedy-draft": "greedy-draft", deterministic: "deterministic",
};

/** Return the query with which the bench shows a position; null if no token has both p and q recorded. All tokens whose
 *  p or q is missing are merged into one.
 *  @param {{text: string, p: number|null, q: number|null}[]} rows  as on the node's card
 *  @param {number} drafts  for this position  @param {string} from  label of the position
 *  @param {Record<string, any>} chosen  parameters in force: `grower`, `verifier`  @returns {string|null} */
export function placeQuery(rows, drafts, from, chosen = {}) {
  const listed = rows.filter((row) => row.p !== null && row.q !== null).slice(0, MOST);
  if (!drafts || !listed.length) return null;
  const query = new URLSearchParams();
  for (const name of ["p", "q"]) {
    const values = listed.map((row) => row[name]), rest = 1 - values.reduce((sum, x) => sum + x, 0);
    query.set(name, [...values, Math.max(0, rest)].map((x) => `${Number(x.toPrecision(6))}`).join(","));
  }
  for (const word of [...listed.map((row) => row.text), OTHERS]) query.append("w", word);
  query.set("k", `${Math.min(DRAFTS, drafts)}`);
  const named = (table, name) => (Object.hasOwn(table, name ?? "") ? table[name] : null);
  query.set("way", drafts > 1 ? (named(WAY_OF, chosen.grower) ?? "without") : "independent");
  const rule = named(RULE_OF, chosen.verifier);
  if (rule !== null) query.set("rule", rule);
  query.set("from", rule === null && chosen.verifier ? `${from}; its verifier, ${chosen.verifier}, is not available here` : from);
  return query.toString();
}
