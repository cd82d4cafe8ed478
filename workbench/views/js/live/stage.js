/** Elements of the Live view: build them once, then draw the state of the view into them. */

import * as alerts from "../shared/alerts.js";
import * as axis from "../shared/axis.js";
import * as bar from "./bar.js";
import * as bars from "../shared/bars.js";
import * as bymethod from "./bymethod.js";
import * as cachestrip from "./cachestrip.js";
import * as card from "./card.js";
import * as chart from "../shared/linechart.js";
import * as controls from "../shared/controls.js";
import * as copying from "../shared/copying.js";
import * as tentative from "../shared/tentative.js";
import * as figures from "../shared/figures.js";
import * as frame from "../shared/frame.js";
import * as help from "./help.js";
import * as hindsight from "./hindsight.js";
import * as intro from "./intro.js";
import * as keyfigures from "./keyfigures.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as kvcache from "./kvcache.js";
import * as lanes from "./lane.js";
import * as mask from "./mask.js";
import * as memory from "./memory.js";
import { ownToken } from "../shared/store.js";
import * as panel from "../shared/panel.js";
import * as probes from "./probes.js";
import * as race from "./race.js";
import * as repeats from "./repeats.js";
import * as research from "./research.js";
import * as ribbon from "../shared/ribbon.js";
import * as roles from "../shared/roles.js";
import * as scrubber from "./scrubber.js";
import * as stalls from "./stalls.js";
import * as tables from "../shared/table.js";
import * as theories from "./theory.js";
import * as trees from "./tree.js";
import * as treebar from "./treebar.js";
import * as treelist from "./treelist.js";
import * as treemodel from "./treemodel.js";
import * as treetext from "./treetext.js";
import * as waterfall from "./waterfall.js";

/** Statuses of drafts that are no part of the text. */
const UNKEPT = new Set(["rejected", "discarded"]);
const STATUSES = ["accepted", "corrected", "bonus", "rejected", "discarded", "plain"], WINDOW = 8;
/** Rounds that the horizontal axis of a chart has at least. */
const LEAST_ROUNDS = 20;

/** Build the empty page inside `el`; return its elements by name. */
export function build(el, host) {
  const build = frame.builder(), { part, parts } = build, all = cards(build);
  const { opening, alerts, figures, why, byMethod, pairs, ribbon, tree, card } = all;
  const { lane, curves, theory, memory, scrubber } = all;
  frame.frame(
    el,
    build,
    { host, current: "Live", side: "Settings", sideClass: "has-bar", before: [opening], ...header(build) },
    part(
      "stage",
      "div",
      { className: "wb-stage" },
      ...[alerts, figures, why, byMethod, pairs, ribbon],
      h("div", { className: "wb-two" }, tree, card),
      ...[lane, curves, theory, research.build(build), memory, scrubber],
    ),
  );
  help.build(parts.keys);
  return parts;
}

/** Return the elements of a stage that shows a run, by name; a page arranges them. Their parts are the ones that `draw`
 *  expects. */
