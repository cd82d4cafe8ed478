/** Background measurement of run pairs (`workbench.bench.pairing`): the run on the page and its baseline are repeated,
 *  each alone on the device, so that the interval of the speed-up narrows. Other runs have priority. */

import * as kit from "../shared/kit.js";
import * as speedup from "../shared/speedup.js";

const PLAIN = "autoregressive";

/** Return the settings that two runs must share to be pairs of one measurement. Pure; null before the run has started.
 *  */
export function keyOf(run) {
  if (!run?.key || !run.header) return null;
  const { method, drafter, params } = run.header;
  return JSON.stringify([run.key, method, drafter, params]);
}

/** Return the request that measures more pairs of a run. Pure. */
export function request({ header, id }, channel) {
  const { prompt_tokens, prompt, method, params, target, drafter, max_new_tokens, seed } = header;
  return {
    pairs: true,
    channel,
    ...(id && { run: id }),
    prompt,
    ...(prompt_tokens.length && { prompt_tokens }),
    method,
    params,
    target,
    drafter,
    max_new_tokens,
    seed,
  };
}

/** Return why no pairs of a run can be measured; "" if they can; null if there is nothing to show. Pure.
 *  @param {boolean} offered  whether this backend measures pairs  @param {object[]|null} plain  rounds of the
 *    baseline */
export function barred(run, rounds, plain, offered) {
  if (!offered || !plain || !run?.header || run.from !== "live" || !keyOf(run) || run.header.method === PLAIN)
    return null;
  if (rounds.some((r) => r.changes.length))
    return "Settings changed during this run, so it cannot be repeated.";
  return "";
}

/** Return all ratios of a measurement: first of its earlier parts, then of the current part. Pure. */
export function ratios(pairs) {
  return pairs ? [...pairs.before, ...pairs.ratios] : [];
}

/** Return the ratios of the pairs that belong to a run: measured here, or stored with the run. Pure.
 *  @returns {number[]} */
export function ratiosOf(pairs, run) {
  return pairs && pairs.key === keyOf(run) ? ratios(pairs) : (run?.baseline?.ratios ?? []);
}

/** Return the speed-up over all pairs that belong to a run; null if there are none. Pure. */
export function measured(pairs, run) {
  return speedup.estimate([ratiosOf(pairs, run)]);
}

/** Return the times of the pair whose speed-up is closest to the estimate: rates, and the end of each round; null if
 *  none belongs to the run. Pure.
 *  @returns {{method: {rate: number, ends: number[]}, plain: {rate: number, ends: number[]}}|null} */
export function typicalOf(pairs, run) {
  return (pairs?.key === keyOf(run) && pairs?.typical) || null;
}

/** Return the baseline data to store with a run: speed of plain decoding and the ratios of all pairs. Pure.
 *  @param {any} page  @returns {{tokens_per_second: number|null, ratios: number[]}|null}  null: no baseline */
export function baseline({ run, pairs, view }) {
  const rate = view?.plainFigures?.tokens_per_second ?? null;
  return rate === null ? null : { tokens_per_second: rate, ratios: ratiosOf(pairs, run) };
}

/** Return the line under the key figures (which show the speed-up itself); null if there is nothing to show. Pure.
 *  @param {boolean} [expected]  whether a baseline follows or is being measured: the line then has its place from the
 *    start of the run, because the parts below must not move at the end of the run
 *  @returns {{text: string, button: string}|null} */
export function line(pairs, run, why, expected = false) {
  if (why === null) return expected ? { text: "Next to measure: the baseline, then pairs of runs.", button: "" } : null;
  if (why) return { text: why, button: "" };
  const mine = pairs?.key === keyOf(run) ? pairs : null, n = ratios(mine).length;
  if (!mine) return { text: "One pair of runs is not enough for a reliable speed-up.", button: "Measure more" };
  const text = n ? `${n} pair${n > 1 ? "s" : ""} of runs measured` : "Measuring pairs of runs";
  if (mine.channel)
    return {
      text: `${text} · ${mine.text || "waiting for the backend"}${mine.waiting ? "" : `, at most ${mine.before.length + mine.most}`}`,
      button: "Stop",
    };
  return {
    text: [text, mine.error || (mine.ended && `ended: ${mine.ended}`)].filter(Boolean).join(" · "),
    button: "Measure more",
  };
}

/** Start, or continue, measuring pairs of the run on the page. */
export function start(page) {
  const { run, pairs } = page, key = keyOf(run);
  if (page.pairs?.channel || !key) return;
  const channel = `pairs-${(page.channels += 1)}-${Math.random().toString(36).slice(2, 8)}`;
  page.pairs = {
    channel,
    key,
    job: null,
    before: pairs?.key === key ? ratios(pairs) : [],
    ratios: [],
    most: 12,
    text: "",
    waiting: false,
    ended: "",
    error: "",
  };
  page.host.decode(request(run, channel));
  page.draw();
}

/** Stop measuring; the ratios stay. */
export function stop(page) {
  if (page.pairs?.job) page.host.call("stop_pairs", { job: page.pairs.job }).catch(() => null);
}

/** Handle the button of the line. */
export function toggle(page) {
  if (page.pairs?.channel) stop(page);
  else start(page);
}

/** A baseline has ended: if it belongs to the run on the page, continue with as many pairs as are needed.
 *  @param {() => string|null} why  why no pairs of the run can be measured, as `barred` returns it */
export function continueAfter(page, why) {
  if (page.pairs === undefined) return; // a view that does not measure pairs
  if (page.plain?.state === "finished" && page.run?.state === "finished" && why() === "") start(page);
}

/** Called every second: stop measuring for a run that is no longer on the page. */
export function stopStale(page) {
  const key = keyOf(page.run);
  if (page.pairs?.channel && key && key !== page.pairs.key) stop(page);
}

/** Handle a message of the event stream. */
export function onMessage(page, message) {
  const { pairs } = page;
  if (!pairs?.channel || message.channel !== pairs.channel) return;
  pairs.job = message.job ?? pairs.job;
  if (message.pairs) Object.assign(pairs, message.pairs);
  if (message.error) pairs.error = [message.error.message, message.error.remedy].filter(Boolean).join(" ");
  if (message.error || pairs.ended) {
    pairs.channel = null;
    const found = measured(pairs, page.run);
    if (found) page.parts.live.textContent = `Speed-up ${speedup.sentence(found)}`;
  }
  page.draw();
}

/** Draw the line. @param {{text: string, button: string}|null} shown */
export function render(parts, shown) {
  parts.pairs.hidden = shown === null;
  if (shown === null) return;
  kit.write(parts.pairsText, shown.text);
  kit.write(parts.pairsGo, shown.button);
  parts.pairsGo.hidden = !shown.button;
}
