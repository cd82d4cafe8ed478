/** The draft tree of one round: draws the layout of `treeplaces`; walk, fold, zoom and pan in it.
 *
 *  `render(el, data)` is the entry point. The reader's changes (zoom, unfolded nodes, scroll position) are stored with
 *  the element, the last two per round. Everything else is in `data`. */

import * as tentative from "../shared/tentative.js";
import * as kit from "../shared/kit.js";
import * as treemodel from "./treemodel.js";
import * as treeplaces from "./treeplaces.js";
import { drag, storeScroll, restoreScroll } from "./treescroll.js";
import * as treetext from "./treetext.js";

const ZOOMS = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];
const MOST = 4, STEP = 1.25;

/** Draw into `el`; elements are kept and moved, never created anew.
 *  @param {{round: object|null, root: string, node: number|string|null, empty: string, threshold?: number,
 *           mode?: "spine"|"levels", reveal?: number|null, height?: number,
 *           better?: string,
 *           textOf: (round: object, emitted: object) => string, wordsOf?: (nodes: object) => string}} data
 *    `reveal`: number of tested nodes whose result is visible, in test order; the other nodes are "pending" and the
 *    target's token is not drawn. 0: drafted, no result yet. null, or more than were tested: all.
 *    `better`: label of the draft that was missing in hindsight; empty: none
 *    `height`: available height in pixels; default: that of `el` */
export function render(el, data) {
  const view = (el._tree ??= begin(el));
  if (data.node === "-1") data = { ...data, node: -1 };
  el.classList.toggle("is-empty", !data.round);
  el.dataset.empty = data.empty ?? "";
  view.data = data;
  if (!data.round) return;
  if (data.node !== view.node || data.round !== view.round) unfoldToSelected(view, data);
  const size = { ...kit.size(el), ...(data.height ? { height: data.height } : {}) },
    scale = view.zoom > 1 ? Math.sqrt(view.zoom) : view.zoom,
    placed = place(view, size, scale);
  const state = frame(el, view, placed, scale);
  draw(state, view, placed, data);
  restoreScroll(el, view, placed, scale, size, data);
}

/** Unfold the ancestors of the selected node; tested nodes are never hidden. */
function unfoldToSelected(view, data) {
  if (data.round.nodes.status[data.node] !== "discarded") return;
  const tree = treemodel.model(data.round, { keep: data.node, textOf: data.textOf, wordsOf: data.wordsOf }),
    drawn = view.round === data.round && view.drawn;
  if (!tree.nodes.has(data.node) || (drawn && drawn.has(data.node))) return;
  const { drawn: now } = place(
    { ...view, data, memo: null, node: data.node },
    view.size ?? { width: 640, height: 300 },
    1,
  );
  if (!now.has(data.node))
    for (const id of treemodel.ancestorsOf(tree, data.node))
      if (!now.has(id) || !now.get(id).children.includes(data.node)) folds(view, data).set(id, true);
}

const folds = (view, { round, mode = "spine" }) => {
  if (!view.folds.has(round)) view.folds.set(round, { spine: new Map(), levels: new Map() });
  return view.folds.get(round)[mode];
};

/** Return the layout; it is cached until its inputs change. */
function place(view, size, scale) {
  const { data } = view, { mode = "spine", threshold = 0, root } = data, folding = folds(view, data);
  const width = (Math.max(280, size.width || 640) * (view.zoom > 1 ? view.zoom : 1)) / scale,
    height = (size.height || 300) / Math.min(1, scale);
  const keep = typeof data.node === "number" ? data.node : null;
  const kept = threshold ? keep : null;
  const key = [data.round, mode, threshold, kept, root, width, height, folding, folding.size, view.turn];
  if (view.memo && view.memo.key.every((v, i) => v === key[i])) return view.memo;
  const tree = treemodel.model(data.round, { threshold, keep, root, textOf: data.textOf, wordsOf: data.wordsOf });
  let drawn;
  const unfold = (column, room) =>
    (drawn = treemodel.unfold(
      tree,
      (id) => folding.get(id) ?? folding.get("all"),
      mode === "spine" ? treemodel.spineAuto(tree, { room, column }) : treemodel.levelsAuto(tree),
    ));
  const placed = treeplaces[mode](
    tree,
    unfold,
    { width, height, pitch: view.pitch, measure: view.measure, whole: folding.has("all") },
    treetext,
  );
  return (view.memo = { ...placed, tree, drawn, key });
}

