/** The draft tree of one round, left to right by depth, with the target's own token at the end of the accepted path. */

const MAX_NODES = 64;
const MANY_ROWS = 11;
const KEY = 16;
export const TARGET_TOKEN = "target";

/** Choose the nodes to draw: tested ones first, then the likeliest paths, each with all its ancestors. A path that the
 *  drafter gave less than `threshold` is left out unless it was tested.
 *  @returns {{kept: Set<number>, hiddenUnder: Map<number, number>, hidden: number}}  −1 is the root */
export function choose(nodes, limit = MAX_NODES, threshold = 0) {
  const { parents, q, status } = nodes;
  const path = [];
  parents.forEach((parent, i) => path.push((parent < 0 ? 1 : path[parent]) * (q[i] ?? 0.5)));
  const rank = { accepted: 2, rejected: 1, discarded: 0 };
  const order = parents.map((_, i) => i).sort((a, b) => rank[status[b]] - rank[status[a]] || path[b] - path[a] || a - b);
  const kept = new Set();
  for (const i of order) {
    const line = [];
    for (let j = i; j >= 0 && !kept.has(j); j = parents[j]) line.push(j);
    if (kept.size + line.length > limit || (status[i] === "discarded" && path[i] < threshold)) continue;
    line.forEach((j) => kept.add(j));
  }
  const hiddenUnder = new Map();
  parents.forEach((_, i) => {
    if (kept.has(i)) return;
    let at = parents[i];
    while (at >= 0 && !kept.has(at)) at = parents[at];
    hiddenUnder.set(at, (hiddenUnder.get(at) ?? 0) + 1);
  });
  return { kept, hiddenUnder, hidden: parents.length - kept.size };
}

/** Place a round's tree: x in columns of depth, y in rows of leaves. The accepted path comes first; a tree of many
 *  rows hangs from its top row, so that the path stays in sight when the rest is scrolled. Pure.
 *  @returns {{items: object[], rows: number, columns: number, hidden: number}}  items in drawing order, root first */
export function layout(round, threshold = 0, limit = MAX_NODES) {
  const { nodes, path } = round;
  const { kept, hiddenUnder, hidden } = choose(nodes, limit, threshold);
  const onPath = new Set(path);
  const children = new Map([[-1, []]]);
  [...kept].sort((a, b) => a - b).forEach((i) => {
    children.set(i, children.get(i) ?? []);
    const parent = nodes.parents[i];
    children.set(parent, [...(children.get(parent) ?? []), i]);
  });
  const tip = path.length ? path.at(-1) : -1;
  const own = targetToken(round);
  if (own) children.set(tip, [TARGET_TOKEN, ...(children.get(tip) ?? [])]);
  for (const list of children.values()) list.sort((a, b) => rankOf(a, onPath) - rankOf(b, onPath));
  const inner = new Set([...kept].map((i) => nodes.parents[i])), leaves = [...kept].filter((i) => !inner.has(i)).length;
  const hangs = leaves > MANY_ROWS, items = [];
  let rows = 0, columns = 0;
  const place = (id, parent, depth) => {
    columns = Math.max(columns, depth);
    const item = id === -1 ? { id, kind: "root" } : id === TARGET_TOKEN ? { id, ...own } : nodeItem(nodes, id, onPath);
    Object.assign(item, { parent, depth, hidden: hiddenUnder.get(id) ?? 0, inner: (children.get(id) ?? []).length > 0 });
    items.push(item);
    const ys = (children.get(id) ?? []).map((child) => place(child, id, depth + 1));
    item.y = !ys.length ? rows++ : hangs ? ys[0] : (ys[0] + ys.at(-1)) / 2;
    return item.y;
  };
  place(-1, null, 0);
  return { items, rows, columns, hidden };
}

const rankOf = (id, onPath) => (id === TARGET_TOKEN || onPath.has(id) ? 0 : 1);

function nodeItem(nodes, i, onPath) {
  return { id: i, kind: nodes.status[i], text: nodes.text[i], q: nodes.q[i], p: nodes.p[i], thick: onPath.has(i) };
}

