/** The draft tree as a nested list, an accessible alternative to the drawing. */

import * as kit from "../shared/kit.js";

/** Nest the nodes of a `treemodel.model` by parent. Pure.
 *  @param {(node: object, folded: number, awaited: boolean) => string} words  text of a node
 *  @returns {{id: number|string, text: string, children: object[]}} the root */
export function nest(tree, words, awaited = new Set()) {
  const entry = (id) => {
    const node = tree.nodes.get(id);
    return {
      id,
      text: words(node, 0, awaited.has(id)),
      children: node.children.filter((c) => c !== "target" || !awaited.has(c)).map(entry),
    };
  };
  return entry(-1);
}

/** Draw into `el`; lists are rebuilt only when the round or the hidden nodes change.
 *  @param {{tree: object, node: number|string|null, awaited: Set, words: (node: object, folded: number, awaited:
 *    boolean) => string}} data */
export function render(el, data) {
  const root = nest(data.tree, data.words, data.awaited), key = JSON.stringify(root);
  if (el._key !== key) {
    el._key = key;
    el.replaceChildren(kit.h("ul", {}, list(root)));
  }
  for (const item of el.querySelectorAll("[data-node]")) {
    if (item.dataset.node === `${data.node}`) item.setAttribute("aria-current", "true");
    else item.removeAttribute("aria-current");
  }
}

function list({ id, text, children }) {
  const words = kit.h("span", {}, text), item = kit.h("li", {}, words);
  words.dataset.node = id;
  if (children.length) item.append(kit.h("ul", {}, ...children.map((child) => list(child))));
  return item;
}
