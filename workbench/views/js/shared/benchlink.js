/** The way from a place of a run to the verifier bench: its p and q as the query of an address. Pure. */

/** What stands for all tokens that a trace does not list. */
export const OTHERS = "all others";
const MOST = 5, DRAFTS = 8;

/** How a grower's siblings come, by the bench's names; those of all other growers are drawn without replacement. */
export const WAY_OF = {
  specinfer: "independent", "head-and-one": "head", "eagle-2": "fixed", template: "fixed", superposed: "fixed",
  "dynamic-sparse": "fixed",
};
/** The bench's names of the rules that it knows, by those of verifiers. */
export const RULE_OF = {
  lossless: "recursive", independent: "independent", "k-seq": "k-seq", "optimal-two": "optimal-two",
  "greedy-draft": "greedy-draft", deterministic: "deterministic",
};

/** The query under which the bench shows a place; null where no token has both its p and its q recorded. Tokens that
 *  one of the laws does not list are, with all that neither lists, one token of its own.
 *  @param {{text: string, p: number|null, q: number|null}[]} rows  as the node's card has them
 *  @param {number} drafts  for this place  @param {string} from  whose place it is
 *  @param {Record<string, any>} chosen  what was in force: `grower`, `verifier`  @returns {string|null} */
export function placeQuery(rows, drafts, from, chosen = {}) {
  const kept = rows.filter((row) => row.p !== null && row.q !== null).slice(0, MOST);
  if (!drafts || !kept.length) return null;
  const query = new URLSearchParams();
  for (const name of ["p", "q"]) {
    const values = kept.map((row) => row[name]), rest = 1 - values.reduce((sum, x) => sum + x, 0);
    query.set(name, [...values, Math.max(0, rest)].map((x) => `${Number(x.toPrecision(6))}`).join(","));
  }
  for (const word of [...kept.map((row) => row.text), OTHERS]) query.append("w", word);
  query.set("k", `${Math.min(DRAFTS, drafts)}`);
  const named = (table, name) => (Object.hasOwn(table, name ?? "") ? table[name] : null);
  query.set("way", drafts > 1 ? (named(WAY_OF, chosen.grower) ?? "without") : "independent");
  const rule = named(RULE_OF, chosen.verifier);
  if (rule !== null) query.set("rule", rule);
  query.set("from", rule === null && chosen.verifier ? `${from}; its rule, ${chosen.verifier}, is not here` : from);
  return query.toString();
}
