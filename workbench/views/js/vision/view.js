/** Derive the data of the drawings from the state of the tab. Pure: no DOM. */

import * as figures from "../shared/figures.js";
import { ownToken } from "../shared/store.js";
import * as ribbon from "../shared/ribbon.js";
import * as selection from "../live/selection.js";
import * as speedup from "../shared/speedup.js";
import * as store from "../shared/store.js";
import * as view from "../live/view.js";
import * as visiondata from "./data.js";
import * as words from "../live/words.js";

const EMPTY = "Choose an image from the gallery, a file or the clipboard, or draw one.";

/** @param {object} page  state of the tab  @param {number} now  milliseconds */
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
  const at = selected(page.selection, page.on === "beside" ? theirs : rounds);
  const main = { ...lane(page, page, rounds, page.on === "beside" ? null : at, lexicon), arriving: base.arriving };
  const beside = second && { ...lane(page, page.beside, theirs, page.on === "beside" ? at : null, lexicon), arriving };
  const chosen = on === page ? main : beside,
    shownRounds = chosen.rounds,
    seen = d.visionData(on.run?.header, shownRounds, at?.round ?? shownRounds.length - 1);
  const coming = chosen.follow ? chosen.arriving : null,
    lit = coming?.tested ? [...shownRounds, coming.round] : shownRounds;
  const following = chosen.follow && !coming, last = following ? d.lastWord(shownRounds) : -1;
  const token = coming?.tested ? arrivingToken(shownRounds, coming) : last < 0 ? chosen.tokenOf(at) : last,
    maps = {
      target: d.maps(on.run?.attribution, "target", vision.how),
      drafter: d.maps(on.run?.attribution, "drafter", vision.how),
    };
  const patch = vision.patch === null ? null : vision.patch + d.span(seen.pictures, vision.picture)[0];
  const model = vision.over === "drafter" ? "drafter" : "target";
  for (const one of /** @type {any[]} */ ([main, beside])) {
    if (!one) continue;
    const all = d.maps(one.run?.attribution, model, vision.how) ?? d.maps(one.run?.attribution, "target", vision.how);
    one.lean = patch === null || !all ? null : d.weightsOnPatch(all, patch);
  }
  const marks = mergeMarks(
      (second || main.bands.length < 2 ? figures.changeMarks : figures.settingMarks)(rounds),
      d.pictureMarks(rounds),
    ),
    word = token === null ? "" : d.wordOf(lit, token);
  const traces = {
    trace: {
      rounds: shownRounds,
      attribution: on.run?.attribution,
      running: on.run?.attributionRunning,
      done: on.run?.explained ?? null,
    },
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
        seen: d.visionData(run?.header, rounds, shown?.round ?? rounds.length - 1),
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
    ...drawings(page, traces, {
      maps, token, word, patch: vision.patch, at, isLast: last >= 0 && last !== chosen.tokenOf(at),
    }),
    headline: [main, beside].filter(Boolean).map((one) => ({ name: one.name, ...headlineOf(one) })),
    tree: {
      run: on.run,
      rounds: shownRounds,
      coming: Boolean(coming),
      round: coming?.round ?? (at ? shownRounds[at.round] : null),
      before: coming ? shownRounds.length : (at?.round ?? null),
      node: coming ? null : (at?.node ?? null),
      reveal: coming?.tested ?? null,
    },
    pointed: patchText(page, traces, maps, patch, model),
    line: { rounds: shownRounds, shown: at ?? null },
    on: { ...node(shownRounds, at), rules: on.run?.header?.rules },
    kindRows: lexicon ? d.kindRows({ rounds }, second && { rounds: theirs }, lexicon) : [],
    board: vision.board,
    keepChosen: seen.since < 0 ? null : { tokens: seen.n_drafter },
    waiting: run ? base.waiting : vision.empty || base.waiting,
    barredBranch: "runs with an image cannot be continued from a token",
    alerts: [
      ...base.alerts,
      ...(second
        ? words.alerts([], second, theirs).map((a) => ({ ...a, message: `${beside.name}: ${a.message}` }))
        : []),
    ],
  };
}