// -- Drawing ----------------------------------------------------------------------------------------------------------

const SHAPES = {
  root: "M-8 -8H8V8H-8Z",
  corrected: "M0 -10L10 0L0 10L-10 0Z",
  bonus: "M-5 -8.7H5L10 0L5 8.7H-5L-10 0Z",
  plain: "M0 -9L9 7H-9Z",
  accepted: "M-8.5 0A8.5 8.5 0 1 1 8.5 0A8.5 8.5 0 1 1 -8.5 0Z",
  rejected: "M-8.5 0A8.5 8.5 0 1 1 8.5 0A8.5 8.5 0 1 1 -8.5 0Z M-4 -4L4 4M4 -4L-4 4",
  discarded: "M-8.5 0A8.5 8.5 0 1 1 8.5 0A8.5 8.5 0 1 1 -8.5 0Z",
  pending: "M-8.5 0A8.5 8.5 0 1 1 8.5 0A8.5 8.5 0 1 1 -8.5 0Z",
};

/** Kinds drawn as a ring and a disc; radius at probability 1, and of the smallest ring. */
const ROUND = new Set(["accepted", "rejected", "discarded", "pending"]), FULL = 8.5, LEAST = 4.5;

function frame(el, view, placed, scale) {
  const state = kit.frame(
    el,
    {
      width: Math.round(placed.width * scale),
      height: Math.round(placed.height * scale),
      label: view.words ?? "",
      role: "group",
    },
    (svg) => {
      const group = (parent, /** @type {Record<string, string>} */ attributes = { role: "presentation" }) =>
          parent.appendChild(kit.s("g", attributes)),
        hidden = { "aria-hidden": "true" };
      const edges = group(svg, hidden),
        nodes = group(svg),
        still = group(svg, { role: "presentation", class: "wb-still" });
      const ground = still.appendChild(kit.s("rect", { class: "wb-ground", x: 0, y: 0, "aria-hidden": "true" }));
      const parts = {
        edges,
        nodes,
        still,
        ground,
        topEdges: group(still, hidden),
        topNodes: group(still),
        heads: group(still, hidden),
      };
      const nothing = svg.appendChild(kit.s("text", { class: "wb-mute" })),
        tip = svg.appendChild(kit.group("rect", "text"));
      kit.set(tip, { class: "wb-treetip", "aria-hidden": "true" });
      kit.set(tip.lastChild, { class: "wb-code" });
      const better = svg.appendChild(kit.group("path", "circle", "text"));
      kit.set(better, { class: "wb-better", "aria-hidden": "true" });
      return { ...parts, nothing, tip, better };
    },
  );
  kit.set(state.svg, { viewBox: `0 0 ${placed.width} ${placed.height}` });
  kit.set(state.ground, { width: placed.width, height: placed.still });
  return state;
}

function draw(state, view, placed, data) {
  const { tree, drawn, items } = placed;
  const awaited = treemodel.awaited(data.round, data.reveal),
    folded = [...drawn.values()].reduce((sum, d) => sum + d.folded, 0);
  kit.set(state.svg, { "aria-label": treemodel.sentence(data.round, tree, folded, awaited.size > 0) });
  Object.assign(view, { round: data.round, node: data.node, drawn, placed, folded, awaited });
  kit.write(state.nothing, tree.drafted ? "" : tentative.noDraftWords(data.round));
  kit.set(state.nothing, { x: 14, y: placed.still + 14 });
  kit.fit(state.heads, placed.heads.length, () => kit.s("text", { class: "wb-mute", y: 12, "text-anchor": "middle" }));
  placed.heads.forEach(({ x, words, room }, k) => {
    kit.set(state.heads.children[k], { x });
    kit.write(state.heads.children[k], words.find((w) => view.measure(w, true) * 1.15 <= room) ?? "");
  });
  const rest = items.filter((n) => !n.top),
    path = items.filter((n) => n.top && !(n.id === "target" && awaited.has(n.id)));
  const lines = (list) =>
    list.flatMap((n) => [
      ...(n.path ? [n] : []),
      ...(n.fold?.path ? [{ path: n.fold.path, node: { kind: "discarded", q: null } }] : []),
      ...(n.lead ? [{ path: `M${n.lead.x} ${n.lead.y0}V${n.lead.y1}`, node: { kind: "lead" } }] : []),
    ]);
  const strength = ({ node }) => ({ lead: 0, discarded: 1, rejected: 2 })[node.kind] ?? 3;
  edges(
    state.edges,
    lines([...rest, ...path])
      .filter((l) => !l.top)
      .sort((a, b) => strength(a) - strength(b)),
    awaited,
  );
  edges(state.topEdges, lines(path).filter((l) => l.top), awaited);
  for (const [group, list] of [[state.nodes, rest], [state.topNodes, path]]) {
    kit.fit(group, list.length, () => newNode());
    list.forEach((n, i) => node(group.children[i], n, view, drawn.get(n.id), n.id === data.node));
  }
  hindsightMark(state.better, items, awaited.has("target") ? "" : data.better);
  const chosen = items.find((n) => n.id === data.node);
  if (chosen) kit.set(view.el, { "aria-activedescendant": `${view.uid}-${chosen.id}` });
  else view.el.removeAttribute("aria-activedescendant");
  tip(state.tip, chosen && chosen.word.text !== chosen.word.whole ? chosen.word : null, placed, view);
}

