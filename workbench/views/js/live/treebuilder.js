/** The tree builder's reason for drafting a node, and the node's score before and after. Both come from the trace; no
 *  tree builder is hard-coded here. */

/** Return the tree builder's record of a node; null if the trace has none. Pure.
 *  @returns {{rule: Record<string, string>, before: number|null, after: number|null}|null} */
export function builderRecord(round, node) {
  const { grown } = round, rule = grown?.rules?.[grown.of?.[node] ?? 0];
  if (!rule || typeof rule !== "object") return null;
  const value = (column, words) => (words && Number.isFinite(column?.[node]) ? column[node] : null);
  return { rule, before: value(grown.before, rule.before), after: value(grown.after, rule.after) };
}

/** Return the product of a node column along the path to `node`; null if a value on it is missing. Pure. */
export function pathProduct({ nodes }, name, node) {
  let product = 1;
  for (let at = node; at >= 0; at = nodes.parents[at]) {
    const value = nodes[name][at] ?? null;
    if (value === null) return null;
    product *= value;
  }
  return product;
}

const figure = (v, f) => (Number.isInteger(v) ? `${v}` : f.digits(v, 2));

/** Return a short label for the tree: "added by eagle-2, score 9 → 6"; empty if the trace has no record. Pure.
 *  @param {object} f  the module `formula` */
export function brief(round, node, f) {
  const record = builderRecord(round, node);
  if (!record) return "";
  const values = [record.before, record.after].filter((v) => v !== null).map((v) => figure(v, f));
  const score = values.length ? `, score ${values.join(" → ")}` : "";
  return `added by ${record.rule.name}${score}`;
}

/** Return details for the node card: [term, text] pairs. The path's probabilities under drafter and target are given
 *  for any node below the first level, also in traces without tree-builder records. Pure.
 *  @param {object} f  the module `formula` */
export function statement(round, node, f) {
  const record = builderRecord(round, node), out = [];
  if (record) {
    const { rule, before, after } = record;
    out.push(["tree builder", `${rule.name}: ${rule.title}`]);
    const worth = [[before, rule.before], [after, rule.after]]
      .filter(([v]) => v !== null)
      .map(([v, words]) => `${figure(v, f)} (${words})`);
    if (worth.length) out.push(["score", worth.join(" → ")]);
  }
  const q = pathProduct(round, "q", node), p = pathProduct(round, "p", node);
  if (round.nodes.parents[node] >= 0 && q !== null && p !== null)
    out.push(["path probability", `drafter ${figure(q, f)}, target ${figure(p, f)}`]);
  if (record?.rule.says) out.push(["why drafted", record.rule.says]);
  return out;
}