export function cards(build) {
  const { parts, part, card, tool, region } = build;
  const tokens = h(
    "span",
    { className: "wb-extra" },
    (parts.tokenKey = panel.legend(STATUSES.map((name) => [`is-${name}`, name]))),
    ...ribbon.switches(parts),
    copying.button(() => parts.textOf?.() ?? "", "the generated text"),
  );
  const phases = h(
    "span",
    { className: "wb-extra" },
    panel.legend(["draft", "verify", "overhead"].map((name) => [`wb-phase-${name}`, name])),
    part("waits", "span", { hidden: true }, panel.legend([["wb-phase-wait", "waiting for other runs"]])),
    tool("whatif", "Explain this speed", "Show the time per phase and the estimated speed with other draft lengths and trees"),
  );
  const overTime = (last) => panel.legend([["wb-key-windowed", `last ${WINDOW} rounds`], ["wb-key-cumulative", last]]);
  const bonus = panel.legend([["wb-with-bonus", "bonus"], ["wb-key-theory", "constant acceptance rate"]]);
  const of = "of the selected round", group = (label, more = {}) => ({ role: "group", "aria-label": label, ...more });
  const all = {
    opening: part("opening", "div", { className: "wb-opening", hidden: true }, intro.build(parts), race.build(parts)),
    alerts: build.alerts(),
    figures: part("figures", "div", { className: "wb-figures" }),
    why: part("why", "button", { type: "button", className: "wb-whyline", hidden: true, title: "Why this fast? Show every round on one time axis" }, part("whyText", "span"), " ", h("b", {}, "Why this fast?")),
    byMethod: part("byMethod", "div", { className: "wb-table wb-bymethod", hidden: true }),
    pairs: part(
      "pairs",
      "div",
      { className: "wb-pairs", hidden: true },
      part("pairsText", "span"),
      tool("pairsGo", "Measure more"),
    ),
    ribbon: card(
      "ribbon",
      "Tokens",
      tokens,
      part(
        "origin",
        "div",
        { className: "wb-origin", hidden: true },
        part("originText", "span"),
        part("originBack", "button", { type: "button", className: "wb-link" }),
      ),
      part("progress", "progress", { hidden: true }),
      region("ribbon", "wb-ribbon", {
        role: "listbox",
        "aria-label": "Generated tokens",
        "aria-orientation": "horizontal",
      }),
    ),
    tree: card(
      "tree",
      "Draft tree",
      treeTools(build),
      region("tree", "wb-tree", group(`Draft tree ${of}`)),
      region("mask", "wb-tree wb-mask", group(`Attention mask ${of}`, { hidden: "" })),
      region("treeList", "wb-tree wb-treelist", group(`Draft tree ${of}, as a list`, { hidden: "" })),
      region("cache", "wb-tree wb-cache", group(`KV cache ${of}`, { hidden: "" })),
      part("probes", "div", { className: "wb-probes", hidden: true }),
      treebar.build(parts),
    ),
    card: card("card", "Node", null, part("card", "div", { className: "wb-nodecard", tabIndex: 0 })),
    lane: build.chart("lane", "Wall clock", phases, "wb-lane"),
    curves: part(
      "curves",
      "div",
      { className: "wb-four" },
      build.chart("curve", "Acceptance", overTime("cumulative"), "wb-chart is-low"),
      build.chart("rate", "Tokens per second", null, "wb-chart is-lowest"),
      build.chart("position", "By position", null, "wb-chart"),
      build.chart("histogram", "Accepted per round", bonus, "wb-chart is-parts"),
    ),
    theory: part("positionTheory", "p", { className: "wb-theorywords" }),
    memory: memory.build(parts),
    scrubber: scrubber.build(parts, bar.build(parts)),
  };
  kit.set(parts.card, { role: "region", "aria-label": "The selected token" });
  return all;
}

/** Return the header's own buttons, and the dialog of its help; Vision has the same. */
export function header({ part, badge, opener, exporter }) {
  return {
    tools: [
      part("mark", "span", { className: "wb-badge", hidden: true }),
      part("runHere", "button", { type: "button", className: "wb-badge", hidden: true }, "Run"),
      badge("copy", "copy link", "Copy a link to these settings and this selection"),
      exporter("Save this run"),
      ...opener("Open a trace file: JSON or JSON Lines", "Trace file", ".json,.jsonl,application/json"),
    ],
    more: [badge("help", "?", "Keyboard shortcuts and glossary")],
    after: [part("keys", "dialog", { className: "wb-keys" })],
  };
}

function treeTools({ part, modes }) {
  const threshold = part("threshold", "input", { type: "range", min: 0, max: 0.5, step: 0.01, value: 0 });
  threshold.setAttribute("aria-label", "Hide untested nodes whose draft probability is below this");
  return h(
    "span",
    { className: "wb-extra" },
    modes("modes", "Show the draft as", ["spine", "levels", "mask", "list", "cache"].map((mode) => [mode, mode]), "mode"),
    h("label", { className: "wb-toggle wb-cut" }, "hide q <", part("thresholdText", "span", {}, "0"), threshold),
  );
}

/** Draw the state of the view. During a run, parts outside the viewport are drawn when they come into view or when the
 *  run ends, because drawing takes CPU time from decoding. Tree, card and charts also wait, unless the view is drawn
 *  `whole`: see `redraw.js`. */
