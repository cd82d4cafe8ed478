/** Speed-up: estimator, confidence interval and wording, as in `workbench/trace/speedup.py`; a test checks both with
 *  the same numbers. Geometric mean over the repeats of a prompt, then over prompts. The interval is Student's t on the
 *  logarithms, over prompts if there are at least three, else over repeats. */

const FEWEST_PROMPTS = 3, CONFIDENCE = 0.95;
export const FASTER = "faster";
export const SLOWER = "slower";
export const OPEN = "no significant difference yet";

const sum = (values) => values.reduce((a, b) => a + b, 0);
const runs = (n) => (n === 1 ? "one run" : `${n} runs`);

/** Return the geometric mean of ratios or rates with its interval. Pure.
 *  @param {number[][]} values  by prompt, one for each repeat, all above 0
 *  @returns {{value: number, low: number|null, high: number|null, n: number, prompts: number}|null} */
export function estimate(values, confidence = CONFIDENCE) {
  const logs = values.filter((own) => own.length).map((own) => own.map(Math.log)),
    prompts = logs.length,
    n = sum(logs.map((own) => own.length));
  if (!prompts) return null;
  const means = logs.map((own) => sum(own) / own.length),
    centre = sum(means) / prompts,
    over = prompts >= FEWEST_PROMPTS;
  const freedom = over ? prompts - 1 : n - prompts,
    found = { value: Math.exp(centre), low: null, high: null, n, prompts };
  if (freedom < 2) return found;
  const apart = over
    ? sum(means.map((mean) => (mean - centre) ** 2))
    : sum(logs.map((own, i) => sum(own.map((x) => (x - means[i]) ** 2))));
  const error = over
    ? Math.sqrt(apart / freedom / prompts)
    : Math.sqrt((apart / freedom) * sum(logs.map((own) => 1 / own.length))) / prompts;
  const half = tQuantile(freedom, confidence) * error;
  return { ...found, low: Math.exp(centre - half), high: Math.exp(centre + half) };
}

/** Return the speed-up of runs over plain runs, paired by prompt and repeat. Pure.
 *  @param {{prompt: number, repeat: number, rate: number}[]} mine  @param {object[]} plain  rates in tokens per
 *    second */
export function speedup(mine, plain) {
  const theirs = new Map(plain.map((run) => [`${run.prompt},${run.repeat}`, run.rate])), byPrompt = new Map();
  for (const { prompt, repeat, rate } of mine) {
    const other = theirs.get(`${prompt},${repeat}`);
    if (rate > 0 && other > 0) byPrompt.set(prompt, [...(byPrompt.get(prompt) ?? []), rate / other]);
  }
  return estimate([...byPrompt.values()]);
}

/** Return the speed-up of a lane from its runs in a saved comparison. Pure.
 *  @param {{prompt: number, repeat: number, token_ids: number[], seconds: number, decode_seconds: number|null}[]} mine
 *    @param {object[]} plain */
export function ofRuns(mine, plain) {
  const rates = (side) =>
    side.map((run) => ({
      prompt: run.prompt,
      repeat: run.repeat,
      rate: run.token_ids.length / (run.decode_seconds || run.seconds),
    }));
  return speedup(rates(mine), rates(plain));
}

/** Short forms of reasons for no speed-up, by the start of the reason. */
const SHORT = [["baseline invalid", "baseline invalid"], ["two runs", "run one drafter alone"]];

/** Return the key figure "speed-up" of a run on a page. Pure: a single pair gives no verdict, however far from 1× it
 *  is.
 *  @param {{mine: number|null, plain: number|null, none: string, measured?: any, stalled?: string}} known  `mine`,
 *    `plain`: tokens per second of the two runs on the page; `none`: why there is no plain run; `measured`: an estimate
 *    from several pairs of such runs, which then replaces the single ratio; `stalled`: note on stalled rounds
 *  @returns {{value: string, unit: string, label: string, worked: string}} */
export function figure({ mine, plain, none, measured = null, stalled = "" }) {
  const own = mine && plain ? mine / plain : null;
  if (measured && measured.n > 1)
    return {
      value: `${measured.value.toFixed(2)}×`,
      unit: range(measured),
      label: measured.low === null ? verdict(measured) : `${verdict(measured)}, n = ${measured.n} pairs of runs`,
      worked: sentence(measured),
    };
  if (own === null)
    return {
      value: "—",
      unit: "",
      label: `speed-up: ${SHORT.find(([start]) => none.startsWith(start))?.[1] ?? "no baseline"}`,
      worked: none,
    };
  return {
    value: `${own.toFixed(2)}×`,
    unit: "",
    label: ["one run", stalled].filter(Boolean).join(", "),
    worked: `${mine.toFixed(1)} / ${plain.toFixed(1)} tokens per second; one pair of runs is not enough for a verdict`,
  };
}

/** Return the half-width of Student's interval in standard errors: inverse of the sums in Abramowitz & Stegun 26.7.3
 *  and 26.7.4. Pure. */
export function tQuantile(freedom, confidence = CONFIDENCE) {
  const inside = (t) => {
    const angle = Math.atan(t / Math.sqrt(freedom)), cosine = Math.cos(angle), even = freedom % 2 === 0;
    let term = even ? 1 : cosine, total = freedom > 1 ? term : 0;
    for (let k = even ? 2 : 3; k < freedom; k += 2) total += term *= ((k - 1) / k) * cosine ** 2;
    return even ? Math.sin(angle) * total : (2 / Math.PI) * (angle + Math.sin(angle) * total);
  };
  let low = 0, high = 1;
  while (inside(high) < confidence) high *= 2;
  for (let i = 0; i < 60; i++)
    [low, high] = inside((low + high) / 2) < confidence ? [(low + high) / 2, high] : [low, (low + high) / 2];
  return (low + high) / 2;
}

/** Return "faster" or "slower" if the whole interval is on one side of 1×; else "no significant difference yet", or the
 *  number of runs. Pure. */
export function verdict(found) {
  if (found.low === null) return runs(found.n);
  return found.low > 1 ? FASTER : found.high < 1 ? SLOWER : OPEN;
}

/** State the sample of the interval. Pure. */
export function basis(found) {
  if (found.low === null) return runs(found.n);
  if (found.prompts >= FEWEST_PROMPTS)
    return `n = ${found.n}${found.n > found.prompts ? `: ${found.prompts} prompts` : " prompts"}`;
  return `n = ${found.n}, ${these(found)} only`;
}

const these = (found) => (found.prompts === 1 ? "this prompt" : `these ${found.prompts} prompts`);

/** Format the interval, as in "1.31–1.77×"; empty if there is none. Pure. */
export function range(found) {
  return found.low === null ? "" : `${found.low.toFixed(2)}–${found.high.toFixed(2)}×`;
}

/** State figure and verdict in one line: no verdict while the interval contains 1×, and none for prompts that were not
 *  run. Pure. */
export function sentence(found) {
  if (found.low !== null && found.prompts < FEWEST_PROMPTS && verdict(found) !== OPEN)
    return `${found.value.toFixed(2)}×: ${verdict(found)} on ${these(found)} (${range(found)}, n = ${found.n})`;
  return `${found.value.toFixed(2)}×: ${verdict(found)}${found.low === null ? "" : ` (${range(found)}, ${basis(found)})`}`;
}
