/** Automatic baseline: plain decoding of the same prompt runs by itself after each run with new settings, so that the
 *  speed-up of every run is known. The reader can switch it off. */

import * as store from "../shared/store.js";

/** Name of the preference. */
export const PREFERENCE = "wb-autobaseline";

/** Return whether a backend offers the automatic baseline: not if a run costs the reader a quota. Pure. */
export function isOffered(catalogue) {
  return Boolean(catalogue) && !catalogue.barred?.baseline && !catalogue.estimates;
}

/** Return whether a run that has just ended needs a baseline. Pure.
 *  @param {any} page */
export function isDue({ run, plain, plainKey, catalogue, autoBaseline }) {
  if (!autoBaseline || !isOffered(catalogue)) return false;
  if (run?.from !== "live" || run.state !== "finished" || !run.rounds.length || !run.key) return false;
  const { method } = run.header ?? {}, isPlain = method === catalogue.baseline;
  if (isPlain && run.rounds.every((round) => round.method === method)) return false;
  return !(plainKey === run.key && plain && (store.isActive(plain) || plain.state === "finished"));
}

/** Return whether an automatic baseline follows the run in progress or is being measured. Pure.
 *  @param {any} page */
export function isExpected({ run, plain, catalogue, choice, autoBaseline }) {
  if (!autoBaseline || !isOffered(catalogue) || run?.from !== "live") return false;
  return (run.header?.method ?? choice.method) !== catalogue.baseline && (store.isActive(run) || store.isActive(plain));
}
