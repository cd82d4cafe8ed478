/** Theoretical predictions drawn over the measured figures. Same arithmetic as `workbench/trace/theory.py` and
 *  `workbench.trace.whatif.compare_with_theory`; a test compares both. */

const sum = (values) => values.reduce((a, b) => a + b, 0);
const mean = (values) => (values.length ? sum(values) / values.length : 0);
const emitted = (rounds) => sum(rounds.map((r) => r.emitted.length));
const depthOf = (round) => round.nodes.depth.reduce((a, b) => Math.max(a, b), 0);

/** Return the expected tokens per round if every draft of a chain is accepted with the same probability (Leviathan et
 *  al. 2023, equation 1). */
export function expectedTau(rate, depth) {
  return rate >= 1 ? depth + 1 : (1 - rate ** (depth + 1)) / (1 - rate);
}

/** Return the expected tokens per round; `rates[i]`: acceptance rate at position i, given that all earlier drafts
 *  passed. */
export function tauByPosition(rates) {
  let reached = 1, tau = 1;
  for (const rate of rates) tau += reached *= rate;
  return tau;
}

/** Return the probability that a round accepts 0, 1, … rates.length drafts. */
export function acceptedProbs(rates) {
  const reached = [1];
  for (const rate of rates) reached.push(reached.at(-1) * rate);
  return reached.map((r, i) => r - (reached[i + 1] ?? 0));
}

/** Return the draft length with the highest speed-up; depth 0 is plain decoding.
 *  @param {number[]} rates  by position  @param {{level: number, verify: number, node: number, other: number}} cost
 *    in plain steps: one more draft level; a forward pass of the target without drafts; one more level's tokens in
 *    that pass; the rest of a round
 *  @param {number} beyond  acceptance rate after the last measured position */
export function bestDepth(rates, cost, beyond, most = 64) {
  let best = { depth: 0, tau: 1, speedup: 1 }, reached = 1, tau = 1;
  for (let depth = 1; depth <= most && rates.length; depth++) {
    tau += reached *= rates[depth - 1] ?? beyond;
    const speedup = tau / (depth * (cost.level + cost.node) + cost.verify + cost.other);
    if (speedup > best.speedup) best = { depth, tau, speedup };
  }
  return best;
}

/** Fit a line to the duration of the target's forward passes by their size: slope and intercept; a negative slope
 *  counts as 0. */
function verifyLine(rounds) {
  const n = rounds.map((r) => r.nodes.depth.length), s = rounds.map((r) => r.verify_s), mn = mean(n), ms = mean(s);
  const spread = sum(n.map((x) => (x - mn) ** 2)),
    slope = spread ? sum(n.map((x, i) => (x - mn) * (s[i] - ms))) / spread : 0;
  return slope > 0 ? { node: slope, verify: ms - slope * mn } : { node: 0, verify: ms };
}

/** Return the number of draft levels offered to the target: its accepted path and the drafts after its last node. Other
 *  branches of a tree were not reached. If the text ended with a drafted token, there was no bonus token and no draft
 *  after it counts. */
function offered({ nodes, path, emitted: out, placed }) {
  if (!placed?.length && typeof out.at(-1)?.node === "number") return out.length - 1;
  const last = path.length ? path[path.length - 1] : -1, below = [];
  nodes.parents.forEach((parent) => below.push(parent === last || (parent >= 0 && below[parent])));
  return nodes.depth.reduce((deepest, depth, i) => (below[i] ? Math.max(deepest, depth) : deepest), path.length);
}

/** Return all values that the charts overlay on the measurement.
 *  @param {object[]} rounds  @param {object[]|null} plain  rounds of plain decoding, if it was measured
 *  @param {{depth: number, tested: number, accepted: number}[]} byDepth  `figures.acceptanceByDepth(rounds)`
 *  @param {(rounds: object[]) => object[]} calm  `stalls.notStalled`: stalled rounds are left out of the costs
 *  @returns {{tau: number, rate: number, tauIid: number, tauByPosition: number, counts: number[], best:
 *    object|null}|null} `counts`: expected rounds by accepted drafts, if all drafts are equally likely to be accepted;
 *    null if nothing was tested */
export function overlay(rounds, plain, byDepth, calm = (all) => all) {
  const tested = sum(byDepth.map((d) => d.tested));
  if (!tested) return null;
  const rate = sum(byDepth.map((d) => d.accepted)) / tested,
    rates = byDepth.map((d) => d.accepted / d.tested),
    levels = rounds.map(offered);
  const counts = [];
  for (const depth of levels)
    acceptedProbs(Array(depth).fill(rate)).forEach((p, n) => (counts[n] = (counts[n] ?? 0) + p));
  return {
    tau: emitted(rounds) / rounds.length,
    rate,
    counts,
    tauIid: mean(levels.map((d) => expectedTau(rate, d))),
    tauByPosition: mean(levels.map((d) => tauByPosition(rates.slice(0, d)))),
    best: best(rounds, plain, rates, rate, calm),
  };
}

function best(rounds, plain, rates, rate, calm) {
  const depths = rounds.map(depthOf),
    levels = sum(depths),
    timed = calm(rounds),
    base = plain ? calm(plain) : [],
    tokens = emitted(base),
    timedLevels = sum(timed.map(depthOf));
  if (!tokens || !timedLevels) return null;
  const step = sum(base.map((r) => r.seconds)) / tokens,
    line = verifyLine([...timed, ...base]),
    nodes = sum(rounds.map((r) => r.nodes.depth.length)) / levels;
  const cost = {
    level: sum(timed.map((r) => r.draft_s)) / timedLevels / step,
    verify: line.verify / step,
    node: (nodes * line.node) / step,
    other: mean(timed.map((r) => r.overhead_s)) / step,
  };
  const hadDrafts = mean(depths.map((d) => Number(d > 0))); // share of rounds with drafts: small for methods that copy
  return bestDepth(
    [hadDrafts * rates[0], ...rates.slice(1)],
    cost,
    rate,
    2 * depths.reduce((a, b) => Math.max(a, b), 0),
  );
}

/** State the theory in one sentence. Pure. */
export function words(found) {
  if (!found) return "";
  const best = found.best
    ? found.best.depth
      ? `; at the measured costs, ${found.best.depth} draft levels would be fastest`
      : "; at the measured costs, plain decoding would be fastest"
    : "";
  return `measured τ ${found.tau.toFixed(2)}; predicted ${found.tauByPosition.toFixed(2)} from the rates by position, ${found.tauIid.toFixed(2)} if every draft were equally likely to be accepted${best}`;
}