/** Mark the draft that was missing: dashed edge and ring around the token that the target wrote in its place.
 *  @param {any} g  @param {any[]} items  @param {string|undefined} label  empty: no mark */
function hindsightMark(g, items, label) {
  const own = label ? items.find((n) => n.id === "target") : null;
  kit.set(g, { display: own ? "inline" : "none" });
  if (!own) return;
  const [edge, ring, text] = g.children, from = items.find((n) => n.id === own.node.parent);
  kit.set(edge, { d: from ? `M${from.x} ${from.y - 12}L${own.x} ${own.y - 14}` : "", fill: "none" });
  kit.set(ring, { cx: own.x, cy: own.y, r: 14 });
  kit.set(text, { x: own.x, y: own.y - 19, "text-anchor": "middle" });
  kit.write(text, label);
}

function edges(group, list, awaited) {
  kit.fit(group, list.length, () => kit.s("path", { fill: "none" }));
  list.forEach(({ id, path, node: { kind: own, q, onPath } }, i) => {
    const kind = awaited.has(id) ? "pending" : own,
      width =
        kind === "lead"
          ? 1
          : onPath && kind !== "pending"
            ? 2 + 4 * (q ?? 0.4)
            : kind === "discarded"
              ? 1.2
              : 1 + 3 * (q ?? 0.2);
    kit.set(group.children[i], { d: path, class: `wb-edge is-${kind}`, "stroke-width": width.toFixed(2) });
  });
}

/** Return the radii of a drafted node in pixels: the ring's area grows with q, the disc's with p. Pure.
 *  @param {{kind: string, q: number|null, p: number|null}} node  @returns {{ring: number, disc: number}} */
export function radii({ kind, q, p }) {
  if (!ROUND.has(kind)) return { ring: FULL, disc: 0 };
  const area = (value) => Math.sqrt(Math.min(1, Math.max(0, value ?? 0)));
  return { ring: q === null ? FULL : LEAST + (FULL - LEAST) * area(q), disc: kind === "pending" ? 0 : FULL * area(p) };
}

function newNode() {
  const g = kit.group("title", "circle", "circle", "circle", "path", "text", "text", "rect", "g");
  ["", "wb-ring", "wb-under", "wb-disc", "", "wb-code", "wb-test", "wb-hit", "wb-fold"].forEach(
    (name, i) => name && kit.set(g.children[i], { class: name }),
  );
  g.lastChild.append(...["rect", "text", "rect"].map((tag) => kit.s(tag)));
  kit.set(g.lastChild, { role: "button", tabindex: -1 });
  kit.set(g.lastChild.lastChild, { class: "wb-hit" });
  kit.set(g, { role: "treeitem" });
  return g;
}