function targetToken(round) {
  if (round.bonus === null || round.bonus_kind === null) return null;
  const last = round.emitted.find((e) => e.kind === round.bonus_kind && e.node === null);
  return last ? { kind: round.bonus_kind, text: last.text, p: last.p, q: null, thick: true, emitted: last } : null;
}

/** Where the arrow keys lead from a node: its parent, first child, previous and next sibling. */
export function neighbour(items, id, key) {
  const at = items.find((n) => n.id === id) ?? items[0];
  const kids = (parent) => items.filter((n) => n.parent === parent).sort((a, b) => a.y - b.y);
  if (key === "ArrowLeft") return at.parent ?? at.id;
  if (key === "ArrowRight") return (kids(at.id).find((n) => n.thick) ?? kids(at.id)[0] ?? at).id;
  const column = items.filter((n) => n.depth === at.depth).sort((a, b) => a.y - b.y);
  const i = column.indexOf(at) + (key === "ArrowUp" ? -1 : 1);
  return (column[i] ?? at).id;
}

/** Spaces and breaks made visible, cut to `chars`. */
export function label(text, chars = 14) {
  const seen = text.replace(/^ /, "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return seen.length > chars ? `${seen.slice(0, chars - 1)}…` : seen || "·";
}

/** Draw into `el`; elements are kept and moved, never made anew.
 *  @param {{round: object|null, root: string, node: number|string|null, empty: string, threshold: number,
 *           textOf: (round: object, emitted: object) => string}} data */
export function render(el, data, kit) {
  el.classList.toggle("is-empty", !data.round);
  el.dataset.empty = data.empty ?? "";
  if (!data.round) return;
  const tree = layout(data.round, data.threshold);
  for (const n of tree.items) if (n.emitted) n.text = data.textOf(data.round, n.emitted);
  el._items = tree.items;
  const box = places(el, tree, kit);
  const state = kit.frame(el, { width: box.width, height: box.height, label: sentence(data.round, tree), role: "tree" }, (svg) => {
    const [edges, nodes, heads] = [0, 1, 2].map(() => svg.appendChild(kit.s("g")));
    for (const part of [edges, heads]) kit.set(part, { "aria-hidden": "true" });
    kit.set(nodes, { role: "presentation" });
    return { edges, nodes, heads, key: svg.appendChild(kit.s("text", { class: "wb-mute", x: 14, "aria-hidden": "true" })) };
  });
  kit.set(state.key, { y: box.height - 4 });
  kit.write(state.key, data.round.nodes.q.some((q) => q !== null) ? "edge width: draft probability q" : "");
  kit.fit(state.heads, tree.columns + 1, () => kit.s("text", { class: "wb-mute" }));
  for (let d = 0; d <= tree.columns; d += 1) {
    kit.set(state.heads.children[d], { x: box.x(d) - 6, y: 12 });
    kit.write(state.heads.children[d], d === 0 ? "committed" : `depth ${d}`);
  }
  kit.fit(state.edges, tree.items.length - 1, () => kit.s("path", { fill: "none" }));
  kit.fit(state.nodes, tree.items.length, () => newNode(kit));
  const at = new Map(tree.items.map((n) => [n.id, n]));
  tree.items.forEach((n, i) => {
    const x = box.x(n.depth), y = box.y(n.y);
    if (i > 0) edge(state.edges.children[i - 1], n, at.get(n.parent), x, y, box, kit);
    drawNode(state.nodes.children[i], n, x, y, box, n.id === data.node, data.root, kit);
  });
}

function places(el, tree, kit) {
  const width = Math.max(300, kit.size(el).width || 640), height = Math.max(200, (kit.size(el).height || 272) - 14 - KEY);
  const rowHeight = Math.min(58, Math.max(21, (height - 44) / Math.max(1, tree.rows)));
  const column = Math.min(168, Math.max(68, (width - 40 - 84) / Math.max(1, tree.columns)));
  const head = 34, tall = Math.max(height, head + 10 + tree.rows * rowHeight);
  const top = head + Math.max(0, (tall - head - 10 - tree.rows * rowHeight) / 2);
  return {
    width: Math.max(width, 34 + tree.columns * column + 96), height: tall + KEY, rowHeight,
    chars: Math.max(5, Math.floor((column - 30) / 7.6)), innerChars: Math.max(5, Math.floor((column - 8) / 7.4)),
    x: (depth) => 20 + depth * column,
    y: (row) => top + (row + 0.5) * rowHeight,
  };
}

function edge(path, n, parent, x, y, box, kit) {
  const x0 = box.x(parent.depth) + 9, y0 = box.y(parent.y), mid = (x0 + x) / 2;
  const width = n.thick ? 3.5 : n.kind === "discarded" ? 1.2 : 1 + 3 * (n.q ?? 0.2);
  kit.set(path, { d: `M${x0} ${y0}C${mid} ${y0} ${mid} ${y} ${x - 9} ${y}`, class: `wb-edge is-${n.kind}`, "stroke-width": width.toFixed(2) });
}

const SHAPES = {
  root: "M-8 -8H8V8H-8Z",
  corrected: "M0 -10L10 0L0 10L-10 0Z",
  bonus: "M-5 -8.7H5L10 0L5 8.7H-5L-10 0Z",
  accepted: "M-8 0A8 8 0 1 1 8 0A8 8 0 1 1 -8 0Z",
  rejected: "M-8 0A8 8 0 1 1 8 0A8 8 0 1 1 -8 0Z M-4 -4L4 4M4 -4L-4 4",
  discarded: "M-6.5 0A6.5 6.5 0 1 1 6.5 0A6.5 6.5 0 1 1 -6.5 0Z",
};

function newNode(kit) {
  const g = kit.group("circle", "path", "text", "text", "circle");
  ["wb-ring", "", "wb-code", "wb-mute", "wb-hit"].forEach((name, i) => kit.set(g.children[i], { class: name }));
  kit.set(g, { role: "treeitem" });
  kit.set(g.firstChild, { r: 13 });
  kit.set(g.lastChild, { r: 15 });
  return g;
}

function drawNode(g, n, x, y, box, chosen, root, kit) {
  kit.set(g, { transform: `translate(${x} ${y})`, class: `wb-node is-${n.kind}${chosen ? " is-chosen" : ""}`, "aria-level": n.depth + 1, "aria-selected": chosen });
  g.dataset.node = n.id;
  const [, shape, word, figure] = g.children;
  kit.set(shape, { d: SHAPES[n.kind] });
  const low = box.rowHeight < 34, above = n.inner && n.kind !== "root", text = label(n.kind === "root" ? root : n.text, above ? box.innerChars : n.inner ? box.chars : 14);
  const note = noteOf(n), brief = low && note.length > 8 ? note.split(" · ")[0] : note, more = !n.hidden ? "" : low ? ` +${n.hidden}` : ` +${n.hidden} hidden`;
  const wide = 7.3 * text.length;
  // A node with children has its words above the edges that leave it; a leaf has them at its side.
  const [word0, note0] = n.kind === "root" ? [[-9, 24], [-9, 38]] : above ? [[-7, -13], low ? [wide - 2, -13] : [-7, 24]] : low ? [[13, 4], [17 + wide, 4]] : [[14, -2], [14, 12]];
  kit.set(word, { x: word0[0], y: word0[1] });
  kit.write(word, text);
  kit.set(figure, { x: note0[0], y: note0[1] });
  kit.write(figure, `${low && above ? "" : brief}${more}`);
  kit.set(g, { "aria-label": `${text}, ${n.kind}${note ? `, ${note}` : ""}${n.hidden ? `, ${n.hidden} nodes under it not drawn` : ""}` });
}

function noteOf(n) {
  if (n.kind === "root") return "";
  if (n.kind === "corrected" || n.kind === "bonus") return `${n.kind} · p ${n.p.toFixed(2)}`;
  return n.q === null || n.q === undefined ? `p ${n.p.toFixed(2)}` : `q ${n.q.toFixed(2)}`;
}

/** What the drawing says, in a sentence. Pure. */
export function sentence(round, tree) {
  const tested = round.nodes.status.filter((x) => x !== "discarded").length;
  return `Draft tree of round ${round.index + 1}: ${round.nodes.text.length} nodes, ${tested} tested, ${round.path.length} accepted, ${tree.hidden} not drawn`;
}

export default { render };
