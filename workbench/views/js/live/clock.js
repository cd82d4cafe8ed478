/** Wall clock of several traces; time 0 is the end of each prefill. */

import { timeTicks } from "../shared/axis.js";
import * as kit from "../shared/kit.js";
import * as lane from "./lane.js";

const LABEL = 18, BAR = 20, ROW = 50, TOP = 4, AXIS = 22;

/** Place the rounds of all traces on one time scale. Pure.
 *  @param {{name: string, rounds: object[], label?: string}[]} traces  @param {(round: object) => {kind: string, start:
 *    number, end: number}[]} stretches
 *  @returns {{rows: object[], ticks: {x: number, text: string}[], seconds: number}} */
export function layout(traces, width, stretches) {
  const length = (rounds) =>
    rounds.length ? rounds.at(-1).started_s + rounds.at(-1).seconds - rounds[0].started_s : 0;
  const seconds = Math.max(...traces.map((t) => length(t.rounds)), 1e-9), scale = width / seconds;
  const rows = traces.map(({ name, rounds, label }, i) => {
    const zero = rounds[0]?.started_s ?? 0, x = (t) => (t - zero) * scale;
    const segments = rounds.flatMap((r) =>
      stretches(r).map((p) => ({ kind: p.kind, x: x(p.start), width: Math.max(0, (p.end - p.start) * scale) })),
    );
    const boxes = rounds.map((r) => ({
      round: r.index,
      x: x(r.started_s),
      width: r.seconds * scale,
      emitted: r.emitted.length,
    }));
    return {
      name,
      label,
      y: TOP + ROW * i,
      segments,
      boxes,
      seconds: length(rounds),
      tokens: rounds.reduce((a, r) => a + r.emitted.length, 0),
    };
  });
  return { rows, ticks: timeTicks(seconds, scale), seconds };
}

/** Return the label of a trace: the given text, else its tokens, seconds and tokens per second. Pure. */
export function words({ label, tokens, seconds }) {
  return (
    label ??
    `${tokens} tokens · ${seconds.toFixed(2)} s${seconds > 0 ? ` · ${(tokens / seconds).toFixed(0)} tokens/s` : ""}`
  );
}

/** Draw the clock into `el`. @param {any} el  @param {{traces: {name: string, rounds: object[]}[], selection: object,
 *  note: Element}} data  `selection`: the selected `round` of one `trace`, or one round per trace in `rounds` */
export function render(el, { traces, selection, note }) {
  const width = Math.max(260, kit.size(el).width || 700), drawn = layout(traces, width - 2, lane.phasesOf);
  const height = TOP + ROW * drawn.rows.length + AXIS,
    summary = drawn.rows.map((row) => `${row.name}: ${words(row)}`).join("; ");
  const state = kit.frame(el, { width, height, label: `Wall clock. ${summary}` }, (svg) => ({
    ticks: svg.appendChild(kit.s("g")),
    rows: svg.appendChild(kit.s("g")),
  }));
  kit.fit(state.rows, drawn.rows.length, () => kit.group("text", "text", "g", "g"));
  drawn.rows.forEach((row, i) => {
    const [name, figures, segments, boxes] = state.rows.children[i].children;
    kit.set(name, { x: 1, y: row.y + 13 });
    kit.write(name, row.name);
    kit.set(figures, { x: width - 1, y: row.y + 13, "text-anchor": "end", class: "wb-mute" });
    kit.write(figures, words(row));
    kit.fit(segments, row.segments.length, () => kit.s("rect", { height: BAR }));
    row.segments.forEach((p, k) =>
      kit.set(segments.children[k], {
        class: `wb-fill-${p.kind}`,
        x: (p.x + 1).toFixed(2),
        y: row.y + LABEL,
        width: p.width.toFixed(2),
      }),
    );
    kit.fit(boxes, row.boxes.length, () => {
      const box = kit.s("rect", { height: BAR + 4, class: "wb-hit" });
      box.append(kit.s("title"));
      return box;
    });
    row.boxes.forEach((b, k) => {
      const shown = selection.rounds
          ? selection.rounds[i] === b.round
          : selection.round === b.round && (selection.trace ?? i) === i,
        hit = boxes.children[k];
      kit.set(hit, {
        x: b.x.toFixed(2),
        y: row.y + LABEL - 2,
        width: Math.max(2, b.width).toFixed(2),
        class: `wb-lanebox${shown ? " is-shown" : ""}`,
        "data-round": b.round,
        "data-trace": i,
      });
      kit.write(hit.firstChild, `${row.name}, round ${b.round + 1}: ${b.emitted} tokens`);
    });
  });
  kit.fit(state.ticks, drawn.ticks.length, () => kit.group("line", "text"));
  drawn.ticks.forEach((t, i) => {
    const [line, text] = state.ticks.children[i].children, last = t.x > width - 40;
    kit.set(line, { class: "wb-grid", x1: t.x + 1, x2: t.x + 1, y1: TOP + LABEL, y2: height - AXIS + 4 });
    kit.set(text, {
      class: "wb-mute",
      x: t.x + 1,
      y: height - 5,
      "text-anchor": last ? "end" : i ? "middle" : "start",
    });
    kit.write(text, t.text);
  });
  const at = traces[selection.trace ?? 0]?.rounds[selection.round];
  kit.write(
    note,
    at
      ? `round ${at.index + 1}: ${at.emitted.length} tokens in ${(1e3 * at.seconds).toFixed(1)} ms`
      : "time since the end of each prefill",
  );
}
