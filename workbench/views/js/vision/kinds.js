/** Chart of the acceptance rate by kind of word: two bars per kind, the second one narrower. */

import * as kit from "../shared/kit.js";

const BOX = { left: 66, right: 104, top: 4, row: 34, single: 26 };

/** Return the geometry of the rows. Pure. @returns {{y: number, mine: number, theirs: number|null}[]} widths of the
 *  bars */
export function layout(rows, width) {
  const room = Math.max(20, width - BOX.left - BOX.right), pair = rows.some((r) => r.theirs);
  return rows.map((r, i) => ({
    y: BOX.top + i * (pair ? BOX.row : BOX.single),
    mine: room * (r.mine.value ?? 0),
    theirs: r.theirs ? room * (r.theirs.value ?? 0) : null,
  }));
}

/** Draw into `el`. @param {{rows: {label: string, mine: {value: number|null, text: string}, theirs: {value:
 *  number|null, text: string}|null}[], summary: string, empty: string}} data */
export function render(el, data) {
  const { rows } = data,
    width = Math.max(220, kit.size(el).width || 320),
    pair = rows.some((r) => r.theirs),
    height = Math.max(30, 2 * BOX.top + rows.length * (pair ? BOX.row : BOX.single));
  el.classList.toggle("is-empty", !rows.length);
  kit.set(el, { "data-empty": data.empty || "no drafts tested yet" });
  const state = kit.frame(el, { width, height, label: data.summary }, (svg) => ({ rows: svg.appendChild(kit.s("g")) }));
  kit.fit(state.rows, rows.length, () => kit.group("text", "rect", "rect", "text", "text"));
  layout(rows, width).forEach((at, i) => {
    const [label, mine, theirs, text, other] = state.rows.children[i].children, row = rows[i];
    kit.set(label, { x: 0, y: at.y + 12 });
    kit.write(label, row.label);
    kit.set(mine, { class: "wb-kind-mine", x: BOX.left, y: at.y + 1, width: Math.max(1, at.mine), height: 13 });
    kit.set(text, { x: BOX.left + at.mine + 6, y: at.y + 12 });
    kit.write(text, figure(row.mine));
    kit.set(theirs, {
      class: "wb-kind-theirs",
      display: row.theirs ? "inline" : "none",
      x: BOX.left,
      y: at.y + 16,
      width: Math.max(1, at.theirs ?? 0),
      height: 9,
    });
    kit.set(other, { class: "wb-mute", x: BOX.left + (at.theirs ?? 0) + 6, y: at.y + 24 });
    kit.write(other, row.theirs ? figure(row.theirs) : "");
  });
}

function figure({ value, text }) {
  return value === null ? "none tested" : `${value.toFixed(2)} · ${text}`;
}
