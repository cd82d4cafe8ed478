/** Tree-attention mask of a round: each drafted token (row) attends to the committed text (first column), its ancestors
 *  and itself. With this mask one forward pass of the target verifies every branch. */

import * as kit from "../shared/kit.js";

const CELL = 15, SMALL = 6, LABELS = 92;

/** Return, for each node, the nodes it attends to: its ancestors and itself. Pure. */
export function rows(parents) {
  const seen = [];
  parents.forEach((parent, i) => seen.push([...(parent < 0 ? [] : seen[parent]), i]));
  return seen;
}

/** Return the path data of unit squares in row `y` at the columns `xs`. Pure. */
export function squares(xs, y, cell) {
  const size = cell - 1;
  return xs.map((x) => `M${x * cell} ${y * cell}h${size}v${size}h${-size}Z`).join("");
}

/** Draw into `el`; hovering or selecting a row marks it and its ancestors.
 *  @param {{round: object, node: number|string|null, awaited?: Set<number>, label: (text: string, chars: number) =>
 *    string, words?: string[]}} data
 *    `awaited`: nodes whose test result is not shown yet */
export function render(el, data) {
  const { nodes } = data.round, seen = rows(nodes.parents), n = seen.length;
  const cell = n <= 18 ? CELL : n <= 40 ? 11 : SMALL, named = cell >= 11, left = named ? LABELS : 8, top = 18;
  const width = left + (n + 1) * cell + 8, height = top + n * cell + 6;
  const label = `Attention mask of round ${data.round.index + 1}: ${n} drafted tokens; each attends to the committed text, its ancestors and itself`;
  const state = kit.frame(el, { width, height, label }, (svg) => ({
    note: svg.appendChild(kit.s("text", { class: "wb-mute", x: 0, y: 11 })), rows: svg.appendChild(kit.s("g")),
  }));
  const tokens = named ? "" : ` · ${n} tokens`;
  kit.write(
    state.note,
    n ? `row: a drafted token · column: a token that it attends to${tokens}` : "no drafts in this round",
  );
  kit.fit(state.rows, n, () => kit.group("rect", "path", "text"));
  const chosen = typeof data.node === "number" ? new Set(seen[data.node]) : new Set();
  seen.forEach((ancestors, i) => {
    const row = state.rows.children[i], [hit, path, text] = row.children;
    kit.set(row, {
      class: `wb-maskrow is-${data.awaited?.has(i) ? "pending" : nodes.status[i]}${i === data.node ? " is-chosen" : chosen.has(i) ? " is-ancestor" : ""}`,
      transform: `translate(0 ${top + i * cell})`,
    });
    row.dataset.node = i;
    kit.set(hit, { class: "wb-hit", x: 0, y: 0, width, height: cell });
    kit.set(path, { transform: `translate(${left} 0)`, d: squares([0, ...ancestors.map((a) => a + 1)], 0, cell) });
    kit.set(text, {
      class: "wb-code wb-tick",
      x: 0,
      y: cell - 3,
      display: named ? "inline" : "none",
      style: `font-size: ${Math.min(12, cell - 1)}px`,
    });
    kit.write(text, data.label((data.words ?? nodes.text)[i], 11));
  });
}
