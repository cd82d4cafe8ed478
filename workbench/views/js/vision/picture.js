/** An image with its grid of patches, overlaid with the patches that target or drafter gets, or with a word's weights.
 *  Emits `wb:patch` {patch|null} for the hovered or focused patch, and `wb:paint` {patch, begin} while painting is on.
 *  Sizes are in units of a patch: the drawing scales with its card. */

import * as kit from "../shared/kit.js";

const UNIT = 40;
const TOP_HEAT = 0.82;

/** Return the patch that a key moves to. Pure. @returns {number} */
export function neighbour(patch, key, rows, cols) {
  const row = Math.floor(patch / cols), col = patch % cols, last = rows * cols - 1;
  const to = {
    ArrowLeft: [row, col - 1],
    ArrowRight: [row, col + 1],
    ArrowUp: [row - 1, col],
    ArrowDown: [row + 1, col],
    Home: [row, 0],
    End: [row, cols - 1],
  }[key];
  if (key === "PageUp") return 0;
  if (key === "PageDown") return last;
  return to ? Math.max(0, Math.min(rows - 1, to[0])) * cols + Math.max(0, Math.min(cols - 1, to[1])) : patch;
}

/** Return the patches between two patches, inclusive, for strokes faster than pointer events. Pure. @returns {number[]}
 *  */
export function between(from, to, cols) {
  const [x, y, dx, dy] = [
      from % cols,
      Math.floor(from / cols),
      (to % cols) - (from % cols),
      Math.floor(to / cols) - Math.floor(from / cols),
    ],
    n = Math.max(Math.abs(dx), Math.abs(dy));
  return n
    ? Array.from({ length: n + 1 }, (_, i) => Math.round(y + (dy * i) / n) * cols + Math.round(x + (dx * i) / n))
    : [to];
}

/** Return the outline of a set of patches: the path of all edges that belong to only one of them. Pure. */
export function outline(patches, cols, unit = UNIT) {
  const set = new Set(patches);
  let d = "";
  for (const p of set) {
    const x = (p % cols) * unit, y = Math.floor(p / cols) * unit, col = p % cols;
    if (!set.has(p - cols)) d += `M${x} ${y}h${unit}`;
    if (!set.has(p + cols)) d += `M${x} ${y + unit}h${unit}`;
    if (col === 0 || !set.has(p - 1)) d += `M${x} ${y}v${unit}`;
    if (col === cols - 1 || !set.has(p + 1)) d += `M${x + unit} ${y}v${unit}`;
  }
  return d;
}

/** Return the overlays: per patch the opacity of veil and heat, 0–1, and the groups to outline. Pure.
 *  @param {{rows: number, cols: number, kept: number[]|null, blocks: number[][]|null, none: boolean, heat:
 *    number[]|null}} data */
export function layers({ rows, cols, kept: keptPatches, blocks, none, heat }) {
  const n = rows * cols, keptSet = keptPatches && new Set(keptPatches);
  return {
    veil: Array.from({ length: n }, (_, p) => (heat ? 0.62 : none ? 0.93 : keptSet && !keptSet.has(p) ? 0.88 : 0)),
    heat: Array.from({ length: n }, (_, p) => TOP_HEAT * Math.min(1, heat?.[p] ?? 0)),
    groups: none || heat ? [] : (blocks ?? (keptSet ? keptPatches.map((p) => [p]) : [])),
  };
}

/** Draw into `el`.
 *  @param {{url: string, rows: number, cols: number, alt: string, kept?: number[]|null, blocks?: number[][]|null,
 *    none?: boolean, heat?: number[]|null, edits?: Map<number, string>, chosen?: number|null, paints?: boolean, empty?:
 *    string}} data */
