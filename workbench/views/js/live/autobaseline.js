/** Automatic baseline: plain decoding of the same prompt runs by itself after each run with new settings, so that the
 *  speed-up of every run is known. The reader can switch it off. */

import * as store from "../shared/store.js";

const KEY = "wb-autobaseline";

/** Return whether the automatic baseline is on in this browser: it is unless the reader switched it off. */
export function isOn() {
  try {
    return localStorage.getItem(KEY) !== "off";
  } catch {
    return true; // the browser may block storage
  }
}

/** Store whether the automatic baseline is on. */
export function setOn(on) {
  try {
    localStorage.setItem(KEY, on ? "on" : "off");
  } catch {
    // without storage it holds for this page only
  }
}

/** Return whether a run that has just ended needs a baseline. Pure.
 *  @param {any} page  @param {boolean} on  */
export function isDue({ run, plain, plainKey, catalogue }, on) {
  if (!on || !catalogue || catalogue.barred?.baseline) return false;
  if (run?.from !== "live" || run.state !== "finished" || !run.rounds.length || !run.key) return false;
  const { method } = run.header ?? {}, isPlain = method === catalogue.baseline;
  if (isPlain && run.rounds.every((round) => round.method === method)) return false;
  return !(plainKey === run.key && plain && (store.isActive(plain) || plain.state === "finished"));
}
