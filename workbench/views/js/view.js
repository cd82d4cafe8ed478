/** From the state of the page to what the drawings show. Pure: nothing here touches the DOM. */

/** @param {object} page  the state that `live.mount` holds  @param {number} now  milliseconds, as `performance.now` */
export function of(page, now) {
  const { m, run, catalogue } = page;
  const all = run ? m.store.visible(run) : [], arriving = arrivingIn(page, all, now), rounds = arriving ? all.slice(0, -1) : all;
  const figures = m.figures.summary(rounds), active = m.store.isActive(run), seen = asShown(run, arriving);
  const baseline = baselineOf(page, rounds), measuring = measured(page);
  const shown = m.selection.shown(page.selection, rounds), pairsBarred = m.repeats.barred(run, rounds, baseline.rounds, Boolean(catalogue?.pairs));
  const promised = catalogue?.methods.find((x) => x.name === (rounds.at(-1)?.method ?? run?.header?.method));
  const lost = page.lost ? (now - page.lost) / 1000 : 0, pinned = page.selection.pin !== null && !page.playing;
  const range = page.brush && rounds[page.brush[1]] ? page.brush : null;
  return {
    run, rounds, shown, figures, active, lost, range, arriving,
    counted: range ? rounds.slice(range[0], range[1] + 1) : rounds,
    plainRounds: baseline.rounds, plainFigures: baseline.rounds ? m.figures.summary(baseline.rounds) : null, noBaseline: baseline.why,
    stalls: m.stalls.stalls(rounds), plainStalls: m.stalls.stalls(baseline.rounds ?? []), speed: speedOf(page, baseline, figures, rounds), pairsBarred, pairs: m.repeats.line(m, page.pairs, run, pairsBarred),
    definitions: catalogue?.definitions ?? page.definitions ?? {},
    badge: lost ? "RECONNECTING" : m.words.badge(run, catalogue?.device ?? ""), state: lost ? "lost" : measuring ? "measuring" : !run ? "idle" : run.from === "live" ? seen.state : run.from,
    simulation: Boolean(run?.header?.simulation || promised?.simulation), alerts: [...m.words.alerts(page.errors, run, rounds), ...page.notices],
    ghosts: page.ghosts, threshold: page.threshold, mode: page.mode, follow: m.selection.follows(page.selection) && !page.selection.hover, scroll: page.scroll,
    waiting: m.words.waiting(run, catalogue !== null || page.errors.length > 0 || run !== null), progress: m.words.progress(run),
    anchor: page.selection.pin?.round ?? rounds.length - 1, brush: page.brush, playing: page.playing !== null,
    status: m.words.status({ run: seen, figures, pinned, measuring, lost, slow: page.feeding ? page.feeding.label : "", over: run !== null && m.store.isOver(seen), paced: m.pace.words }),
    origin: run?.origin ?? null, barredBranch: barredBranch(page), measuring, baselineReady: baseline.ready,
  };
}

/** A run as far as it is shown: it has not finished while its last round is still being told. What broke it off is said at
 *  once. */
function asShown(run, arriving) {
  return arriving && run.state === "finished" ? { ...run, state: "running" } : run;
}

/** The key figure of speed, from the run, its baseline, and the pairs that were measured beside them. */
function speedOf({ m, pairs, run }, baseline, figures, rounds) {
  const plain = baseline.rounds ? m.figures.summary(baseline.rounds) : null, stalled = baseline.rounds ? m.stalls.stalls(rounds).size + m.stalls.stalls(baseline.rounds).size : 0;
  return m.speedup.figure({ mine: figures.tokens_per_second, plain: plain?.tokens_per_second ?? null, none: baseline.why, stalled, measured: plain && m.repeats.measured(m, pairs, run) });
}

/** The newest round of a run that is held back, while its draft is being judged before the visitor's eyes; null: nothing is.
 *  @returns {{round: object, judged: number, ms: number, line: {node: number, test: number}[]}|null} */
export function arrivingIn({ m, run, arrival, feeding, still }, rounds, now) {
  const round = rounds.at(-1);
  if (still || !round || arrival?.run !== run || arrival.n !== rounds.length) return null;
  const staged = m.pace.stage(round, m.pace.span(round, run, feeding), now - arrival.at);
  return staged && { round, ...staged, line: m.pace.line(round, m.treemodel.testOrder(round.nodes)) };
}

/** The baseline's rounds, when they may be compared with what is shown; otherwise why not, in a few words.
 *  @returns {{rounds: object[]|null, why: string, ready: boolean}}  `ready`: one exists for the settings in the panel */
function baselineOf(page, rounds) {
  const { m, run, plain, catalogue } = page;
  const whole = plain && m.store.isOver(plain) && plain.state === "finished";
  const ready = Boolean(whole && catalogue && page.plainKey === m.choice.pairing(page.choice, catalogue, m.form.clamp));
  const none = (why) => ({ rounds: null, why, ready });
  if (!run) return none("no baseline yet");
  if (run.from !== "live" && page.plainKey !== run.key) return none("recorded without a baseline");
  if (!whole) return none("no baseline yet");
  if (page.plainKey !== run.key) return none("the baseline was for other settings");
  const broken = m.figures.voids(rounds, catalogue?.sampling.map((p) => p.name) ?? []);
  if (broken) return none(`baseline void: ${broken.text} @ round ${broken.index + 1}`);
  return { rounds: m.store.visible(plain), why: "", ready };
}

function measured({ m, plain, choice }) {
  return plain && m.store.isActive(plain) ? { tokens: m.figures.summary(m.store.visible(plain)).tokens, of: choice.max_new_tokens } : null;
}

/** Why nothing can be continued from the run that is shown; empty when it can. */
function barredBranch({ run, catalogue, m, plain, host }) {
  if (!catalogue || !host.decode) return "there is no backend here to continue with";
  if (!run?.header) return "there is nothing to continue from";
  if (!run.header.prompt_tokens.length) return "the trace does not hold its prompt's tokens";
  if (!catalogue.targets.some((t) => t.name === run.header.target)) return `the target ${run.header.target} is not available here`;
  if (m.store.isActive(plain)) return "the baseline is being measured";
  return "";
}

/** What the side panel shows. */
export function panel(page, view) {
  const { m, catalogue, choice } = page, { active, measuring } = view;
  const inForce = m.choice.parameters(choice, catalogue, choice.method, m.form.clamp);
  return {
    catalogue, choice, inForce, draw: m.form.render, kit: m.kit, estimate: page.estimate,
    pace: m.pace.rate(choice, catalogue), paces: m.pace.options(m.pace.rate(choice, catalogue)),
    note: page.note || m.words.changeNote(m.figures.changeMarks(view.rounds), active),
    branch: choice.prompt_tokens ? (choice.origin ? m.branch.words(choice.origin, m.card.visible) : "prompt given as tokens") : "",
    run: {
      active: active || measuring !== null, paused: view.run?.state === "paused" && active, ready: true, measuring: measuring !== null, barred: catalogue.barred ?? {},
      baseline: { label: measuring ? `Baseline ${measuring.tokens}` : page.wantPlain ? "Baseline next" : view.baselineReady ? "Baseline ✓" : "Baseline", off: measuring ? "the baseline is being measured" : "" },
    },
  };
}
