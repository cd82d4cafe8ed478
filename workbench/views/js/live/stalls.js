/** Stalled rounds: the machine was busy with other work, so their times say nothing about the method. Same rule as
 *  `workbench/trace/stalls.py`; a test compares both. */

const TIMES = 3, SCATTER = 5, FEWEST = 5;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const known = new WeakMap();

/** Find stalled rounds: index → duration as a multiple of the median of similar rounds. Pure.
 *  Similar rounds: same method and number of drafted tokens, or the five nearest in size. @returns {Map<number,
 *  number>} */
export function stalls(rounds) {
  const cached = known.get(rounds);
  if (cached?.n === rounds.length) return cached.found; // called at every frame
  const found = new Map(),
    all = rounds.map((r, i) => ({ i, method: r.method, n: r.nodes.tokens.length, s: r.seconds }));
  for (const method of new Set(all.map((r) => r.method))) {
    const own = all.filter((r) => r.method === method);
    if (own.length < FEWEST) continue;
    for (const size of new Set(own.map((r) => r.n))) {
      const reach = own.map((r) => Math.abs(r.n - size)).sort((a, b) => a - b)[FEWEST - 1],
        like = own.filter((r) => Math.abs(r.n - size) <= reach).map((r) => r.s);
      const usual = median(like),
        limit = Math.max(TIMES * usual, usual + SCATTER * 1.4826 * median(like.map((s) => Math.abs(s - usual))));
      for (const r of own) if (r.n === size && r.s > limit) found.set(r.i, r.s / usual);
    }
  }
  known.set(rounds, { n: rounds.length, found });
  return found;
}

/** Return the rounds that did not stall. Pure. */
export function notStalled(rounds) {
  const stalled = stalls(rounds);
  return stalled.size ? rounds.filter((_, i) => !stalled.has(i)) : rounds;
}

/** Count the stalled rounds of a run and of its baseline. Pure.
 *  @param {Map<number, number>} run  of `stalls`  @param {Map<number, number>} plain  of the baseline's rounds
 *  @returns {string}  empty if none stalled */
export function stallCount(run, plain) {
  const rounds = (n) => `${n} round${n > 1 ? "s" : ""}`;
  if (!plain.size) return run.size ? `${rounds(run.size)} stalled` : "";
  return run.size
    ? `${rounds(run.size)} and ${plain.size} of the baseline stalled`
    : `${rounds(plain.size)} of the baseline stalled`;
}

/** Describe the stalled rounds with their duration and cause. Pure. @returns {string} empty if none stalled */
export function words(run, plain) {
  const count = stallCount(run, plain);
  if (!count) return "";
  const most = Math.max(...run.values(), ...plain.values());
  return `${count}, up to ${most.toFixed(0)} times as long as similar rounds: the machine was busy with other work`;
}