/** Return the selection. While the newest round is followed, it is the last word of that round, if it has one. Pure. */
export function selected(current, rounds) {
  const last = rounds.at(-1), following = selection.follows(current) && !current.hover;
  const token = following && last ? last.emitted.findLastIndex((e) => /[\p{L}\p{N}]/u.test(e.text)) : -1;
  if (token < 0) return selection.shown(current, rounds);
  return selection.complete({ round: rounds.length - 1, token }, rounds);
}

/** Return the index in the text of the token that the latest test result of an arriving round decided. Pure.
 *  @param {any[]} rounds  the rounds before it  @param {{round: any, tested: number}} arriving */
export function arrivingToken(rounds, { round, tested }) {
  const before = rounds.reduce((sum, r) => sum + r.emitted.length, 0);
  return before + Math.max(0, Math.min(tested, round.emitted.length) - 1);
}

/** Return the figures of a run's headline, or the reason why there are none yet. */
function headlineOf({ run, rounds }) {
  if (!run) return { figures: null, why: "" };
  const figures = visiondata.headline({ rounds, attribution: run.attribution });
  if (figures) return { figures, why: "" };
  const computing = run.attributionRunning ? attributionProgress(run.explained ?? null) : "";
  return { figures: null, why: computing || (store.isOver(run) ? "not recorded" : "known after the run has ended") };
}

/** Return the data of one caption: a run with its name, its words and their kinds. */
function lane(page, side, rounds, shown, lexicon) {
  const d = visiondata, run = side.run, starts = [];
  let n = 0;
  for (const r of rounds) starts.push(n), (n += r.emitted.length);
  const method = rounds.at(-1)?.method ?? run?.header?.method ?? (run && side.choice?.method) ?? "",
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

/** Merge the changes of settings and of images, one mark per round. Pure. */
export function mergeMarks(settings, pictures) {
  const all = new Map();
  for (const { index, text } of [...settings, ...pictures])
    all.set(index, all.has(index) ? `${all.get(index)}, ${text}` : text);
  return [...all].map(([index, text]) => ({ index, text })).sort((a, b) => a.index - b.index);
}

/** Return the speed-up; two runs that share the engine's rounds have no separate times. Pure. */
export function speed(page, base) {
  const shared = page.beside.run && page.beside.run.from === "live";
  if (!shared) return base.speed;
  return speedup.figure({
    mine: null,
    plain: null,
    none: "two runs share the engine, so their speed is not comparable: run one drafter alone, then the baseline",
  });
}

function drawings(page, { trace, seen }, { maps, token, word, patch, at, isLast }) {
  const { vision } = page, d = visiondata, i = Math.min(vision.picture, Math.max(0, seen.pictures.length - 1));
  const own = vision.fresh || !seen.pictures.length, there = seen.pictures[i], span = d.span(seen.pictures, i);
  const rows = there?.rows ?? vision.rows,
    cols = there?.cols ?? vision.cols,
    alt = vision.alt || "Image of the prompt";
  const count = seen.pictures.length > 1 ? `image ${i + 1} of ${seen.pictures.length} · ` : "", n = rows * cols;
  const frame = (url, more) => ({ url, rows, cols, alt, chosen: patch, empty: EMPTY, ...more });
  const url = own ? vision.url : there.url,
    newest = own || there.url === latest(page)?.url,
    edits = vision.scope === "drafter" ? new Map([...vision.both, ...vision.drafter]) : vision.both;
  const picture = {
    title: own && vision.fresh ? "Image, for the next run" : "Image",
    note: url ? `${count}${rows} × ${cols} patches` : "",
    facts: painting(vision, page),
    drawing: frame(url, { edits: newest ? edits : new Map(), paints: Boolean(vision.tool) }),
  };
  const leaning = (model) => d.patchWeights(maps[model], token, span),
    asked = word ? `for “${word}”${isLast ? ", the last word" : ""}` : token === null ? "hover over a word" : "for a token without text",
    none = "The image appears here after the prefill.";
  const blank = (model) =>
    trace.attribution
      ? noAttribution(model === "drafter" ? seen : null)
      : trace.running
        ? attributionProgress(trace.done)
        : "available after the run has ended";
  const side = (model, sees, url, more) => {
    const mode = vision.mode[model], heat = mode === "leans" ? leaning(model) : null;
    const title = `${model === "target" ? "Target" : "Drafter"}: ${mode === "leans" ? "attribution" : "vision tokens"}`;
    return {
      mode,
      title,
      note: mode === "leans" ? (maps[model] ? asked : blank(model)) : sees,
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
        ? `${seen.n_target} vision tokens · ${d.bytes(seen.target_bytes)} of KV cache · prefill ${d.ms(seen.target_prefill_s)}`
        : "",
    }),
    drafter: {
      ...side("drafter", waits ? "" : d.visionTokensText(seen), shownUrl, {
        over,
        facts: known
          ? `${seen.n_drafter} vision tokens · ${d.bytes(seen.drafter_bytes)} of KV cache · prefill ${d.ms(seen.drafter_prefill_s)}${seen.compressor ? ` · ${d.compressorText(seen.compressor)}` : ""}`
          : "",
      }),
      queries: vision.mode.drafter === "sees" && mode === "queries" ? seen.weights.length : 0,
      query: vision.query,
      gate,
    },
  };
}

