/** Elements of the Sweep view: build them once, then draw the state of the page into them. */

import * as alerts from "../shared/alerts.js";
import * as controls from "../shared/controls.js";
import * as form from "../shared/form.js";
import * as frame from "../shared/frame.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as chart from "../shared/linechart.js";
import * as sweepchoice from "./choice.js";
import * as sweepgrid from "./grid.js";
import * as keptsweeps from "./keptsweeps.js";
import * as tables from "../shared/table.js";

/** Description of the cards, shown before the first measurement. */
const INTRO = [
  ["Cells", "one cell per pair of values: speed-up, τ, acceptance rate or tokens per second, with a 95 % confidence interval"],
  ["Along the rows", "the same values as lines, with τ and speed-up by theory for the measured acceptance rate"],
  ["Cell", "all metrics of one cell; its run can be opened in Live"],
  ["Reproduce", "the sweep as Python code and as a command"],
];

/** Build the empty view inside `el`; returns the parts by name. */
export function build(el, host) {
  const build = frame.builder(), { parts, part, card, select, tool } = build;
  const stage = part(
    "stage",
    "div",
    { className: "wb-stage" },
    build.alerts(),
    build.intro(INTRO),
    build.progress(),
    part("banner", "p", { className: "wb-banner", hidden: true }),
    part("otherwise", "p", { className: "wb-banner is-note", hidden: true }),
    card(
      "heat",
      "Cells",
      h("span", { className: "wb-extra" }, select("metric", "Metric of the cells"), part("scale", "span", { className: "wb-scale" })),
      part("grid", "div", { className: "wb-scroll wb-heat" }),
      part("failed", "ul", { className: "wb-failures" }),
    ),
    h(
      "div",
      { className: "wb-two" },
      build.chart("lines", "Along the rows", null, "wb-chart"),
      card(
        "cell",
        "Cell",
        tool("openRun", "Open the cell's run in Live ↗"),
        part("cell", "dl", { className: "wb-facts" }),
      ),
    ),
    card("kept", "Kept sweeps", null, part("kept", "ul", { className: "wb-keptsweeps" })),
    card(
      "code",
      "Reproduce",
      tool("codeCopy", "copy Python"),
      part("code", "pre", { className: "wb-codebox", tabIndex: 0 }),
      part("command", "pre", { className: "wb-codebox", tabIndex: 0 }),
    ),
  );
  const tools = [
    build.badge("copy", "copy link", "Copy a link to these axes and settings"),
    build.exporter("Save this sweep"),
  ];
  frame.frame(el, build, { host, current: "Sweep", side: "Settings of the sweep", tools }, stage);
  kit.set(parts.code, { role: "region", "aria-label": "Python code to reproduce the sweep" });
  kit.set(parts.command, { role: "region", "aria-label": "Command line to reproduce the sweep" });
  return parts;
}

