/** The draft tree as a nested list: for those who read rather than look. */

/** Nest the items of `tree.layout` by parent. Pure. @returns {{text: string, children: object[]}} the root */
export function nest(items, root) {
  const made = new Map(items.map((n) => [n.id, { text: words(n, root), children: [] }]));
  for (const n of items) if (n.parent !== null) made.get(n.parent).children.push(made.get(n.id));
  return made.get(-1);
}

function words(n, root) {
  const hidden = n.hidden ? `; ${n.hidden} not listed under it` : "";
  if (n.kind === "root") return `“${root}”, committed${hidden}`;
  const figures = [n.p === null || n.p === undefined ? "" : `p ${n.p.toFixed(2)}`, n.q === null || n.q === undefined ? "" : `q ${n.q.toFixed(2)}`];
  return [`“${n.text}”`, n.kind, ...figures.filter(Boolean)].join(", ") + hidden;
}

/** Draw into `el`; lists are made anew only when the round or what is hidden changes.
 *  @param {{items: object[], root: string}} data */
export function render(el, data, kit) {
  const tree = nest(data.items, data.root), key = JSON.stringify(tree);
  if (el._key === key) return;
  el._key = key;
  el.replaceChildren(kit.h("ul", {}, list(tree, kit)));
}

function list({ text, children }, kit) {
  const item = kit.h("li", {}, text);
  if (children.length) item.append(kit.h("ul", {}, ...children.map((child) => list(child, kit))));
  return item;
}

export default { render };
