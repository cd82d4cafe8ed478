/** Numbers of a drawing as a table, an accessible alternative. */

const percent = (v) => (v === null || v === undefined ? "–" : `${Math.round(100 * v)} %`);
const ms = (s) => (1e3 * s).toFixed(1);

/** Head and rows of each table, by the name of its card. Pure. */
export const TABLES = {
  lane: (rounds) => {
    const waits = rounds.some((r) => r.waited_s);
    return {
      head: [
        "round",
        "tokens",
        "draft ms",
        "verify ms",
        "overhead ms",
        ...(waits ? ["waiting for other runs, ms"] : []),
      ],
      rows: rounds.map((r) => [
        r.index + 1,
        r.emitted.length,
        ms(r.draft_s),
        ms(r.verify_s),
        ms(r.overhead_s),
        ...(waits ? [ms(r.waited_s ?? 0)] : []),
      ]),
    };
  },
  curve: (rounds, figures) => ({
    head: ["round", "accepted, last 8 rounds", "accepted, cumulative", "change"],
    rows: figures
      .acceptanceOverTime(rounds, 8)
      .map((p) => [
        p.index + 1,
        percent(p.windowed),
        percent(p.cumulative),
        figures.changeMarks([rounds[p.index]])[0]?.text ?? "",
      ]),
  }),
  rate: (rounds, figures) => ({
    head: ["round", "last 8 rounds, tok/s", "cumulative, tok/s"],
    rows: figures
      .speedOverTime(rounds, 8)
      .map((p) => [p.index + 1, p.windowed?.toFixed(1) ?? "–", p.cumulative?.toFixed(1) ?? "–"]),
  }),
  position: (rounds, figures) => ({
    head: ["depth", "tested", "accepted", "acceptance rate", "95 % interval"],
    rows: figures
      .acceptanceByDepth(rounds)
      .map((d) => [d.depth, d.tested, d.accepted, percent(d.rate), `${percent(d.low)} – ${percent(d.high)}`]),
  }),
  histogram: (rounds, figures) => ({
    head: ["accepted drafts", "rounds", "rounds with a bonus token"],
    rows: figures.histogram(rounds).map((b) => [b.accepted, b.rounds, b.bonus]),
  }),
};

/** Draw into `el`; rows are kept and updated. @param {any} el  @param {{head: string[], rows: (string|number)[][]}}
 *  data */
export function render(el, { head, rows }) {
  const table = el.querySelector("table") ?? el.appendChild(document.createElement("table"));
  const top = table.tHead ?? table.createTHead(), body = table.tBodies[0] ?? table.createTBody();
  fill(top.rows[0] ?? top.insertRow(), head, "th");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, i) => fill(body.rows[i] ?? body.insertRow(), cells, "td"));
}

function fill(row, cells, tag) {
  while (row.children.length > cells.length) row.lastChild.remove();
  cells.forEach((text, i) => {
    const cell = row.children[i] ?? row.appendChild(document.createElement(tag));
    if (cell.textContent !== `${text}`) cell.textContent = text;
  });
}