function node(g, n, view, drawn, chosen) {
  const [title, ring, under, disc, shape, word, note, hit, fold] = g.children,
    { folded, more } = drawn,
    waits = view.awaited.has(n.id),
    kind = waits ? "pending" : n.node.kind;
  const words = treetext.sentence(n.node, folded, waits);
  kit.set(g, {
    class: `wb-node is-${kind}${chosen ? " is-chosen" : ""}${n.node.by ? ` ${n.node.by}` : ""}`,
    id: `${view.uid}-${n.id}`,
    "aria-level": n.node.depth + 1,
    "aria-selected": chosen,
    "aria-label": words,
  });
  g.dataset.node = n.id;
  if (folded || more) kit.set(g, { "aria-expanded": !folded });
  else g.removeAttribute("aria-expanded");
  kit.write(title, words);
  kit.set(ring, { cx: n.x, cy: n.y, r: n.scale === 1 ? 12 : 9 });
  const radius = radii({ ...n.node, kind }), scale = (n.scale * radius.ring) / FULL;
  // covers the edge below it
  kit.set(under, { cx: n.x, cy: n.y, r: radius.disc ? (n.scale * radius.ring).toFixed(1) : 0 });
  kit.set(disc, { cx: n.x, cy: n.y, r: (n.scale * radius.disc).toFixed(1) });
  kit.set(shape, { d: SHAPES[kind] ?? SHAPES.bonus, transform: `translate(${n.x} ${n.y}) scale(${scale.toFixed(3)})` });
  for (const [text, label] of [[word, n.word], [note, waits ? null : n.note]]) {
    kit.write(text, label?.text ?? "");
    if (label) kit.set(text, { x: label.x, y: label.y, "text-anchor": label.anchor });
  }
  kit.set(hit, { x: n.hit.x, y: n.hit.y, width: n.hit.w, height: n.hit.h });
  kit.set(fold, { display: n.fold ? "inline" : "none" });
  if (!n.fold) return void delete fold.dataset.fold;
  const { x, y, w, h, text } = n.fold,
    [box, number, target] = fold.children,
    tall = Math.max(view.pitch - 2, h),
    wide = Math.max(24, w);
  fold.dataset.fold = n.id;
  kit.set(fold, {
    "aria-label": n.fold.open
      ? `fold the nodes after “${treetext.visible(n.node.text)}”`
      : `${text}: unfold the other drafts after “${treetext.visible(n.node.text)}”`,
  });
  kit.set(box, { x, y, width: w, height: h, rx: 5 });
  kit.set(number, { x: x + w / 2, y: y + h / 2 + 3.5, "text-anchor": "middle" });
  kit.write(number, text);
  kit.set(target, { x: x + w / 2 - wide / 2, y: y + h / 2 - tall / 2, width: wide, height: tall });
}

/** Show the full text of a selected node whose label is cut. */
function tip(g, word, placed, view) {
  kit.set(g, { display: word ? "inline" : "none" });
  if (!word) return;
  const wide = view.measure(word.whole) + 10,
    x = Math.max(2, Math.min(word.anchor === "middle" ? word.x - wide / 2 : word.x - 5, placed.width - wide - 2));
  kit.set(g.firstChild, { x, y: word.y - 13, width: wide, height: 19, rx: 4 });
  kit.set(g.lastChild, { x: x + 5, y: word.y });
  kit.write(g.lastChild, word.whole);
}

// -- Zoom, pan, fold --------------------------------------------------------------------------------------------------

/** Create the state and the listeners of a tree. */
function begin(el) {
  const uid = `wbt${Math.random().toString(36).slice(2, 8)}`,
    probe = kit.s("svg", { class: "wb-probe", "aria-hidden": "true" }),
    samples = [kit.s("text", { class: "wb-code" }), kit.s("text", { class: "wb-test" })];
  probe.append(...samples);
  el.append(probe);
  const measure = treetext.measurer(samples);
  probe.remove();
  const view = {
    el,
    uid,
    measure,
    zoom: 1,
    folds: new WeakMap(),
    pans: new WeakMap(),
    left: 0,
    top: 0,
    turn: 0,
    data: null,
    round: null,
    node: null,
    memo: null,
    pitch: matchMedia("(pointer: coarse)").matches ? 44 : 24,
  };
  kit.set(el, { role: "tree" });
  el.addEventListener("scroll", () => storeScroll(el, view), { passive: true });
  el.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !view.data?.round) return;
    event.preventDefault();
    const box = el.getBoundingClientRect();
    zoom(el, view.zoom * (event.deltaY < 0 ? STEP : 1 / STEP), {
      x: event.clientX - box.left,
      y: event.clientY - box.top,
    });
  }, { passive: false });
  el.addEventListener("click", (event) => {
    const at = event.target.closest?.("[data-fold]");
    if (!at) return;
    event.stopPropagation(); // a fold button is not a node
    toggle(el, named(at.dataset.fold), null);
  }, true);
  el.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !view.data?.round || !key(el, view, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  drag(el);
  return view;
}

const named = (id) => (id === "target" ? id : Number(id));

