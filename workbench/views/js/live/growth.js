/** Why a node was drafted, in the words of the grower that put it there, and what it was worth before and after: the
 *  trace says both, and this file knows no grower by heart. */

/** What is known of a node's growth; null where the trace does not say. Pure.
 *  @returns {{rule: Record<string, string>, before: number|null, after: number|null}|null} */
export function grownBy(round, node) {
  const { grown } = round, rule = grown?.rules?.[grown.of?.[node] ?? 0];
  if (!rule || typeof rule !== "object") return null;
  const value = (column, words) => (words && Number.isFinite(column?.[node]) ? column[node] : null);
  return { rule, before: value(grown.before, rule.before), after: value(grown.after, rule.after) };
}

/** Product of a column of the nodes down the path to one; null where something on it is not known. Pure. */
export function along({ nodes }, name, node) {
  let product = 1;
  for (let at = node; at >= 0; at = nodes.parents[at]) {
    const value = nodes[name][at] ?? null;
    if (value === null) return null;
    product *= value;
  }
  return product;
}

const figure = (v, f) => (Number.isInteger(v) ? `${v}` : f.digits(v, 2));

/** In a few words, for the tree: "grown by eagle-2, 9 → 6"; empty where the trace does not say. Pure.
 *  @param {object} f  the module `formula` */
export function brief(round, node, f) {
  const told = grownBy(round, node);
  if (!told) return "";
  const values = [told.before, told.after].filter((v) => v !== null).map((v) => figure(v, f));
  return [`grown by ${told.rule.name}`, values.join(" → ")].filter(Boolean).join(", ");
}

/** What the card says of it: [term, words] pairs; the path's chances by drafter and target of any node below the first
 *  level, also of traces that say nothing of their growth. Pure.
 *  @param {object} f  the module `formula` */
export function statement(round, node, f) {
  const told = grownBy(round, node), out = [];
  if (told) {
    const { rule, before, after } = told;
    out.push(["grown by", `${rule.name}: ${rule.title}`]);
    const worth = [[before, rule.before], [after, rule.after]]
      .filter(([v]) => v !== null)
      .map(([v, words]) => `${figure(v, f)} (${words})`);
    if (worth.length) out.push(["worth", worth.join(" → ")]);
  }
  const q = along(round, "q", node), p = along(round, "p", node);
  if (round.nodes.parents[node] >= 0 && q !== null && p !== null)
    out.push(["its path", `${figure(q, f)} by the drafter → ${figure(p, f)} by the target`]);
  if (told?.rule.says) out.push(["why there", told.rule.says]);
  return out;
}