export function draw(parts, view) {
  const { run, rounds, shown, figures } = view;
  write(parts.badgeText, view.badge);
  parts.badge.dataset.state = view.state;
  parts.badge.dataset.from = run?.from ?? "live";
  parts.badge.title = view.badge;
  controls.mark(parts.mark, view.mark);
  alerts.render(parts.alerts, view.alerts);
  keyfigures.render(parts.figures, {
    items: keyfigures.items(figures, view.plainFigures, view.definitions, view.speed, view.typical),
  });
  const shares = waterfall.shareWords(figures);
  parts.why.hidden = !shares;
  write(parts.whyText, shares);
  opening(parts, view);
  bymethod.render(parts.byMethod, { segments: view.segments, all: figures, range: view.range });
  repeats.render(parts, view.pairs);
  ribbon.render(parts.ribbon, {
    key: run?.channel ?? "",
    prompt: roles.turns(run?.header?.prompt_text ?? []),
    rounds,
    ghosts: view.ghosts,
    follow: view.follow,
    arriving: view.arriving,
    bands: view.segments,
    shown: shown === null ? null : { round: shown.round, token: shown.token ?? null, scroll: view.scroll },
  });
  STATUSES.forEach((name, i) => (parts.tokenKey.children[i].hidden = !view.ghosts && UNKEPT.has(name)));
  parts.tokenKey.lastChild.hidden = !rounds.some((r) => r.bonus_kind === "plain");
  parts.ribbon.classList.toggle("has-ghosts", view.ghosts);
  parts.ribbon.classList.toggle("is-empty", rounds.length === 0 && !view.arriving);
  kit.set(parts.ribbon, { "data-empty": view.waiting });
  progress(parts.progress, view);
  parts.origin.hidden = !view.family;
  write(parts.originText, view.family?.text ?? "");
  write(parts.originBack, view.family?.button ?? "");
  parts.originBack.hidden = !view.family?.button;
  write(parts.ribbonNote, view.status);
  parts.ribbonNote.title = view.status; // it may be cut
  const coming = view.follow ? view.arriving : null,
    round = coming?.round ?? (shown === null ? null : rounds[shown.round]),
    due = (name) => view.all || (view.whole && kit.inSight(parts[`${name}Card`]));
  if (due("tree")) tree(parts, view, round);
  if (due("card") && !coming)
    nodeCard(
      parts,
      round,
      shown,
      { barred: view.barredBranch, rules: run?.header?.rules, base: view.base },
      view.stalls.get(round?.index),
    );
  if (due("lane")) lane(parts, view);
  curves(parts, view, due);
  scrubber.render(parts, { ...view, scrolledBack: ribbon.isScrolledBack(parts.ribbon) });
}

function opening(parts, view) {
  const { arriving, shown, rounds } = view, coming = view.follow ? arriving : null;
  intro.render(parts, {
    open: view.intro,
    round: coming?.round ?? (shown === null ? null : rounds[shown.round]),
    arriving: coming,
  });
  if (view.all || !view.active || parts.race.hidden || kit.inSight(parts.race)) drawRace(parts, view);
  parts.opening.hidden = parts.intro.hidden && parts.race.hidden;
}

/** Draw the race of the view at its clock's time. */
export function drawRace(parts, view) {
  view.raceData ??= race.of(view, plainWords(view)); // the same at every frame of a replay
  race.render(parts, view.raceData, view.race);
  parts.raceLive.hidden = !view.run || view.run.from === "live" || !view.canRun;
}

function lane(parts, view) {
  const { rounds, shown } = view;
  lanes.render(parts.lane, {
    rounds,
    plain: view.plainRounds,
    stalls: view.stalls,
    plainStalls: view.plainStalls,
    none: plainWords(view),
    anchor: view.anchor,
    shown: shown?.round ?? -1,
    brush: view.brush,
    bands: view.segments,
  });
  parts.waits.hidden = !rounds.some((r) => r.waited_s);
  write(
    parts.laneNote,
    view.range
      ? lanes.totals(rounds, view.range)
      : rounds.length
        ? stalls.words(view.stalls, view.plainStalls) || "drag over rounds to sum them"
        : "",
  );
  tabulate(parts, "lane", rounds, parts.lane._frame.svg.getAttribute("aria-label"));
}