/** Handle a key in the tree; return false if the key has no meaning here. */
function key(el, view, name) {
  const { data, drawn, placed } = view,
    at = drawn.has(data.node) ? data.node : -1,
    pick = (id) => kit.emit(el, "wb:pick", { round: data.round.index, node: id === -1 ? "-1" : id });
  if (name === "+" || name === "=") return zoom(el, view.zoom * STEP), true;
  if (name === "-") return zoom(el, view.zoom / STEP), true;
  if (name === "0") return zoom(el, 1), true;
  if (name === "Enter") return drawn.get(at).folded > 0 && (toggle(el, at, true), true);
  if (name === "Escape") {
    const open = [at, ...treemodel.ancestorsOf(placed.tree, at).reverse()].find(
      (id) =>
        drawn.get(id)?.more ||
        (folds(view, data).has("all") && folds(view, data).get(id) !== false && untested(placed.tree, id)),
    );
    if (open === undefined) return false;
    toggle(el, open, false);
    if (open !== at) pick(open);
    return true;
  }
  if (!name.startsWith("Arrow")) return false;
  if (name === "ArrowRight" && drawn.get(at).folded && !drawn.get(at).children.length) return toggle(el, at, true), true;
  pick(
    treemodel.neighbour(
      placed.items.map((n) => ({
        id: n.id,
        parent: n.node.parent,
        depth: n.node.depth,
        y: n.y,
        onPath: n.node.onPath,
      })),
      at,
      name,
    ),
  );
  return true;
}

const untested = (tree, id) =>
  tree.nodes.get(id).children.some((c) => !tree.nodes.get(c).tested && !tree.nodes.get(c).onPath);

/** Unfold a node or fold it again. @param {boolean|null} open  null: toggle */
function toggle(el, id, open) {
  const view = el._tree, folding = folds(view, view.data), now = open ?? view.drawn.get(id).folded > 0;
  if (now) folding.set(id, true);
  else {
    if (folding.has("all")) folding.set(id, false);
    else folding.delete(id);
    for (const [other] of [...folding])
      if (other !== "all" && treemodel.ancestorsOf(view.placed.tree, other).includes(id)) folding.delete(other);
  }
  view.turn += 1;
  again(el);
}

/** Unfold all nodes of the round, or restore the default folding. @param {boolean} open */
export function unfoldAll(el, open) {
  const view = el._tree, folding = folds(view, view.data);
  folding.clear();
  if (open) folding.set("all", "all");
  view.turn += 1;
  again(el);
}

/** Set the zoom; the point `at` (pixels in the region) stays in place. */
export function zoom(el, to, at = { x: 0, y: 0 }) {
  const view = el._tree, before = view.zoom;
  view.zoom = Math.max(ZOOMS[0], Math.min(MOST, Math.abs(to - 1) < 0.02 ? 1 : to));
  again(el);
  const by = view.zoom / before;
  el.scrollTo({
    left: (el.scrollLeft + at.x) * by - at.x,
    top: (el.scrollTop + at.y) * by - at.y,
    behavior: "instant",
  });
}

/** Set the largest zoom, at most 1, at which the whole drawing is visible. */
export function fit(el) {
  const view = el._tree, size = kit.size(el);
  const best = [...ZOOMS].reverse().find((z) => {
    const { width, height } = place({ ...view, zoom: z, memo: null }, size, z);
    return width * z <= size.width + 1 && height * z <= size.height + 1;
  });
  view.zoom = best ?? ZOOMS[0];
  again(el);
  el.scrollTo({ left: 0, top: 0, behavior: "instant" });
}

/** Return the state of the drawing: zoom, folded and unfolded nodes, drawn nodes, visible area. */
export function shown(el) {
  const view = el._tree;
  if (!view?.placed || !view.data.round) return null; // a starting run has no round yet
  const more = folds(view, view.data).size > 0, size = view.size ?? { width: 0, height: 0 }, scale = view.scale ?? 1;
  return {
    zoom: view.zoom,
    folded: view.folded,
    more,
    drawn: view.drawn,
    awaited: view.awaited,
    tree: view.placed.tree,
    items: view.placed.items,
    sight: {
      x0: view.left / scale,
      x1: (view.left + size.width) / scale,
      y0: view.top / scale,
      y1: (view.top + size.height) / scale,
    },
    cut: view.placed.width * scale > size.width + 1 || view.placed.height * scale > size.height + 1,
  };
}

function again(el) {
  render(el, el._tree.data);
  kit.emit(el, "wb:redraw");
}
