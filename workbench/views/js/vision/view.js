/** From the state of the tab to what its drawings show. Pure: nothing here touches the DOM. */

import * as figures from "../shared/figures.js";
import { ownToken } from "../shared/own.js";
import * as ribbon from "../shared/ribbon.js";
import * as selection from "../live/selection.js";
import * as speedup from "../shared/speedup.js";
import * as store from "../shared/store.js";
import * as view from "../live/view.js";
import * as visiondata from "./data.js";
import * as words from "../live/words.js";

const EMPTY = "Choose a picture: from the gallery, a file, the clipboard, or draw one.";

/** @param {object} page  the state that `vision.mount` holds  @param {number} now  milliseconds */
export function of(page, now) {
  const { run, vision } = page,
    d = visiondata,
    base = view.of(page, now),
    { rounds, shown } = base,
    second = page.beside.run,
    on = page.on === "beside" && second ? page.beside : page;
  const all = second ? store.visible(second) : [],
    arriving = second && view.arrivingIn(page.beside, all, now),
    theirs = arriving ? all.slice(0, -1) : all,
    lexicon = vision.lexicon;
  const at = page.on === "beside" ? selection.shown(page.selection, theirs) : shown;
  const main = { ...lane(page, page, rounds, page.on === "beside" ? null : shown, lexicon), arriving: base.arriving };
  const beside = second && { ...lane(page, page.beside, theirs, page.on === "beside" ? at : null, lexicon), arriving };
  const chosen = on === page ? main : beside,
    held = chosen.rounds,
    seen = d.sight(on.run?.header, held, at?.round ?? held.length - 1);
  const token = chosen.tokenOf(at),
    maps = {
      target: d.maps(on.run?.attribution, "target", vision.how),
      drafter: d.maps(on.run?.attribution, "drafter", vision.how),
    };
  const patch = vision.patch === null ? null : vision.patch + d.span(seen.pictures, vision.picture)[0];
  const whose = vision.over === "drafter" ? "drafter" : "target";
  for (const one of /** @type {any[]} */ ([main, beside])) {
    if (!one) continue;
    const all = d.maps(one.run?.attribution, whose, vision.how) ?? d.maps(one.run?.attribution, "target", vision.how);
    one.lean = patch === null || !all ? null : d.leanOn(all, patch);
  }
  const marks = mergeMarks(
      (second || main.bands.length < 2 ? figures.changeMarks : figures.settingMarks)(rounds),
      d.pictureMarks(rounds),
    ),
    word = token === null ? "" : d.wordOf(held, token);
  const traces = {
    trace: { rounds: held, attribution: on.run?.attribution, asked: on.run?.asking, done: on.run?.explained ?? null },
    seen,
  };
  return {
    ...base,
    lexicon,
    marks,
    how: vision.how,
    history: history(page),
    second: beside,
    main,
    shown: base.shown ?? null,
    items: d.items(
      {
        trace: { rounds, attribution: run?.attribution },
        figures: base.figures,
        seen: d.sight(run?.header, rounds, shown?.round ?? rounds.length - 1),
        name: main.name,
      },
      beside && {
        trace: { rounds: theirs, attribution: second.attribution },
        figures: figures.summary(theirs),
        seen: {},
        name: beside.name,
      },
      speed(page, base),
      base.definitions,
    ),
    ...drawings(page, traces, { maps, token, word, patch: vision.patch, at }),
    pointed: pointed(page, traces, maps, patch, whose),
    line: { rounds: held, shown: at ?? null },
    on: { ...node(held, at), rules: on.run?.header?.rules },
    kindRows: lexicon ? d.kindRows({ rounds }, second && { rounds: theirs }, lexicon) : [],
    board: vision.board,
    keepChosen: seen.since < 0 ? null : { tokens: seen.n_drafter },
    waiting: run ? base.waiting : vision.empty || base.waiting,
    barredBranch: "a run with a picture cannot be continued from a token",
    alerts: [
      ...base.alerts,
      ...(second
        ? words.alerts([], second, theirs).map((a) => ({ ...a, message: `${beside.name}: ${a.message}` }))
        : []),
    ],
  };
}

/** One caption: a run with what it is called, its words and their kinds. */
function lane(page, seat, rounds, shown, lexicon) {
  const d = visiondata, run = seat.run, starts = [];
  let n = 0;
  for (const r of rounds) starts.push(n), (n += r.emitted.length);
  const method = rounds.at(-1)?.method ?? run?.header?.method ?? (run && seat.choice?.method) ?? "",
    title = page.catalogue?.methods.find((x) => x.name === method)?.title ?? method;
  return {
    run,
    rounds,
    name: title || "the drafter",
    key: run?.channel ?? "",
    at: shown,
    follow: selection.follows(page.selection) && !page.selection.hover,
    grounded: run ? d.grounded({ rounds, attribution: run.attribution }) : null,
    kinds: lexicon ? d.wordKinds(rounds, lexicon) : rounds.flatMap((r) => r.emitted.map(() => d.OTHER)),
    marks: d.pictureMarks(rounds),
    bands: figures.methodSegments(
      rounds, (name) => page.catalogue?.methods.find((x) => x.name === name)?.title || name,
    ),
    tokenOf: (at) =>
      at && at.token !== null && at.token !== undefined && rounds[at.round] ? starts[at.round] + at.token : null,
  };
}

