/** Under the drafter's image: the choice of a query, and the gate's weights. */

import * as kit from "../shared/kit.js";

/** Draw after `el`; emits `wb:query` {query|null}. @param {{queries: number, query: number|null, gate:
 *  [string, number][]}} data */
export function render(el, data) {
  const state = (el._queries ??= build(el)), { queries, query, gate } = data;
  state.box.hidden = !queries;
  state.text.textContent = queries
    ? query === null
      ? `all ${queries} queries`
      : `query ${query + 1} of ${queries}`
    : "";
  state.range.max = queries;
  if (document.activeElement !== state.range) state.range.value = query === null ? 0 : query + 1;
  state.range.style.setProperty("--fill", `${queries ? (100 * (query === null ? 0 : query + 1)) / queries : 0}%`);
  kit.set(state.range, { "aria-valuetext": state.text.textContent });
  state.gate.hidden = !gate.length;
  while (state.gate.childElementCount < gate.length)
    state.gate.append(kit.h("span", {}, kit.h("span"), kit.h("i"), kit.h("span")));
  [...state.gate.children].forEach((row, i) => {
    row.hidden = i >= gate.length;
    if (row.hidden) return;
    const [name, weight] = gate[i];
    kit.write(row.children[0], name);
    row.children[1].style.setProperty("--v", weight);
    kit.write(row.children[2], weight.toFixed(2));
    row.classList.toggle("is-most", weight === Math.max(...gate.map(([, w]) => w)));
  });
}

function build(el) {
  const range = kit.h("input", { type: "range", min: 0, max: 1, value: 0, step: 1 }),
    text = kit.h("span"),
    gate = kit.h("div", { className: "wb-gate", hidden: true });
  range.setAttribute("aria-label", "Query of the compressor");
  range.addEventListener("input", () =>
    kit.emit(el, "wb:query", { query: Number(range.value) ? Number(range.value) - 1 : null }),
  );
  kit.set(gate, { role: "group", "aria-label": "The gate's weights" });
  const box = kit.h("div", { className: "wb-queries", hidden: true }, text, range);
  el.after(box, gate);
  return { box, range, text, gate };
}