/** State the progress of a run's attribution. It waits while a comparison is timed, or another run's is computed. Pure.
 *  @param {number|null} done  share */
export function attributionProgress(done) {
  if (done === null) return "computing …";
  return done === 0 ? "waiting …" : `computing: ${Math.round(100 * done)} %`;
}

/** Say why a model has no attribution to patches. Pure. @param {object|null} seen  vision data of the drafter; null:
 *  the target */
export function noAttribution(seen) {
  if (!seen) return "not recorded";
  if (seen.since < 0 || seen.n_drafter) return "not recorded for this drafter";
  return seen.compressor ? "none: it gets the image only through the target's hidden states" : "none: no image input";
}

/** Return the target's latest image: edits are painted on it. */
function latest({ run, vision }) {
  const rounds = run ? store.visible(run) : [];
  return visiondata.visionData(run?.header, rounds, rounds.length).pictures[vision.picture];
}

/** Return the attention of the compressor's queries, 0–1: of one query, or summed over all. Pure. */
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
  const when = store.isActive(page.run) ? "in effect from the next round" : "in effect from the next run";
  return [
    `${n ? `painting: ${vision.tool}` : `drag over patches to ${vision.tool}`}, ${vision.scope === "drafter" ? "for the drafter only" : "for both models"}, ${when}`,
    edits,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Describe the selected patch. */
function patchText(page, { trace, seen }, maps, patch, model) {
  const { vision } = page, d = visiondata;
  if (patch === null && vision.mode.drafter === "leans" && trace.attribution && !maps.drafter)
    return seen.since >= 0 && !seen.n_drafter
      ? `A drafter without vision tokens has no attribution to patches: ${seen.compressor ? "this one gets the image only through the target's hidden states" : "it drafts from the text alone"}.`
      : "This drafter's attribution was not recorded with this run; the target's is available.";
  if (patch === null) return "Point at or tap a word to see its patches, or a patch to see its words. ▶ plays the run word by word.";
  const cols = seen.pictures[vision.picture]?.cols ?? vision.cols,
    there = d.place(vision.patch, cols).replace(/^r/, "R"),
    all = maps[model] ?? maps.target;
  if (!all) return `${there}. Its words are available after the run has ended.`;
  const words = d.wordsOnPatch(trace.rounds, all, patch);
  if (!words.length) return `${there}: no word has high weight on this patch.`;
  const whose = maps[model] ? model : "target";
  return `${there}: words of the ${whose} with high weight on this patch: ${words.map((w) => w.text).join(", ")}.`;
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
        ? `“${ribbon.tokenText(round, own)}”, target token`
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

/** Return this visit's runs as rows: question, drafter with kept tokens and gate, τ, acceptance rates of tokens that
 *  need the image and of the others. */
function history({ vision, run, beside }) {
  const d = visiondata, percent = (c) => (c?.[0] ? `${Math.round((100 * c[1]) / c[0])} %` : "–");
  return vision.history.map((earlier) => {
    const rounds = store.visible(earlier),
      seen = d.visionData(earlier.header, rounds, rounds.length - 1),
      tau = figures.summary(rounds).tau,
      parts = d.split({ rounds, attribution: earlier.attribution }),
      gate = d.gateChoice(seen);
    return {
      id: earlier.channel,
      shown: earlier === run || earlier === beside.run,
      cells: [
        earlier.question || "–",
        [
          earlier.header?.method,
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