/** Changes of settings and of pictures, one mark a round. Pure. */
export function mergeMarks(settings, pictures) {
  const all = new Map();
  for (const { index, text } of [...settings, ...pictures])
    all.set(index, all.has(index) ? `${all.get(index)}, ${text}` : text);
  return [...all].map(([index, text]) => ({ index, text })).sort((a, b) => a.index - b.index);
}

/** Two runs that share the engine's rounds have no times of their own. Pure. */
export function speed(page, base) {
  const shared = page.beside.run && page.beside.run.from === "live";
  if (!shared) return base.speed;
  return speedup.figure({
    mine: null,
    plain: null,
    none: "two runs share the engine: run one drafter alone, and the baseline, to measure",
  });
}

function drawings(page, { trace, seen }, { maps, token, word, patch, at }) {
  const { vision } = page, d = visiondata, i = Math.min(vision.picture, Math.max(0, seen.pictures.length - 1));
  const own = vision.fresh || !seen.pictures.length, there = seen.pictures[i], span = d.span(seen.pictures, i);
  const rows = there?.rows ?? vision.rows,
    cols = there?.cols ?? vision.cols,
    alt = vision.alt || "The picture of the prompt";
  const count = seen.pictures.length > 1 ? `picture ${i + 1} of ${seen.pictures.length} · ` : "", n = rows * cols;
  const frame = (url, more) => ({ url, rows, cols, alt, chosen: patch, empty: EMPTY, ...more });
  const url = own ? vision.url : there.url,
    newest = own || there.url === latest(page)?.url,
    edits = vision.scope === "drafter" ? new Map([...vision.both, ...vision.drafter]) : vision.both;
  const picture = {
    title: own && vision.fresh ? "Picture, for the next run" : "Picture",
    note: url ? `${count}${rows} × ${cols} patches` : "",
    facts: painting(vision, page),
    drawing: frame(url, { edits: newest ? edits : new Map(), paints: Boolean(vision.tool) }),
  };
  const leaning = (who) => d.leanOf(maps[who], token, span),
    asked = word ? `for “${word}”` : token === null ? "point at a word" : "for a token without text",
    none = "The picture, once it was read.";
  const blank = (who) =>
    trace.attribution
      ? eyeless(who === "drafter" ? seen : null)
      : trace.asked
        ? workingOut(trace.done)
        : "known when the run has ended";
  const side = (who, sees, url, more) => {
    const mode = vision.mode[who], heat = mode === "leans" ? leaning(who) : null;
    const title = mode === "leans" ? `The ${who} leans on` : `The ${who} sees`;
    return {
      mode,
      title,
      note: mode === "leans" ? (maps[who] ? asked : blank(who)) : sees,
      facts: more.facts,
      drawing: frame(url, {
        empty: none,
        alt: `${title}: ${mode === "leans" ? asked : sees}. ${alt}`,
        ...(mode === "leans" ? { heat: heat ?? [] } : more.over),
      }),
    };
  };
  const shownUrl = seen.shown[i]?.url ?? "",
    mode = d.mode(seen),
    cut = (list) => list?.map((p) => p - span[0]).filter((p) => p >= 0 && p < n) ?? null;
  const weights = mode === "queries" ? queryHeat(seen.weights, vision.query, span) : null,
    gate = Object.entries(seen.gate ?? {});
  const over = {
    kept: mode === "kept" ? cut(seen.kept) : null,
    blocks: mode === "pooled" ? seen.blocks.map(cut).filter((b) => b.length) : null,
    none: mode === "none",
    heat: weights,
  };
  const known = seen.since >= 0, waits = !known && store.isActive(page.run);
  return {
    picture,
    at,
    target: side("target", known ? `all ${seen.n_target}` : "", there?.url ?? "", {
      over: {},
      facts: known
        ? `${seen.n_target} vision tokens · ${d.bytes(seen.target_bytes)} of keys and values · prefill ${d.ms(seen.target_prefill_s)}`
        : "",
    }),
    drafter: {
      ...side("drafter", waits ? "" : d.sees(seen), shownUrl, {
        over,
        facts: known
          ? `${seen.n_drafter} vision tokens · ${d.bytes(seen.drafter_bytes)} of keys and values · prefill ${d.ms(seen.drafter_prefill_s)}${seen.compressor ? ` · ${d.way(seen.compressor)}` : ""}`
          : "",
      }),
      queries: vision.mode.drafter === "sees" && mode === "queries" ? seen.weights.length : 0,
      query: vision.query,
      gate,
    },
  };
}

