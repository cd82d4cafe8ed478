/** The way from a place of a run to the verifier bench: its p and q as the query of an address. Pure. */

/** What stands for all tokens that a trace does not list. */
export const OTHERS = "all others";
const MOST = 5, DRAFTS = 8;

/** The query under which the bench shows a place; null where no token has both its p and its q recorded. Tokens that
 *  one of the laws does not list are, with all that neither lists, one token of its own.
 *  @param {{text: string, p: number|null, q: number|null}[]} rows  as the node's card has them
 *  @param {number} drafts  for this place  @param {string} from  whose place it is @returns {string|null} */
export function placeQuery(rows, drafts, from) {
  const kept = rows.filter((row) => row.p !== null && row.q !== null).slice(0, MOST);
  if (!drafts || !kept.length) return null;
  const query = new URLSearchParams();
  for (const name of ["p", "q"]) {
    const values = kept.map((row) => row[name]), rest = 1 - values.reduce((sum, x) => sum + x, 0);
    query.set(name, [...values, Math.max(0, rest)].map((x) => `${Number(x.toPrecision(6))}`).join(","));
  }
  for (const word of [...kept.map((row) => row.text), OTHERS]) query.append("w", word);
  query.set("k", `${Math.min(DRAFTS, drafts)}`);
  query.set("way", drafts > 1 ? "without" : "independent");
  query.set("from", from);
  return query.toString();
}