/** Draw the state of the page. */
export function draw(page) {
  const { parts, sweep, catalogue, cells } = page, measuring = page.channel !== null;
  alerts.render(parts.alerts, page.errors);
  kit.write(
    parts.badgeText,
    [
      page.silent ? "NO ANSWER" : measuring ? "LIVE" : sweep ? ({ example: "RECORDED" }[page.from] ?? "MEASURED") : "",
      measuring || !sweep?.on ? catalogue?.device : sweep.on,
    ]
      .filter(Boolean)
      .join(" · "),
  );
  kit.set(parts.badge, {
    "data-state": page.silent ? "lost" : measuring ? "running" : sweep ? "recorded" : "idle",
    "data-from": sweep && !measuring ? "recorded" : "live",
  });
  parts.progress.hidden = !measuring && !(sweep && !sweep.complete);
  parts.banner.hidden = page.from !== "example" || measuring || !sweep;
  if (!parts.banner.hidden)
    kit.write(
      parts.banner,
      keptsweeps.banner(
        sweep,
        page.choice && catalogue
          ? keptsweeps.differences(sweepchoice.request(page.choice, catalogue, form.clamp), sweep.sweep)
          : [],
      ),
    );
  parts.otherwise.hidden = !sweep?.note;
  kit.write(parts.otherwise, sweep?.note ?? "");
  parts.keptCard.hidden = !page.kept.length;
  kit.write(parts.keptNote, "measured earlier by this app; one line per sweep and set of conditions, such as the machine");
  keptsweeps.render(parts.kept, page.kept, page.opened);
  if (!parts.progress.hidden) {
    const text = page.silent
      ? `no answer from the app for ${page.silent} s: check that it is still running. Stop ends the measurement; finished cells are kept`
      : !sweep
        ? "starting …"
        : measuring
          ? sweep.text
          : "stopped; finished cells are kept. Measure continues with the rest";
    jobs.progress(page, {
      text,
      note: sweep ? `${sweep.done} of ${sweep.total} cells${measuring ? jobs.remaining(sweep.left_s) : ""}` : "",
      done: sweep?.done,
      total: sweep?.total,
      label: "Cells measured",
    });
  }
  for (const name of ["heatCard", "codeCard"]) parts[name].hidden = !sweep;
  const some = Boolean(sweep?.done || [...cells.values()].some((cell) => cell.figures?.tau)),
    metrics = catalogue?.metrics ?? page.metrics;
  parts.stage.querySelector(".wb-two").hidden = !some;
  parts.intro.hidden = Boolean(sweep) || measuring;
  parts.empty.nextSibling.hidden = !catalogue;
  kit.write(
    parts.empty,
    catalogue
      ? "Press Measure: the grid fills cell by cell, each compared with plain decoding. Click a cell for details."
      : "The backend is starting …",
  );
  for (const control of [parts.export, parts.copy]) control.disabled = !(control === parts.copy ? catalogue : some);
  if (metrics)
    controls.select(
      parts.metric,
      Object.entries(metrics).map(([value, text]) => ({ value, text })),
      page.metric,
    );
  if (!sweep?.sweep) return;
  const title = metrics[page.metric],
    range = sweepgrid.render(parts.grid, { sweep, cells, metric: page.metric, title, chosen: page.chosen });
  kit.write(
    parts.scale,
    some && Number.isFinite(range.low)
      ? `${sweepgrid.words(page.metric, range.low)} to ${sweepgrid.words(page.metric, range.high)}`
      : "",
  );
  const before = sweep.kept ? `, ${sweep.kept} measured before` : "";
  kit.write(
    parts.heatNote,
    `${sweep.done} of ${sweep.total} cells${before} · mean (geometric for speeds), 95 % confidence interval, n`,
  );
  failures(parts.failed, [...cells.values()]);
  kit.write(parts.code, sweep.code ?? "");
  kit.write(parts.command, sweep.command ?? "");
  if (!some) return;
  lines(page, title, catalogue?.theory ?? page.theory ?? {});
  details(page, metrics, catalogue?.theory ?? page.theory ?? {});
}

function failures(el, cells) {
  const errors = [...new Set(cells.filter((cell) => cell.error).map((cell) => cell.error))];
  el.hidden = !errors.length;
  kit.resize(el, errors.length, () => h("li"));
  errors.forEach((text, i) => kit.write(el.children[i], `✕ ${text}`));
}

function details(page, metrics, theory) {
  const { parts } = page, cell = page.cells.get(page.chosen);
  parts.openRun.disabled = !cell?.run || !page.job;
  parts.openRun.title = cell
    ? cell.run && page.job
      ? ""
      : page.from === "example"
        ? "the example has metrics but no runs: press Measure to get a run per cell"
        : "this cell has no run yet"
    : "choose a cell first";
  kit.write(parts.cellNote, cell ? cell.state : "");
  const rows = !cell
    ? [["", "Choose a cell to see its metrics and open its run."]]
    : [
        ["setting", cell.setting],
        ...Object.entries(page.sweep.sweep.axes).map(([name, values], i) => [
          name.replaceAll("_", " "),
          `${values[cell.at[i]]}`,
        ]),
        ...(cell.error
          ? [["failed", cell.error]]
          : [...Object.entries(metrics), ...Object.values(theory).flatMap(Object.entries)].map(([name, title]) => [
              title,
              cell.figures?.[name]
                ? `${sweepgrid.words(name, cell.figures[name].value)} (${sweepgrid.interval(name, cell.figures[name])})`
                : "–",
            ])),
        ...(cell.seconds ? [["took", `${cell.seconds.toFixed(1)} s on ${cell.worker || "this backend"}`]] : []),
        ...(cell.machine?.date
          ? [["measured", `${cell.machine.date}, system load before the start ${cell.machine.load ?? "unknown"}`]]
          : []),
      ];
  kit.resize(parts.cell, 2 * rows.length, (i) => h(i % 2 ? "dd" : "dt"));
  rows.forEach(([name, value], i) => {
    kit.write(parts.cell.children[2 * i], name);
    kit.write(parts.cell.children[2 * i + 1], value);
  });
}

