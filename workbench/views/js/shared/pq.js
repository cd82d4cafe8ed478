/** Movable bars of p and q: by pointer, and each by keyboard as a slider. */

import * as kit from "./kit.js";
import { visible } from "./kit.js";

const BOX = { top: 22, bottom: 26, left: 6 };
const KEYS = {
  ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1, Home: -1, End: 1,
};

/** Return a bar's value after a key; null if the key has no meaning. Pure. */
export function keyed(key, value) {
  return Object.hasOwn(KEYS, key) ? Math.min(1, Math.max(0, value + KEYS[key])) : null;
}

/** Draw into `el`; emits `wb:bar` {which: "p"|"q", at, value}.
 *  @param {{p: number[], q: number[]|null, words: string[], height?: number}} data  `q`: null if it was not recorded */
export function render(el, data) {
  const width = Math.max(200, kit.size(el).width || 560), high = data.height ?? 250, n = data.words.length;
  const label = `Target p and drafter q: ${data.words.map((w, i) => `${visible(w)} p ${data.p[i].toFixed(3)}, q ${data.q ? data.q[i].toFixed(3) : "not recorded"}`).join("; ")}`;
  const state = kit.frame(el, { width, height: high, label, role: "group" }, (svg) => {
    listen(el, svg);
    return { grid: svg.appendChild(kit.s("g")), tokens: svg.appendChild(kit.s("g")), dragged: null, top: 1 };
  });
  state.data = data;
  if (!state.dragged) state.top = Math.min(1, Math.ceil(10 * Math.max(...data.p, ...(data.q ?? [])) + 0.5) / 10);
  const tall = high - BOX.top - BOX.bottom, y = (v) => high - BOX.bottom - (v / state.top) * tall;
  state.value = (at) => ((high - BOX.bottom - at) / tall) * state.top;
  kit.fit(state.grid, 1, () => kit.s("path", { class: "wb-grid" }));
  kit.set(state.grid.firstChild, { d: `M0 ${y(0) + 0.5}H${width}` });
  const room = (width - 2 * BOX.left) / n, wide = Math.min(52, room * 0.36);
  kit.fit(state.tokens, n, () => {
    const token = kit.s("g");
    token.append(...["p", "q"].map((which) => bar(which)), kit.s("text", { "text-anchor": "middle", class: "wb-code" }));
    return token;
  });
  data.words.forEach((word, i) => {
    const middle = BOX.left + room * (i + 0.5), parts = state.tokens.children[i].children;
    ["p", "q"].forEach((which, side) => {
      const group = parts[side], [hit, whole, common, grip, text] = group.children;
      group.style.display = data[which] ? "" : "none";
      if (!data[which]) return;
      const v = data[which][i], x = side ? middle + 2 : middle - wide - 2,
        least = data.q ? Math.min(data.p[i], data.q[i]) : 0;
      Object.assign(group, { _which: which, _at: i });
      kit.set(group, {
        "aria-label": `${which} of ${visible(word)}`, "aria-valuenow": v.toFixed(3), "aria-valuetext": v.toFixed(3),
      });
      kit.set(hit, { x, y: BOX.top - 10, width: wide, height: tall + 12 });
      kit.set(whole, { x, y: y(v), width: wide, height: y(0) - y(v) });
      kit.set(common, { x, y: y(least), width: wide, height: y(0) - y(least) });
      kit.set(grip, { x: x + wide * 0.2, y: y(v) - 3, width: wide * 0.6, height: 6, rx: 3 });
      kit.set(text, { x: x + wide / 2, y: Math.max(11, y(v) - 7), "text-anchor": "middle" });
      kit.write(text, v.toFixed(2).replace(/^0/, ""));
    });
    kit.set(parts[2], { x: middle, y: high - 8 });
    const letters = Math.max(3, Math.floor(room / 7.6)), shown = visible(word);
    kit.write(parts[2], shown.length > letters ? `${shown.slice(0, letters - 1)}…` : shown);
  });
}

function bar(which) {
  const group = kit.group("rect", "rect", "rect", "rect", "text");
  kit.set(group, {
    role: "slider", tabindex: 0, "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 1,
    class: `wb-probbar is-${which}`,
  });
  ["wb-hit", "wb-whole", "wb-common", "wb-grip"].forEach((name, i) => group.children[i].setAttribute("class", name));
  return group;
}

function listen(el, svg) {
  const now = () => el._frame;
  const of = (event) => event.target.closest?.(".wb-probbar");
  const emit = (group, value) => kit.emit(el, "wb:bar", { which: group._which, at: group._at, value });
  const at = (event) => event.clientY - svg.getBoundingClientRect().top;
  const off = () => {
    now().dragged = null;
    kit.emit(el, "wb:redraw");
  };
  svg.addEventListener("pointerdown", (event) => {
    const group = of(event);
    if (!group || event.button !== 0) return;
    event.preventDefault();
    group.focus();
    svg.setPointerCapture(event.pointerId);
    now().dragged = group;
    emit(group, now().value(at(event)));
  });
  svg.addEventListener("pointermove", (event) => now().dragged && emit(now().dragged, now().value(at(event))));
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, () => now().dragged && off());
  svg.addEventListener("keydown", (event) => {
    const group = of(event), value = group && keyed(event.key, now().data[group._which][group._at]);
    if (value === null || value === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    emit(group, value);
  });
}
