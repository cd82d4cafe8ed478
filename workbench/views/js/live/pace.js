/** Runs that are held back so that people can follow: their pace, and how much of the newest round is shown yet.
 *
 *  The engine waits between rounds, and the wait slows the next round: see `workbench.engine.pace`. A round is shown in
 *  the order in which it was made: drafted, then one verdict after the other, then accepted. */

import * as store from "../shared/store.js";

/** Tokens a second that are offered; 0: as fast as the engine is. */
export const PACES = [0, 4, 8, 20];
const KEY = "wb-pace";
const MOST_MS = 1600;
const motion = typeof matchMedia === "undefined" ? null : matchMedia("(prefers-reduced-motion: reduce)");
const DRAFTED = 0.3, JUDGED = 0.9; // shares of a round's time by which it has been drafted, and judged

/** Tokens a second for a choice: what was chosen, else what suits the target; 0 where nothing can be held back. */
export function rate(choice, catalogue) {
  if (catalogue.barred?.pace) return 0;
  return choice.pace ?? catalogue.targets.find((t) => t.name === choice.target)?.pace ?? 0;
}

/** What a run that is held back says of itself. */
export function words(pace) {
  return pace ? `shown at ${pace} tokens/s; rounds after a wait are slower than at full speed` : "";
}

/** The entries of the choice, with one of another rate that an address asked for. */
export function options(pace) {
  const offered = [...new Set([...PACES, pace])].sort((a, b) => a - b);
  return offered.map((p) => ({ value: String(p), text: p ? `${p} tokens/s` : "full speed", disabled: false }));
}

/** What was chosen last on this machine, or null. */
export function recall() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === null || !(Number(kept) >= 0) ? null : Number(kept);
  } catch {
    return null; // a browser may keep nothing
  }
}

/** Remember a choice. */
export function remember(pace) {
  try {
    localStorage.setItem(KEY, String(pace));
  } catch {
    // it holds for this page then
  }
}

// -- The newest round ----------------------------------------------------------------------------------------------

/** Take note of when the newest of `n` rounds came. @param {{run: object, n: number, at: number}|null} known */
export function arrival(known, run, n, now) {
  if (known?.run === run && known.n === n) return known;
  return { run, n, at: known?.run === run ? now : -Infinity }; // what was there when the run was first seen is not news
}

/** Take note of what has come in the runs of some pages. `still`: their rounds are to be there at once. */
export function notice(pages, still, now) {
  for (const page of pages) {
    if (page.run) page.arrival = arrival(page.arrival ?? null, page.run, store.complete(page.run), now);
    page.still = still || motion?.matches;
  }
}

/** Draw again when the next verdict is out. @param {({ms: number}|null|undefined)[]} arriving  what is being judged */
export function again(page, arriving) {
  clearTimeout(page.staging);
  const waits = arriving.filter(Boolean).map((each) => each.ms);
  if (waits.length) page.staging = setTimeout(page.draw, Math.min(...waits));
}

/** Say that a run has ended once the last of it has been shown: `page.ending` is the run that this is to be said of. */
export function tellEnd(page) {
  const { ending } = page;
  if (!ending || page.view.arriving) return;
  page.ending = null;
  if (ending === page.run) page.announce(true);
}

/** Milliseconds that a round is to be seen for: until the next one comes, at most. 0: it is there at once.
 *  @param {{pace: number}} run  @param {{speed: number}|null} feeding  a recording that arrives as if it were live */
export function span(round, run, feeding) {
  if (feeding) return (1000 * round.seconds) / feeding.speed;
  return run.pace > 0 ? Math.min(MOST_MS, (1000 * round.emitted.length) / run.pace) : 0;
}

/** How far a round that is to be seen for `whole` milliseconds has come after `ms` of them: the number of its verdicts
 *  that are out and how long until that changes; null: all of it. @returns {{judged: number, ms: number}|null} */
export function stage(round, whole, ms) {
  const tests = round.nodes.status.filter((s) => s !== "discarded").length;
  if (!(whole > 0) || !tests) return null;
  const each = ((JUDGED - DRAFTED) * whole) / tests;
  const times = [
    DRAFTED * whole,
    ...Array.from({ length: tests - 1 }, (_, k) => DRAFTED * whole + (k + 1) * each),
    JUDGED * whole,
  ];
  const judged = times.findIndex((t) => ms < t);
  return judged < 0 ? null : { judged, ms: times[judged] - ms };
}

/** The way through a draft that is told as text: what was accepted, then what was tested and refused, then what hung on
 *  it. */
export function line({ nodes, path }, order) {
  const onPath = new Set(path), at = new Map(order.map((node, k) => [node, k])), out = [];
  for (let parent = -1; ; parent = out.at(-1).node) {
    const children = nodes.parents.flatMap((p, i) => (p === parent ? [i] : []));
    const node = children.find((i) => onPath.has(i)) ?? children.find((i) => at.has(i)) ?? children[0];
    if (node === undefined) return out;
    out.push({ node, test: at.get(node) ?? Infinity });
  }
}