export function render(el, data) {
  const { rows, cols } = data, width = cols * UNIT, height = rows * UNIT;
  const drawing = (el._drawing ??= kit.h("div", { className: "wb-vis" }));
  if (!drawing.parentElement) {
    el.prepend(drawing);
    wire(el, drawing);
  }
  Object.assign(el, { _rows: rows, _cols: cols, _paints: Boolean(data.paints) });
  drawing.hidden = !data.url;
  el.dataset.empty = data.url ? "" : (data.empty ?? "");
  if (!data.url) return;
  const state = kit.frame(drawing, { width, height, label: data.alt, role: "img" }, (svg) => build(svg));
  kit.set(state.image, { href: data.url, width, height, preserveAspectRatio: "none" });
  kit.set(state.ground, { width, height });
  const over = layers({ kept: null, blocks: null, none: false, heat: null, ...data });
  kit.fit(state.veils, rows * cols, () => kit.s("rect", { class: "wb-veil" }));
  kit.fit(state.heats, rows * cols, () => kit.s("rect", { class: "wb-patchheat" }));
  for (let p = 0; p < rows * cols; p += 1) {
    const at = { x: (p % cols) * UNIT, y: Math.floor(p / cols) * UNIT, width: UNIT, height: UNIT };
    kit.set(state.veils.children[p], { ...at, opacity: over.veil[p] });
    kit.set(state.heats.children[p], { ...at, opacity: over.heat[p] });
  }
  kit.set(state.grid, {
    d:
      Array.from({ length: cols + 1 }, (_, i) => `M${i * UNIT} 0V${height}`).join("") +
      Array.from({ length: rows + 1 }, (_, i) => `M0 ${i * UNIT}H${width}`).join(""),
  });
  kit.set(state.groups, { d: over.groups.map((group) => outline(group, cols)).join("") });
  const edits = [...(data.edits ?? [])];
  for (const how of ["hide", "blur"])
    kit.set(state[how], {
      d: outline(
        edits.filter(([, e]) => e === how).map(([p]) => p),
        cols,
      ),
    });
  const at = data.chosen ?? null;
  kit.set(state.chosen, {
    display: at === null ? "none" : "inline",
    x: ((at ?? 0) % cols) * UNIT,
    y: Math.floor((at ?? 0) / cols) * UNIT,
    width: UNIT,
    height: UNIT,
  });
}

function build(svg) {
  const add = (tag, attributes) => svg.appendChild(kit.s(tag, attributes));
  return {
    ground: add("rect", { class: "wb-picground" }),
    image: add("image", { class: "wb-pixels" }),
    veils: add("g", {}),
    heats: add("g", {}),
    grid: add("path", { class: "wb-patchgrid" }),
    groups: add("path", { class: "wb-kept" }),
    blur: add("path", { class: "wb-edit is-blur" }),
    hide: add("path", { class: "wb-edit is-hide" }),
    chosen: add("rect", { class: "wb-patch-chosen" }),
  };
}

/** Select a patch with pointer or keys; with painting on, a stroke paints patches. */
function wire(el, drawing) {
  drawing.tabIndex = 0;
  kit.set(drawing, { role: "application", "aria-roledescription": "image with patches" });
  const under = (event) => {
    const box = drawing.firstElementChild.getBoundingClientRect();
    const col = Math.floor(((event.clientX - box.left) / box.width) * el._cols),
      row = Math.floor(((event.clientY - box.top) / box.height) * el._rows);
    return col < 0 || row < 0 || col >= el._cols || row >= el._rows ? null : row * el._cols + col;
  };
  let last = null;
  const point = (patch) => {
    if (patch !== last) kit.emit(el, "wb:patch", { patch });
    last = patch;
  };
  const paint = (patch, begin) => patch !== null && el._paints && kit.emit(el, "wb:paint", { patch, begin });
  drawing.addEventListener("pointermove", (event) => {
    const patch = under(event), before = last;
    point(patch);
    if (patch !== before && event.buttons === 1)
      for (const each of patch === null || before === null ? [patch] : between(before, patch, el._cols))
        paint(each, false);
  });
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (el._paints) drawing.setPointerCapture(event.pointerId);
    point(under(event));
    paint(under(event), true);
  });
  drawing.addEventListener("pointerup", () => el._paints && kit.emit(el, "wb:painted"));
  drawing.addEventListener("pointerleave", () => document.activeElement !== drawing && point(null));
  drawing.addEventListener("blur", () => point(null));
  drawing.addEventListener("focus", () => drawing.matches(":focus-visible") && point(last ?? 0));
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(Arrow|Home|End|Page)/.test(event.key)) point(neighbour(last ?? 0, event.key, el._rows, el._cols));
    else if ((event.key === " " || event.key === "Enter") && el._paints) {
      paint(last ?? 0, true);
      kit.emit(el, "wb:painted");
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
