/** The draft tree of a round as data: parents, order, tested nodes, folding. Pure.
 *
 *  @typedef {{id: number|string, kind: string, parent: number|string|null, depth: number, text: string,
 *    children: (number|string)[], q: number|null, p: number|null, u: number|null, accept: number|null,
 *    rule: string|null, inputs: object, grown: string, tested: boolean, onPath: boolean, likely: number,
 *    under: number, source: string, by: string, emitted?: object}} TreeNode
 *  `grown`: the tree builder and its score of the node, in a few words; `kind`: "root", a status, or the kind of the
 *  target's own token; `by`: CSS class of the drafter, where there are several, see `drafterClass`; `likely`: product
 *  of q along the path; `under`: number of descendants. Order of children: the accepted one, the tested ones in test
 *  order, then the others by descending probability. */

import { ownToken } from "../shared/store.js";
import * as formula from "./formula.js";
import * as treebuilder from "./treebuilder.js";

export const ROOT = -1;
export const TARGET = "target";
/** Number of nodes that the view by levels draws before it folds. */
export const MANY = 64;
/** Trees of at most this many nodes are drawn completely if there is room. */
const FEW = 16;

/** Return the tree of a round.
 *  @param {object} round
 *  @param {{threshold?: number, keep?: number|string|null, root?: string, textOf?: (round: object, emitted: object) =>
 *    string, wordsOf?: (nodes: object) => string[]}} given
 *    `threshold`: untested nodes whose path has a lower draft probability are left out, except those on the path to
 *    `keep`
 *  @returns {{nodes: Map<number|string, TreeNode>, spine: (number|string)[], hidden: number, drafted: number, tested:
 *    number, drafters: string[]}} `spine`: the root, the accepted path, the target's own token; `hidden`: nodes left
 *    out by the threshold; `drafters`: names of the drafters, if several */
export function model(
  round,
  {
    threshold = 0,
    keep = null,
    root = "",
    textOf = (_, emitted) => emitted.text,
    wordsOf = (nodes) => nodes.text,
  } = {},
) {
  const { nodes: columns, path } = round,
    onPath = new Set(path),
    treeNodes = new Map();
  const blank = {
    q: null,
    p: null,
    u: null,
    accept: null,
    rule: null,
    inputs: {},
    grown: "",
    tested: false,
    onPath: true,
    likely: 1,
    under: 0,
    source: "",
    by: "",
  };
  treeNodes.set(ROOT, { ...blank, id: ROOT, kind: "root", parent: null, depth: 0, text: root, children: [] });
  const line = new Set(),
    texts = wordsOf(columns),
    drafters = drafterNames(columns);
  for (let i = typeof keep === "number" ? keep : -1; i >= 0 && i < columns.parents.length; i = columns.parents[i])
    line.add(i);
  const likely = [];
  columns.parents.forEach((parent, i) => {
    const tested = columns.status[i] !== "discarded",
      above = parent < 0 ? 1 : likely[parent];
    likely.push(above * (columns.q[i] ?? 0.5));
    if (!treeNodes.has(parent) || (!tested && likely[i] < threshold && !line.has(i))) return;
    treeNodes.set(i, {
      ...blank,
      id: i,
      kind: columns.status[i],
      parent,
      depth: treeNodes.get(parent).depth + 1,
      text: texts[i],
      children: [],
      q: columns.q[i] ?? null,
      p: columns.p[i] ?? null,
      u: columns.u?.[i] ?? null,
      accept: columns.accept?.[i] ?? null,
      rule: ruleOf(round, i),
      grown: treebuilder.brief(round, i, formula),
      inputs: inputsOf(columns.inputs, i),
      tested,
      onPath: onPath.has(i),
      likely: likely[i],
      source: drafters.length ? (columns.source?.[i] ?? "") : "",
      by: drafterClass(columns.source?.[i] ?? "", drafters),
    });
    treeNodes.get(parent).children.push(i);
  });
  const spine = [ROOT, ...path],
    own = targetToken(round, textOf);
  if (own) {
    const tip = treeNodes.get(spine.at(-1));
    treeNodes.set(TARGET, { ...blank, ...own, id: TARGET, parent: tip.id, depth: tip.depth + 1, children: [] });
    tip.children.push(TARGET);
    spine.push(TARGET);
  }
  for (const node of treeNodes.values())
    node.children.sort((a, b) => {
      const one = treeNodes.get(a), other = treeNodes.get(b);
      return rank(one) - rank(other) || order(one, other);
    });
  for (const node of [...treeNodes.values()].reverse())
    if (node.parent !== null && node.id !== TARGET) treeNodes.get(node.parent).under += node.under + 1;
  return {
    nodes: treeNodes,
    spine,
    hidden: columns.parents.length - [...treeNodes.keys()].filter((id) => id !== ROOT && id !== TARGET).length,
    drafted: columns.parents.length,
    tested: testOrder(columns).length,
    drafters,
  };
}

