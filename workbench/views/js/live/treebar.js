/** Toolbar under the draft tree: zoom, fit, unfold, and an overview of all nodes with the visible area. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as tree from "./tree.js";

const HIGH = 40, CELL = 10;
const WORDS = "ring: q of the drafter · disc: p of the target · under a node: its test · dotted: never tested";

/** Return the legend of the drawing; with several drafters also of the rings. Pure.
 *  @param {string[]} drafters  names */
export const words = (drafters) =>
  drafters.length ? `${WORDS} · dashed outer ring: drafted by ${drafters.slice(1).join(", ")} · solid outer ring: by both` : WORDS;

/** Build the toolbar and add its elements to `parts`; buttons act on the tree in `parts.tree`. */
export function build(parts) {
  const button = (name, text, title, act) => {
    const element = (parts[name] = h("button", { type: "button", className: "wb-tool", title, onclick: act }, text));
    element.setAttribute("aria-label", title);
    return element;
  };
  const by = (factor) => () => tree.zoom(parts.tree, (tree.shown(parts.tree)?.zoom ?? 1) * factor);
  parts.overview = h("div", { className: "wb-overview" });
  parts.overview.setAttribute("aria-hidden", "true"); // the tree itself is accessible
  parts.overview.addEventListener("click", (event) => pick(parts, event));
  parts.tree.addEventListener("scroll", () => overview(parts.overview, tree.shown(parts.tree)), { passive: true });
  parts.treeBar = h(
    "div",
    { className: "wb-treebar" },
    h(
      "span",
      { className: "wb-zooms" },
      button("treeFit", "fit", "Show the whole drawing", () => tree.fit(parts.tree)),
      button("treeOut", "−", "Zoom out (key −)", by(0.8)),
      button("treeZoom", "100 %", "Back to 100 % (key 0)", () => tree.zoom(parts.tree, 1)),
      button("treeIn", "+", "Zoom in (key +)", by(1.25)),
      button("treeUnfold", "unfold all", "Show every drafted node", () =>
        tree.unfoldAll(parts.tree, tree.shown(parts.tree)?.folded > 0),
      ),
      button("treeHindsight", "hindsight", "Best tree in hindsight: show the additional draft that would have been accepted", () => {}),
      button("treeWide", "wide", "Use the full width for the tree", () => widen(parts)),
    ),
    (parts.treeWords = h("span", { className: "wb-treewords" }, WORDS)),
    (parts.treeBetter = h("p", { className: "wb-treebetter", hidden: true })),
    parts.overview,
  );
  kit.set(parts.treeHindsight, { "aria-pressed": "false" });
  parts.treeBetter.setAttribute("role", "status");
  kit.set(parts.treeWide, { "aria-pressed": "false" });
  return parts.treeBar;
}

/** Toggle the tree's full width, with the node card below it. */
function widen(parts) {
  const on = parts.tree.closest(".wb-two")?.classList.toggle("is-wide") ?? false;
  kit.set(parts.treeWide, { "aria-pressed": on });
}

/** Update the toolbar. @param {any} parts  @param {boolean} on  whether the tree is visible
 *  @param {string} [better]  the additional draft in hindsight, in words; empty: switched off */
export function render(parts, on, better = "") {
  const shown = on ? tree.shown(parts.tree) : null;
  parts.treeBar.hidden = !shown;
  if (!shown) return;
  parts.treeBetter.hidden = !better;
  kit.write(parts.treeBetter, better);
  kit.write(parts.treeWords, words(shown.tree.drafters));
  kit.write(parts.treeZoom, `${Math.round(100 * shown.zoom)} %`);
  kit.write(parts.treeUnfold, shown.folded || !shown.more ? "unfold all" : "fold");
  kit.set(parts.treeUnfold, {
    "aria-label": shown.folded || !shown.more ? "Show every drafted node" : "Restore the default folding",
  });
  parts.treeUnfold.disabled = !shown.folded && !shown.more;
  overview(parts.overview, shown);
}

/** Return the layout of the overview: one column per level, one bar per node. Pure. @returns {{cells: object[],
 *  columns: number, pitch: number}} */
export function grid(tree) {
  const count = new Map(), cells = [];
  for (const [id, node] of tree.nodes) {
    if (id === -1 || id === "target") continue;
    const row = count.get(node.depth) ?? 0;
    count.set(node.depth, row + 1);
    cells.push({ id, column: node.depth - 1, row, kind: node.kind });
  }
  return { cells, columns: Math.max(1, ...count.keys()), pitch: Math.min(4, HIGH / Math.max(1, ...count.values())) };
}

function overview(el, shown) {
  el.hidden = !shown || (!shown.cut && !shown.folded && !shown.more);
  if (el.hidden) return;
  const { cells, columns, pitch } = grid(shown.tree), width = columns * CELL + 6;
  const state = kit.frame(el, { width, height: HIGH + 4, label: `all ${cells.length} drafted nodes` }, (svg) => ({
    nodes: svg.appendChild(kit.s("g")),
    sight: svg.appendChild(kit.s("rect", { class: "wb-sight", rx: 2, y: 1, height: HIGH + 2 })),
  }));
  kit.fit(state.nodes, cells.length, () => kit.s("rect"));
  cells.forEach((c, i) => {
    kit.set(state.nodes.children[i], {
      x: 3 + c.column * CELL + 1,
      y: 2 + c.row * pitch,
      width: CELL - 2,
      height: Math.max(0.6, pitch - 1),
      class: `is-${shown.awaited.has(c.id) ? "pending" : c.kind}${shown.drawn.has(c.id) ? "" : " is-folded"}`,
    });
  });
  const { x0, x1, y0, y1 } = shown.sight,
    seen = shown.items
      .filter(
        (n) => n.x >= x0 && n.x <= x1 && (n.top || (n.y >= y0 && n.y <= y1)) && n.node.depth > 0 && n.id !== "target",
      )
      .map((n) => n.node.depth - 1);
  const [from, to] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, -1];
  kit.set(state.sight, { x: 3 + from * CELL - 1, width: Math.max(0, (to - from + 1) * CELL + 1) });
}

/** Select the node nearest to a click. */
function pick(parts, event) {
  const shown = tree.shown(parts.tree), box = parts.overview.getBoundingClientRect();
  if (!shown) return;
  const { cells, pitch } = grid(shown.tree),
    x = (event.clientX - box.left - 3) / CELL - 0.5,
    y = (event.clientY - box.top - 2) / pitch - 0.5;
  const far = (c) => CELL * Math.abs(c.column - x) + pitch * Math.abs(c.row - y),
    best = cells.reduce((a, c) => (a && far(a) <= far(c) ? a : c), null);
  if (best) kit.emit(parts.tree, "wb:pick", { round: parts.tree._tree.data.round.index, node: best.id });
}