/** How far the explanation of a run is. Nothing is done while a comparison is timed, or while another run is explained.
 *  Pure. @param {number|null} done  share */
export function workingOut(done) {
  if (done === null) return "being worked out …";
  return done === 0 ? "waits for its turn …" : `being worked out: ${Math.round(100 * done)} %`;
}

/** Why it is not known on which patches a model leans. Pure. @param {object|null} seen  what the drafter sees; null:
 *  the target */
export function eyeless(seen) {
  if (!seen) return "not recorded";
  if (seen.since < 0 || seen.n_drafter) return "not recorded for this drafter";
  return seen.compressor ? "no patch: the target's features tell it of the picture" : "nothing: it sees no picture";
}

/** The picture that the target saw last: what is painted, is painted on it. */
function latest({ run, vision }) {
  const rounds = run ? store.visible(run) : [];
  return visiondata.sight(run?.header, rounds, rounds.length).pictures[vision.picture];
}

/** What the compressor's queries attend to, 0–1: one of them, or all added up. Pure. */
export function queryHeat(weights, query, within) {
  const [start, end] = within;
  const rows = query === null || !weights[query] ? weights : [weights[query]];
  const sum = Array.from({ length: end - start }, (_, p) =>
      rows.reduce((total, row) => total + (row[start + p] ?? 0), 0),
    ),
    most = Math.max(...sum, 0);
  return sum.map((w) => (most ? w / most : 0));
}

function painting(vision, page) {
  const n = vision.both.size + vision.drafter.size, edits = n ? `${n} patch${n === 1 ? "" : "es"} painted` : "";
  if (!vision.tool) return edits;
  const when = store.isActive(page.run) ? "with the next round" : "with the next run";
  return [
    `${n ? `painting: ${vision.tool}` : `drag over what to ${vision.tool}`}, ${vision.scope === "drafter" ? "seen by the drafter alone" : "seen by both"} ${when}`,
    edits,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** What is said of the patch that is pointed at. */
function pointed(page, { trace, seen }, maps, patch, whose) {
  const { vision } = page, d = visiondata;
  if (patch === null && vision.mode.drafter === "leans" && trace.attribution && !maps.drafter)
    return seen.since >= 0 && !seen.n_drafter
      ? `A drafter without vision tokens leans on no patch: ${seen.compressor ? "this one reads the target's features of the words, and they carry the picture" : "it guesses from the words alone"}.`
      : "On which patches this drafter leans was not recorded with this run; the target's side says what a word rests on.";
  if (patch === null) return "Point at a word for its patches, at a patch for its words.";
  const cols = seen.pictures[vision.picture]?.cols ?? vision.cols,
    there = d.place(vision.patch, cols).replace(/^r/, "R"),
    all = maps[whose] ?? maps.target;
  if (!all) return `${there}. Which words lean on it is known when the run has ended.`;
  const words = d.leaning(trace.rounds, all, patch);
  return `${there}: ${words.length ? `${maps[whose] ? `the ${whose}'s` : "the target's"} words that lean on it: ${words.map((w) => w.text).join(", ")}` : "no word leans on it"}.`;
}

function node(rounds, at) {
  const round = at ? rounds[at.round] : null;
  if (!round) return { round: null, node: null, title: "Word", note: "" };
  const drafted = typeof at.node === "number" && at.node >= 0 ? at.node : null,
    own = ownToken(round);
  const title =
    drafted !== null
      ? `“${ribbon.visibleText(ribbon.legible(round).nodes.text[drafted])}”, drafted`
      : own
        ? `“${ribbon.tokenText(round, own)}”, the target's own`
        : `Round ${round.index + 1}`;
  return {
    round,
    node: drafted,
    title,
    note: [drafted !== null ? round.nodes.status[drafted] : round.bonus_kind, `round ${round.index + 1}`]
      .filter(Boolean)
      .join(" · "),
  };
}

/** The runs of this visit as rows: question, drafter with kept tokens and gate, τ, acceptance of tokens that need the
 *  picture and of those that do not. */
function history({ vision, run, beside }) {
  const d = visiondata, percent = (c) => (c?.[0] ? `${Math.round((100 * c[1]) / c[0])} %` : "–");
  return vision.history.map((past) => {
    const rounds = store.visible(past),
      seen = d.sight(past.header, rounds, rounds.length - 1),
      tau = figures.summary(rounds).tau,
      parts = d.split({ rounds, attribution: past.attribution }),
      gate = d.gated(seen);
    return {
      id: past.channel,
      shown: past === run || past === beside.run,
      cells: [
        past.question || "–",
        [
          past.header?.method,
          seen.since < 0 ? "" : `${seen.n_drafter} of ${seen.n_target}`,
          gate ? `gate: ${gate.name} ${gate.weight.toFixed(2)}` : "",
        ]
          .filter(Boolean)
          .join(" · ") || "–",
        tau === null ? "–" : tau.toFixed(2),
        percent(parts?.grounded),
        percent(parts?.language),
      ],
    };
  });
}