/** Return the drafters of a round's nodes, sorted; none if there is only one. The source of a node may name several. */
export function drafterNames({ source = [] }) {
  const found = [...new Set(source.flatMap((name) => name.split(" + ")))].filter(Boolean).sort();
  return found.length > 1 ? found : [];
}

/** Return the CSS class of a node by drafter: "by-0", "by-1" …, or "by-both"; empty if there is one drafter. */
function drafterClass(source, drafters) {
  if (!drafters.length || !source) return "";
  return source.includes(" + ") ? "by-both" : `by-${drafters.indexOf(source)}`;
}

const rank = (node) => (node.onPath ? 0 : node.tested ? 1 : 2);
const order = (a, b) => (a.tested || b.tested ? 0 : b.likely - a.likely) || a.id - b.id;

/** Return the rule that tested a node. A trace without rule names still shows greedy tests by temperature 0. */
function ruleOf({ nodes, params }, i) {
  if (nodes.status[i] === "discarded") return null;
  return nodes.rule?.[i] ?? (params?.temperature === 0 ? "greedy" : null);
}

function inputsOf(inputs, i) {
  return Object.fromEntries(Object.entries(inputs ?? {}).map(([name, values]) => [name, values[i] ?? null]));
}

/** Return the tested nodes in the order of their tests: level by level, earlier siblings first. */
export function testOrder({ status, depth }) {
  return status.flatMap((s, i) => (s === "discarded" ? [] : [i])).sort((a, b) => depth[a] - depth[b] || a - b);
}

/** Return the nodes not yet visible: tested nodes after the first `reveal`, untested nodes until all results are
 *  visible, and the target's own token. @param {any} round  @param {number|null} reveal  null, or more than were
 *  tested: all are visible */
export function awaited({ nodes }, reveal) {
  const tests = testOrder(nodes);
  if (reveal === null || reveal === undefined || reveal > tests.length) return new Set();
  return new Set([
    ...tests.slice(reveal),
    ...(reveal < tests.length ? nodes.status.flatMap((s, i) => (s === "discarded" ? [i] : [])) : []),
    TARGET,
  ]);
}

function targetToken(round, textOf) {
  if (round.bonus === null || round.bonus_kind === null) return null;
  const last = ownToken(round);
  return last ? { kind: round.bonus_kind, text: textOf(round, last), p: last.p, emitted: last } : null;
}

// -- Folding -------------------------------------------------------------------------------------------------------

/** Return the nodes to draw. Tested and accepted nodes are always drawn; of the others, as many children per node as
 *  `open` (true: all, false: none, "all": all, as in the whole tree) or else `auto` says. On the path a single node is
 *  not folded, because the fold button would need the same space.
 *  @param {{nodes: Map}} tree  @param {(id: number|string) => boolean|"all"|undefined} open
 *  @param {(node: TreeNode, untested: number) => number} auto
 *  @returns {Map<number|string, {children: (number|string)[], folded: number, more: boolean}>}  per drawn node: its
 *    drawn children, the number of nodes folded after it, whether the reader unfolded it beyond the default */