function tree(parts, view, round) {
  const { shown, arriving } = view,
    coming = arriving?.round === round ? arriving : null,
    modes = { mask: parts.mask, list: parts.treeList, cache: parts.cache };
  const drawn = !(view.mode in modes) || !round;
  for (const [mode, el] of Object.entries(modes)) el.hidden = drawn || view.mode !== mode;
  parts.tree.hidden = !drawn;
  frame.choose(parts.modes, view.mode, "mode");
  write(parts.thresholdText, view.threshold ? view.threshold.toFixed(2) : "0");
  const root = roles.word(rootText(view.run, view.rounds, coming ? view.rounds.length : (shown?.round ?? null), round));
  const node = coming ? null : (shown?.node ?? null),
    reveal = coming?.tested ?? null,
    drawing = {
      root,
      textOf: ribbon.tokenText,
      wordsOf: (nodes) => ribbon.words(nodes, roles.word),
      threshold: view.threshold,
    };
  const better = view.hindsight && drawn && !coming ? hindsight.of(round) : null;
  const awaited = drawn ? null : treemodel.awaited(round, reveal);
  if (drawn)
    trees.render(parts.tree, {
      round,
      ...drawing,
      node,
      reveal,
      mode: view.mode === "levels" ? "levels" : "spine",
      better: better?.state === "saved" ? `rank ${better.rank}` : "",
      empty: "The draft tree of the selected round",
    });
  else if (view.mode === "mask")
    mask.render(parts.mask, {
      round,
      node,
      awaited,
      label: treetext.label,
      words: ribbon.words(round.nodes, roles.word),
    });
  else if (view.mode === "cache")
    cachestrip.render(parts.cache, {
      round,
      cache: kvcache.of(round, view.rounds.slice(0, coming ? undefined : shown.round), {
        root,
        words: ribbon.words(round.nodes, roles.word),
        textOf: ribbon.tokenText,
      }),
      node,
      awaited,
      layout: view.kvLayout,
      dtype: view.run?.header?.dtype,
    });
  else
    treelist.render(parts.treeList, { tree: treemodel.model(round, drawing), node, awaited, words: treetext.sentence });
  probes.render(parts.probes, coming ? null : round);
  treebar.render(parts, drawn && round !== null, better && round ? hindsight.words(better, kit.visible) : "");
  kit.set(parts.treeHindsight, { "aria-pressed": Boolean(view.hindsight) });
  write(parts.treeTitle, treeTitle(round, view.methodTitle));
  write(
    parts.treeNote,
    coming
      ? testProgress(coming)
      : round
        ? treeNote(round, ["mask", "cache"].includes(view.mode) ? 0 : treemodel.model(round, { ...drawing, keep: node }).hidden)
        : "",
  );
}

