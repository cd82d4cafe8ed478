/** Derive the data of the drawings from the state of the page. Pure: no DOM. */

import * as automatic from "./autobaseline.js";
import * as branch from "./branch.js";
import * as choices from "./choice.js";
import * as controls from "../shared/controls.js";
import * as summaries from "../shared/figures.js";
import * as form from "../shared/form.js";
import * as pace from "./pace.js";
import * as repeats from "./repeats.js";
import * as selection from "./selection.js";
import * as speedup from "../shared/speedup.js";
import * as stalls from "./stalls.js";
import * as store from "../shared/store.js";
import * as treemodel from "./treemodel.js";
import * as words from "./words.js";
import { visible } from "../shared/kit.js";

/** @param {object} page  state of the page  @param {number} now  milliseconds, as `performance.now` */
export function of(page, now) {
  const { run, catalogue } = page;
  const all = run ? store.visible(run) : [],
    arriving = arrivingIn(page, all, now),
    rounds = arriving ? all.slice(0, -1) : all;
  const figures = summaries.summary(rounds), active = store.isActive(run), seen = displayedRun(run, arriving);
  const baseline = baselineOf(page, rounds), measuring = measured(page);
  const shown = selection.shown(page.selection, rounds),
    pairsBarred = repeats.barred(run, rounds, baseline.rounds, Boolean(catalogue?.pairs));
  const promised = catalogue?.methods.find((x) => x.name === (rounds.at(-1)?.method ?? run?.header?.method));
  const methodTitle = (name) => catalogue?.methods.find((x) => x.name === name)?.title || name;
  const lost = page.lost ? (now - page.lost) / 1000 : 0, pinned = page.selection.pin !== null && !page.playing;
  const range = page.brush && rounds[page.brush[1]] ? page.brush : null;
  return {
    run,
    rounds,
    shown,
    figures,
    active,
    lost,
    range,
    arriving,
    methodTitle,
    segments: summaries.segmentFigures(rounds, summaries.methodSegments(rounds, methodTitle)),
    counted: range ? rounds.slice(range[0], range[1] + 1) : rounds,
    plainRounds: baseline.rounds,
    plainFigures: plainOf(run, baseline),
    noBaseline: baseline.why,
    stalls: stalls.stalls(rounds),
    plainStalls: stalls.stalls(baseline.rounds ?? []),
    speed: speedOf(page, baseline, figures, rounds),
    typical: rounds.some((round) => round.changes.length) ? null : repeats.typicalOf(page.pairs, run),
    pairsBarred,
    pairs: repeats.line(page.pairs, run, pairsBarred, Boolean(catalogue?.pairs) && automatic.isExpected(page)),
    definitions: catalogue?.definitions ?? page.definitions ?? {},
    badge: lost ? "RECONNECTING" : words.badge(run, deviceOf(catalogue, run)),
    state: lost ? "lost" : measuring ? "measuring" : !run ? "idle" : run.from === "live" ? seen.state : run.from,
    mark: markOf(page, rounds, promised),
    alerts: [...words.alerts(page.errors, run, rounds), ...page.notices],
    ghosts: page.ghosts,
    threshold: page.threshold,
    mode: page.mode,
    kvLayout: catalogue?.targets.find((t) => t.name === run?.header?.target)?.kv_cache ?? null,
    hindsight: Boolean(page.hindsight),
    intro: Boolean(page.intro),
    race: page.race ?? null,
    example: page.example ?? null,
    canRun: Boolean(page.host?.decode && catalogue),
    follow: selection.follows(page.selection) && !page.selection.hover,
    scroll: page.scroll,
    waiting: words.waiting(run, catalogue !== null || page.errors.length > 0 || run !== null),
    progress: words.progress(run),
    anchor: page.selection.pin?.round ?? rounds.length - 1,
    brush: page.brush,
    playing: page.playing !== null,
    status: words.status({
      run: seen,
      figures,
      pinned,
      measuring,
      lost,
      slow: page.feeding ? page.feeding.label : "",
      over: run !== null && store.isOver(seen),
      paced: pace.paceNote,
    }),
    family: branch.branchNote(run, active, visible),
    barredBranch: barredBranch(page),
    base: page.host?.base,
    measuring,
    baselineReady: baseline.ready,
  };
}

/** Return a run as displayed: not finished while its last round is still being shown. Errors and cancellation show at
 *  once. */
function displayedRun(run, arriving) {
  return arriving && run.state === "finished" ? { ...run, state: "running" } : run;
}

/** Return the key figure of speed, from the run, its baseline, and the measured pairs. */
function speedOf({ pairs, run }, baseline, figures, rounds) {
  const plain = plainOf(run, baseline)?.tokens_per_second ?? null;
  return speedup.figure({
    mine: figures.tokens_per_second,
    plain,
    none: baseline.why,
    stalled: baseline.rounds ? stalls.stallCount(stalls.stalls(rounds), stalls.stalls(baseline.rounds)) : "",
    // the pairs repeat the settings with which the run began
    measured: plain && !rounds.some((round) => round.changes.length) && repeats.measured(pairs, run),
  });
}

/** Return the figures of plain decoding for a run: the figures of its baseline, or the rate stored with it; null if
 *  there are none. */