/** Draw the chart: the metric along the first axis, one line per value of the second, with intervals. */
function lines(page, title, predicted) {
  const { parts, sweep, metric } = page,
    theory = Object.entries(predicted[metric] ?? {}),
    axes = Object.entries(sweep.sweep.axes),
    [rowName, rowValues] = axes[0],
    [columnName = "", columnValues = [""]] = axes[1] ?? [];
  const byPlace = new Map([...page.cells.values()].map((cell) => [cell.place, cell]));
  const figures = (i, j) => byPlace.get(axes[1] ? `${i},${j}` : `${i}`)?.figures;
  const series = columnValues
    .map((value, j) => ({
      name: columnName ? `${columnName.replaceAll("_", " ")} ${value}` : title,
      value: columnName ? `${value}` : "–",
      points: rowValues
        .map((row, i) => ({
          row,
          found: figures(i, j)?.[metric],
          predicted: theory.map(([name]) => figures(i, j)?.[name]?.value ?? null),
        }))
        .filter((p) => p.found),
    }))
    .filter((s) => s.points.length);
  const best = series
    .flatMap((s) => s.points.map((p) => ({ ...p, name: s.name })))
    .reduce((a, b) => (a && a.found.value >= b.found.value ? a : b), null);
  const summary = best
    ? `${title} along ${rowName.replaceAll("_", " ")}: highest ${sweepgrid.words(metric, best.found.value)} at ${best.row}${columnName ? `, ${best.name}` : ""}`
    : "not measured yet";
  kit.write(parts.linesNote, title);
  const table = parts.linesTable;
  kit.write(table.firstChild, `${summary}.`);
  if (!table.hidden)
    tables.render(table, {
      head: [
        rowName.replaceAll("_", " "),
        columnName.replaceAll("_", " ") || "series",
        title,
        "low",
        "high",
        "n",
        ...theory.map(([, words]) => words),
      ],
      rows: series.flatMap((s) =>
        s.points.map(({ row, found, predicted: expected }) => [
          `${row}`,
          s.value,
          sweepgrid.words(metric, found.value),
          sweepgrid.words(metric, found.low),
          sweepgrid.words(metric, found.high),
          found.n,
          ...expected.map((value) => sweepgrid.words(metric, value)),
        ]),
      ),
    });
  const { places, x } = sweepgrid.axisOf(rowName.replaceAll("_", " "), rowValues);
  const placed = (s, of) => s.points.map((p) => [places[rowValues.indexOf(p.row)], ...of(p)]);
  const measured = series.map((s, i) => ({
    ...chart.look(i),
    name: s.name,
    points: placed(s, ({ found: { value, low, high } }) => [value, low, high]),
    end: s.name,
  }));
  // Theory lines are thin and without marks; one name stands for the theory lines of all series.
  const expected = theory.flatMap(([, words], k) =>
    series.map((s, i) => ({
      name: `${s.name}, ${words}`,
      points: placed(s, (p) => [p.predicted[k]]),
      colour: chart.look(i).colour,
      dash: k ? "8 3 2 3" : "2 3",
      wide: 1.2,
      end: i ? "" : words,
    })),
  );
  const all = [...measured, ...expected];
  const values = all.flatMap((s) => s.points.flatMap(([, value, , high]) => [value, high]));
  const y = chart.levels(chart.steps(values), 0, (v) => sweepgrid.words(metric, v));
  const level = metric === "speedup" ? { value: 1, text: "" } : null;
  chart.render(parts.lines, { series: all, x, y, level, summary, height: 240 });
}