function curves(parts, view, due) {
  const { rounds, shown, counted, range } = view;
  const at = shown?.round ?? 0, over = range ? `rounds ${range[0] + 1}–${range[1] + 1}` : "";
  const series = (points) =>
    overRounds(
      { name: `last ${WINDOW} rounds`, points, key: "windowed" },
      { name: "cumulative", points, key: "cumulative" },
    );
  const percent = (v) => (v === null || v === undefined ? "no drafts tested" : `${Math.round(100 * v)} %`),
    fixed = (v) => (v ? v.toFixed(0) : "–");
  const bands = view.segments.length > 1 ? view.segments : [],
    charted = due("curve") || due("rate"),
    marks = charted ? figures.changeMarks(rounds) : [],
    drawn = { bands, marks: charted && bands.length ? figures.settingMarks(rounds) : marks };
  if (due("curve")) {
    const acceptance = figures.acceptanceOverTime(rounds, WINDOW), end = acceptance.at(-1);
    const changes = marks.length
      ? `; changes: ${marks.map((c) => `${c.text} at round ${c.index + 1}`).join("; ")}`
      : "";
    const summary = `Acceptance over ${rounds.length} rounds: ${percent(end?.cumulative)} of tested drafts overall, ${percent(end?.windowed)} in the last ${WINDOW} rounds${changes}`;
    chart.render(parts.curve, {
      ...roundAxis(parts.curve, rounds.length, at),
      series: series(acceptance),
      y: chart.levels([0, 0.5, 1], 1, percent),
      ...drawn,
      summary,
    });
    write(
      parts.curveNote,
      end ? `accepted / tested: ${end.windowed?.toFixed(2) ?? "–"} · ${end.cumulative?.toFixed(2) ?? "–"}` : "",
    );
    tabulate(parts, "curve", rounds, summary);
  }
  if (due("rate")) {
    const speed = figures.speedOverTime(rounds, WINDOW),
      now = speed.at(-1),
      plain = view.plainFigures?.tokens_per_second ?? null;
    const summary = `Tokens per second over ${rounds.length} rounds: ${fixed(now?.cumulative)} overall, ${fixed(now?.windowed)} in the last ${WINDOW} rounds${plain ? `; plain decoding ${fixed(plain)}` : ""}`;
    const max = chart.ceiling(Math.max(1, plain ?? 0, ...speed.slice(2).map((p) => p.windowed ?? 0)));
    chart.render(parts.rate, {
      ...roundAxis(parts.rate, rounds.length, at),
      series: series(speed),
      y: chart.levels([0, max / 2, max], max < 10 ? 1 : 0, (v) => `${v.toFixed(1)} tokens/s`),
      level: plain ? { value: plain, text: `plain ${plain.toFixed(0)}` } : null,
      ...drawn,
      summary,
    });
    write(parts.rateNote, now ? `${fixed(now.windowed)} · ${fixed(now.cumulative)}` : "");
    tabulate(parts, "rate", rounds, summary);
  }
  const depths = due("position") || due("histogram") ? figures.acceptanceByDepth(counted) : [],
    theory = theories.overlay(counted, view.plainRounds, depths, stalls.notStalled);
  if (due("position")) {
    const rates = depths.map((d) => `${d.depth}: ${Math.round(100 * d.rate)} % of ${d.tested}`).join(", ");
    const theoryText = theory ? `. ${theories.words(theory)}` : "";
    const summary = `Acceptance rate by depth, given that all earlier drafts were accepted: ${rates || "no drafts tested yet"}${theoryText}`;
    bars.render(parts.position, {
      bars: depths.map((d) => ({
        label: `${d.depth}`,
        value: d.rate,
        text: d.rate.toFixed(2),
        low: d.low,
        high: d.high,
      })),
      max: 1,
      ticks: [0, 0.5, 1],
      axis: "depth in the draft tree",
      up: "acceptance rate",
      summary,
      overlay: theory && depths.map(() => theory.rate),
    });
    write(parts.positionNote, depths.length ? over || "if all earlier drafts were accepted" : "");
    write(parts.positionTheory, theories.words(theory));
    tabulate(parts, "position", counted, summary);
  }
  if (due("histogram")) {
    const counts = figures.histogram(counted);
    const summary = `Rounds by accepted drafts: ${counts.map((c) => `${c.accepted}: ${c.rounds}`).join(", ") || "none yet"}`;
    bars.render(parts.histogram, {
      bars: counts.map((c) => ({ label: `${c.accepted}`, value: c.rounds, text: `${c.rounds}`, part: c.bonus })),
      max: Math.max(1, ...counts.map((c) => c.rounds)),
      ticks: axis.countTicks(Math.max(1, ...counts.map((c) => c.rounds))),
      digits: 0,
      axis: "accepted drafts per round",
      up: "rounds",
      summary,
      overlay: theory && counts.map((c) => theory.counts[c.accepted] ?? 0),
    });
    write(parts.histogramNote, counted.length ? over || `n = ${counted.length}` : "");
    tabulate(parts, "histogram", counted, summary);
  }
}

/** Return the two lines of a quantity over rounds, each from points with `windowed` and `cumulative`.
 *  @param {...{name: string, points: object[], key: string}} lines  @returns {chart.Series[]} */
export function overRounds(...lines) {
  const looks = [{ colour: "accepted", wide: 1.8 }, { colour: "ink", dash: "6 3" }];
  const of = ({ points, key }) => points.map((p) => /** @type {chart.Point} */ ([p.index, p[key]]));
  return lines.map((one, i) => ({ name: one.name, points: of(one), ...looks[i] }));
}