function plainOf(run, { rounds }) {
  if (rounds) return summaries.summary(rounds);
  const rate = run?.baseline?.tokens_per_second;
  return rate ? { tokens_per_second: rate } : null;
}

/** Return the newest round of a paced run while its test results appear one by one; null if there is none.
 *  @returns {{round: object, tested: number, ms: number, line: {node: number, test: number}[]}|null} */
export function arrivingIn({ run, arrival, feeding, still }, rounds, now) {
  const round = rounds.at(-1);
  if (still || !round || arrival?.run !== run || arrival.n !== rounds.length) return null;
  const staged = pace.stage(round, pace.span(round, run, feeding), now - arrival.at);
  return staged && { round, ...staged, line: pace.line(round, treemodel.testOrder(round.nodes)) };
}

/** Return the baseline's rounds if they are comparable with the run, otherwise the reason in a few words.
 *  @returns {{rounds: object[]|null, why: string, ready: boolean}}  `ready`: a baseline exists for the panel's
 *    settings */
function baselineOf(page, rounds) {
  const { run, plain, catalogue } = page;
  const whole = plain && store.isOver(plain) && plain.state === "finished";
  const ready = Boolean(whole && catalogue && page.plainKey === choices.pairing(page.choice, catalogue, form.clamp));
  const none = (why) => ({ rounds: null, why, ready });
  if (!run) return none("no baseline yet");
  if (run.baseline && page.plainKey !== run.key) return none("only the baseline's speed was stored");
  if (run.from !== "live" && page.plainKey !== run.key) return none("recorded without a baseline");
  if (!whole) return none("no baseline yet");
  if (page.plainKey !== run.key) return none("the baseline was measured with other settings");
  const broken = summaries.baselineBreak(rounds, catalogue?.sampling.map((p) => p.name) ?? []);
  if (broken) return none(`baseline invalid: ${broken.text} at round ${broken.index + 1}`);
  return { rounds: store.visible(plain), why: "", ready };
}

function measured({ plain, choice }) {
  return plain && store.isActive(plain)
    ? { tokens: summaries.summary(store.visible(plain)).tokens, of: choice.max_new_tokens }
    : null;
}

/** Return why no branch can be started from the run on display; empty if it can. */
function barredBranch({ run, catalogue, plain, host }) {
  if (!catalogue || !host.decode) return "no backend to continue with";
  if (!run?.header) return "no run to continue from";
  if (!run.header.prompt_tokens.length) return "the trace lacks its prompt tokens";
  if (!catalogue.targets.some((t) => t.name === run.header.target))
    return `the target ${run.header.target} is not available here`;
  if (store.isActive(plain)) return "the baseline is being measured";
  return "";
}

/** Return device and number format of a live run from the catalogue; empty for another target, whose header has them.
 *  */
function deviceOf(catalogue, run) {
  return !run?.header || run.header.target === catalogue?.chosen?.target ? (catalogue?.device ?? "") : "";
}

/** Return the data of the side panel. */
export function panel(page, view) {
  const { catalogue, choice } = page, { active, measuring } = view;
  const inForce = choices.parameters(choice, catalogue, choice.method, form.clamp);
  return {
    catalogue,
    choice,
    inForce,
    draw: form.render,
    estimate: page.estimate,
    pace: pace.rate(choice, catalogue),
    paces: pace.options(pace.rate(choice, catalogue)),
    auto: automatic.isOffered(catalogue) ? page.autoBaseline : undefined,
    note: page.note || words.changeNote(summaries.changeMarks(view.rounds), active),
    branch: choice.prompt_tokens
      ? choice.origin
        ? branch.words(choice.origin, visible)
        : "prompt given as token ids"
      : "",
    run: {
      active: active || (measuring !== null && !page.plain?.automatic),
      automatic: Boolean(page.plain?.automatic),
      paused: view.run?.state === "paused" && active,
      ready: true,
      measuring: measuring !== null,
      barred: catalogue.barred ?? {},
      baseline: {
        label: measuring
          ? `Baseline ${measuring.tokens}`
          : page.wantPlain
            ? "Baseline queued"
            : view.baselineReady
              ? "Baseline ✓"
              : "Baseline",
        off: measuring ? "the baseline is being measured" : "",
      },
    },
  };
}

/** Return the warning in the page head: a simulated drafter, or text that the target alone might not write. It covers
 *  the run on display and the chosen method, which applies from the next round or, after the end of the run, from the
 *  `next` run. */
function markOf({ run, catalogue, choice }, rounds, shown) {
  const method = choice && catalogue?.methods.find((x) => x.name === choice.method);
  const chosen = controls.promised(method || undefined, choice?.params), kinds = ["simulation", "approximate"];
  const is = {
    simulation: run?.header?.simulation || shown?.simulation || run?.header?.promise === "simulation",
    approximate: run?.header?.promise === "approximate" || rounds.some(summaries.isApproximate),
  };
  const promise = kinds.find((kind) => run && is[kind]) ?? (kinds.includes(chosen) ? chosen : "");
  return { promise, next: Boolean(promise && run && !is[promise] && (run.from !== "live" || store.isOver(run))) };
}
