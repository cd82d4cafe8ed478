/** Paced runs: the display rate, and how much of the newest round is visible so far.
 *
 *  The engine waits between rounds, and the wait slows the next round: see `workbench.engine.pacing`. A round appears
 *  in its order of computation: drafts, then one test result after the other, then the accepted tokens. */

import * as store from "../shared/store.js";

/** Offered paces in tokens per second; 0: full speed. */
export const PACES = [0, 4, 8, 20];
const KEY = "wb-pace";
const MOST_MS = 1600;
const motion = typeof matchMedia === "undefined" ? null : matchMedia("(prefers-reduced-motion: reduce)");
const DRAFTED = 0.3, TESTED = 0.9; // shares of a round's display time at which drafts and all results are visible

/** Return the pace in tokens per second: the chosen one, else the target's default; 0 if the backend cannot pace. */
export function rate(choice, catalogue) {
  if (catalogue.barred?.pace) return 0;
  return choice.pace ?? catalogue.targets.find((t) => t.name === choice.target)?.pace ?? 0;
}

/** Return the note on a paced run. */
export function paceNote(pace) {
  return pace ? `shown at ${pace} tokens/s; rounds after a pause are slower than at full speed` : "";
}

/** Return the options of the pace selector, including another rate from an address. */
export function options(pace) {
  const offered = [...new Set([...PACES, pace])].sort((a, b) => a - b);
  return offered.map((p) => ({ value: String(p), text: p ? `${p} tokens/s` : "full speed", disabled: false }));
}

/** Return the pace last chosen in this browser, or null. */
export function storedPace() {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === null || !(Number(stored) >= 0) ? null : Number(stored);
  } catch {
    return null; // the browser may block storage
  }
}

/** Store a chosen pace. */
export function storePace(pace) {
  try {
    localStorage.setItem(KEY, String(pace));
  } catch {
    // without storage it holds for this page only
  }
}

// -- The newest round ----------------------------------------------------------------------------------------------

/** Record when the newest of `n` rounds arrived. @param {{run: object, n: number, at: number}|null} known */
export function arrival(known, run, n, now) {
  if (known?.run === run && known.n === n) return known;
  return { run, n, at: known?.run === run ? now : -Infinity }; // rounds present at first sight are not new
}

/** Record the arrivals in the runs of several pages. `still`: show their rounds at once. */
export function notice(pages, still, now) {
  for (const page of pages) {
    if (page.run) page.arrival = arrival(page.arrival ?? null, page.run, store.complete(page.run), now);
    page.still = still || motion?.matches;
  }
}

/** Schedule a redraw for the next test result. @param {({ms: number}|null|undefined)[]} arriving  rounds being shown */
export function again(page, arriving) {
  clearTimeout(page.staging);
  const waits = arriving.filter(Boolean).map((each) => each.ms);
  if (waits.length) page.staging = setTimeout(page.draw, Math.min(...waits));
}

/** Announce the end of a run (`page.ending`) once its last round is fully visible. */
export function announceEnd(page) {
  const { ending } = page;
  if (!ending || page.view.arriving) return;
  page.ending = null;
  if (ending === page.run) page.announce(true);
}

/** Return the display time of a round in milliseconds, at most until the next one; 0: show it at once.
 *  @param {{pace: number}} run  @param {{speed: number}|null} feeding  a recording that arrives as if it were live */
export function span(round, run, feeding) {
  if (feeding) return (1000 * round.seconds) / feeding.speed;
  return run.pace > 0 ? Math.min(MOST_MS, (1000 * round.emitted.length) / run.pace) : 0;
}

/** Return the progress of a round with display time `whole` after `ms`: the number of visible test results and the time
 *  to the next one; null: the round is fully visible. @returns {{tested: number, ms: number}|null} */
export function stage(round, whole, ms) {
  const tests = round.nodes.status.filter((s) => s !== "discarded").length;
  if (!(whole > 0) || !tests) return null;
  const each = ((TESTED - DRAFTED) * whole) / tests;
  const times = [
    DRAFTED * whole,
    ...Array.from({ length: tests - 1 }, (_, k) => DRAFTED * whole + (k + 1) * each),
    TESTED * whole,
  ];
  const tested = times.findIndex((t) => ms < t);
  return tested < 0 ? null : { tested: tested, ms: times[tested] - ms };
}

/** Return the path through a draft for display as text: accepted nodes, then the tested and rejected one, then its
 *  descendants. */
export function line({ nodes, path }, order) {
  const onPath = new Set(path), at = new Map(order.map((node, k) => [node, k])), out = [];
  for (let parent = -1; ; parent = out.at(-1).node) {
    const children = nodes.parents.flatMap((p, i) => (p === parent ? [i] : []));
    const node = children.find((i) => onPath.has(i)) ?? children.find((i) => at.has(i)) ?? children[0];
    if (node === undefined) return out;
    out.push({ node, test: at.get(node) ?? Infinity });
  }
}