/** Return the horizontal axis of a chart over rounds, with the shown round; a click selects a round. */
export function roundAxis(el, n, shown) {
  const ticks = n ? [{ at: 0, text: `round 1 – ${n}`, anchor: "start" }] : [];
  return {
    x: { from: 0, to: Math.max(LEAST_ROUNDS, n) - 1, ticks, words: (i) => `round ${i + 1}` },
    cursor: n ? shown : null,
    pick: (round) => kit.emit(el, "wb:pick", { round }),
  };
}

/** Fill a chart's table, if it is shown in place of the chart. */
function tabulate(parts, name, rounds, summary) {
  const el = parts[`${name}Table`];
  if (el.hidden) return;
  write(el.firstChild, summary);
  tables.render(el, tables.TABLES[name](rounds, figures));
}

function plainWords(view) {
  if (view.measuring) return `measuring the baseline: ${view.measuring.tokens} of ${view.measuring.of} tokens`;
  return view.noBaseline === "no baseline yet"
    ? "not measured yet; “Baseline” runs plain decoding with the same prompt and seed"
    : view.noBaseline;
}

function nodeCard(parts, round, shown, more, stalled) {
  const slow = stalled ? `stalled: ${stalled.toFixed(0)} times as long as similar rounds` : "",
    node = round && typeof shown.node === "number" && shown.node >= 0 ? shown.node : null;
  card.render(parts.card, { round, node, ...more });
  if (!round) return write(parts.cardTitle, "Node"), write(parts.cardNote, "");
  const of = `round ${round.index + 1}`; // while a draft is verified, the tree shows it and the card shows the previous round
  if (node !== null) {
    write(
      parts.cardTitle,
      `“${ribbon.visibleText(ribbon.legible(round).nodes.text[node])}” at depth ${round.nodes.depth[node]}`,
    );
    write(parts.cardNote, [round.nodes.status[node], of, slow].filter(Boolean).join(" · "));
  } else {
    const own = ownToken(round);
    write(
      parts.cardTitle,
      tentative.isPlacing(round)
        ? `Positions of round ${round.index + 1}`
        : own?.kind === "plain"
          ? `Plain decoding: “${ribbon.tokenText(round, own)}”`
          : own
            ? `After the accepted path: “${ribbon.tokenText(round, own)}”`
            : `Round ${round.index + 1}`,
    );
    write(parts.cardNote, [round.bonus_kind, own ? of : "", slow].filter(Boolean).join(" · "));
  }
}

function treeNote(round, hidden) {
  const tested = round.nodes.status.filter((x) => x !== "discarded").length, n = round.nodes.status.length;
  if (tentative.isPlacing(round)) return tentative.words(round);
  const probeText = probes.words(round), more = probeText ? ` · ${probeText}` : "";
  if (n === 0) return `no drafts: plain decoding${more}`;
  const hiddenText = hidden ? ` · ${hidden} hidden by the q threshold` : "";
  return `${n} node${n === 1 ? "" : "s"} · ${tested} tested, ${round.path.length} accepted${hiddenText}${more}`;
}

/** Return the title of the tree card: the round, and the method that drafted. Pure. @param {(method: string) =>
 *  string} title */
export function treeTitle(round, title = (method) => method) {
  return round ? `Draft tree, round ${round.index + 1}: ${title(round.method)}` : "Draft tree";
}

function testProgress({ round, tested }) {
  const n = round.nodes.status.length, tests = round.nodes.status.filter((x) => x !== "discarded").length;
  return `${n} drafted · ${tested ? `${tested} of ${tests} tested` : "being verified"}`;
}

/** Return the text of the token at the tree's root: the last one before `round`, after the first `at` rounds. */
export function rootText(run, rounds, at, round) {
  if (at === null) return "";
  const isDraft = round && !tentative.isPlacing(round),
    lastTentative = isDraft ? tentative.tentativeTokens(rounds.slice(0, at)).at(-1)?.token : null;
  const last = lastTentative ?? rounds.slice(0, at).findLast((r) => r.emitted.length)?.emitted.at(-1);
  if (last) return last.text;
  return run?.header?.prompt_text.at(-1) ?? "";
}

function progress(el, view) {
  el.hidden = view.progress === null;
  if (view.progress === null) return;
  el.setAttribute("aria-label", view.waiting);
  if (view.progress.total) {
    el.max = view.progress.total;
    el.value = view.progress.done;
  } else el.removeAttribute("value");
}