export function unfold(tree, open, auto) {
  const drawn = new Map();
  const visit = (id) => {
    const node = tree.nodes.get(id), at = (c) => tree.nodes.get(c), wanted = open(id);
    const always = node.children.filter((c) => at(c).tested || at(c).onPath),
      rest = node.children.filter((c) => !always.includes(c));
    const size = (list) => list.reduce((sum, c) => sum + 1 + at(c).under, 0);
    const usual = Math.min(rest.length, Math.max(0, auto(node, rest.length)));
    let n = wanted === true || wanted === "all" ? rest.length : wanted === false ? 0 : usual;
    if (wanted !== false && node.onPath && size(rest.slice(n)) === 1) n = rest.length;
    const children = [...always, ...rest.slice(0, n)];
    drawn.set(id, {
      children,
      folded: size(rest.slice(n)),
      more: wanted === true && n > usual && !(node.onPath && size(rest.slice(usual)) === 1),
    });
    children.forEach(visit);
  };
  visit(ROOT);
  return drawn;
}

/** Return the default folding of the spine view: of the untested nodes, draw the most likely children along the
 *  accepted path; draw a small tree completely. @param {any} tree  @param {{room: number, column: number}} given  rows
 *  of the region; width of a column in pixels */
export function spineAuto(tree, { room, column }) {
  const whole = tree.drafted <= FEW && column >= 72, most = whole ? Infinity : column >= 96 ? 3 : column >= 72 ? 2 : 1;
  return (node, untested) => {
    if (!node.onPath) return whole ? untested : 0;
    const left = room - node.children.filter((c) => tree.nodes.get(c).tested && !tree.nodes.get(c).onPath).length;
    return Math.min(most, untested <= left ? untested : left - 1);
  };
}

/** Return the default folding of the level view: tested nodes, then the most likely paths, `limit` nodes in all. */
export function levelsAuto(tree, limit = MANY) {
  const shown = new Set(), all = [...tree.nodes.values()].filter((n) => n.id !== ROOT && n.id !== TARGET);
  all.sort((a, b) => b.tested - a.tested || b.likely - a.likely || a.id - b.id);
  for (const node of all) {
    const line = [];
    for (let id = node.id; id !== ROOT && !shown.has(id); id = tree.nodes.get(id).parent) line.push(id);
    if (shown.size + line.length <= limit) line.forEach((id) => shown.add(id));
  }
  return (node) =>
    node.children.filter((c) => shown.has(c) && !tree.nodes.get(c).tested && !tree.nodes.get(c).onPath).length;
}

/** Return the ancestors of a node, root first, which must be unfolded to show it. */
export function ancestorsOf(tree, id) {
  const ancestors = [];
  for (let at = tree.nodes.get(id)?.parent ?? null; at !== null; at = tree.nodes.get(at).parent) ancestors.unshift(at);
  return ancestors;
}

// -- Walking -------------------------------------------------------------------------------------------------------

/** Return all nodes as places for the arrow keys, drawn or not; `y` is the number of the node in depth-first order. */
export function places(tree) {
  const found = [], visit = (id) => {
    const node = tree.nodes.get(id);
    found.push({ id, parent: node.parent, depth: node.depth, y: found.length, onPath: node.onPath });
    node.children.forEach(visit);
  };
  visit(ROOT);
  return found;
}

/** Return the node that an arrow key selects: parent, first child, previous or next node at the same depth. */
export function neighbour(items, id, key) {
  const at = items.find((n) => n.id === id) ?? items.find((n) => n.id === ROOT) ?? items[0];
  const sorted = (of) => items.filter(of).sort((a, b) => a.y - b.y);
  if (key === "ArrowLeft") return at.parent ?? at.id;
  if (key === "ArrowRight") {
    const kids = sorted((n) => n.parent === at.id);
    return (kids.find((n) => n.onPath) ?? kids[0] ?? at).id;
  }
  const column = sorted((n) => n.depth === at.depth), i = column.indexOf(at) + (key === "ArrowUp" ? -1 : 1);
  return (column[i] ?? at).id;
}

/** Describe the drawing in one sentence. @param {number} folded  nodes not drawn  @param {boolean} judging  being
 *  verified */
export function sentence(round, tree, folded, judging = false) {
  if (judging) return `Draft tree of round ${round.index + 1}: ${tree.drafted} nodes, being verified`;
  const left = [folded ? `, ${folded} folded` : "", tree.hidden ? `, ${tree.hidden} hidden` : ""].join("");
  return `Draft tree of round ${round.index + 1}: ${tree.drafted} nodes, ${tree.tested} tested, ${round.path.length} accepted${left}`;
}
