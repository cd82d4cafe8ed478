/** Pairs of runs in the background (`workbench.bench.pairing`): the run on the page and its baseline, each anew and
 *  alone on the device, again and again, so that the interval of the speed-up tightens while one looks. Other runs go
 *  first. */

import * as kit from "../shared/kit.js";
import * as speedup from "../shared/speedup.js";

const PLAIN = "autoregressive";

/** What two runs must share to be pairs of one measurement: everything that was asked of them. Pure; null before the
 *  run has begun. */
export function keyOf(run) {
  if (!run?.key || !run.header) return null;
  const { method, drafter, params } = run.header;
  return JSON.stringify([run.key, method, drafter, params]);
}

/** The request that measures more pairs like a run. Pure. */
export function request({ header }, channel) {
  const { prompt_tokens, prompt, method, params, target, drafter, max_new_tokens, seed } = header;
  return {
    pairs: true,
    channel,
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

/** Why no pairs of a run can be measured, in words; empty where they can; null where there is nothing to say. Pure.
 *  @param {boolean} offered  whether this backend measures pairs  @param {object[]|null} plain  rounds of the
 *    baseline */
export function barred(run, rounds, plain, offered) {
  if (!offered || !plain || !run?.header || run.from !== "live" || !keyOf(run) || run.header.method === PLAIN)
    return null;
  if (rounds.some((r) => r.changes.length))
    return "Settings changed in mid-run: no second run is like it, so one run it stays.";
  return "";
}

/** All ratios of a measurement: those of its earlier parts, then those of the one that goes on. Pure. */
export function ratios(pairs) {
  return pairs ? [...pairs.before, ...pairs.ratios] : [];
}

/** Ratios of the pairs that belong to a run: those measured here, or those that were kept with it. Pure.
 *  @returns {number[]} */
export function ratiosOf(pairs, run) {
  return pairs && pairs.key === keyOf(run) ? ratios(pairs) : (run?.baseline?.ratios ?? []);
}

/** The speed-up over all pairs that belong to a run; null where there are none. Pure. */
export function measured(pairs, run) {
  return speedup.estimate([ratiosOf(pairs, run)]);
}

/** What is kept of plain decoding beside a run: its speed and the ratios of all pairs. Pure.
 *  @param {any} page  @returns {{tokens_per_second: number|null, ratios: number[]}|null}  null: none was measured */
export function baseline({ run, pairs, view }) {
  const rate = view?.plainFigures?.tokens_per_second ?? null;
  return rate === null ? null : { tokens_per_second: rate, ratios: ratiosOf(pairs, run) };
}

/** The line under the key figures, which have the speed-up itself; null: nothing to say. Pure.
 *  @returns {{text: string, button: string}|null} */
export function line(pairs, run, why) {
  if (why === null) return null;
  if (why) return { text: why, button: "" };
  const mine = pairs?.key === keyOf(run) ? pairs : null, n = ratios(mine).length;
  if (!mine) return { text: "One run beside one baseline decides nothing.", button: "Measure more" };
  const said = n ? `${n} pair${n > 1 ? "s" : ""} of runs measured` : "Measuring pairs of runs";
  if (mine.channel)
    return {
      text: `${said} · ${mine.text || "asking the backend"}${mine.waiting ? "" : `, at most ${mine.before.length + mine.most}`}`,
      button: "Stop",
    };
  return {
    text: [said, mine.error || (mine.ended && `ended: ${mine.ended}`)].filter(Boolean).join(" · "),
    button: "Measure more",
  };
}

/** Begin, or go on with, measuring pairs like the run on the page. */
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

/** End it; what was measured stays. */
export function stop(page) {
  if (page.pairs?.job) page.host.call("stop_pairs", { job: page.pairs.job }).catch(() => null);
}

/** The button of the line. */
export function toggle(page) {
  if (page.pairs?.channel) stop(page);
  else start(page);
}

/** A baseline has ended: where it belongs to the run on the page, go on from one run to as many pairs as are needed.
 *  @param {() => string|null} why  why no pairs of the run can be measured, as `barred` says it */
export function follow(page, why) {
  if (page.pairs === undefined) return; // a view that does not measure pairs
  if (page.plain?.state === "finished" && page.run?.state === "finished" && why() === "") start(page);
}

/** Called every second: what is measured for a run that is not on the page any more is ended. */
export function tidy(page) {
  const key = keyOf(page.run);
  if (page.pairs?.channel && key && key !== page.pairs.key) stop(page);
}

/** A message of the bus. */
export function hear(page, message) {
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

/** Draw the line. @param {{text: string, button: string}|null} said */
export function render(parts, said) {
  parts.pairs.hidden = said === null;
  if (said === null) return;
  kit.write(parts.pairsText, said.text);
  kit.write(parts.pairsGo, said.button);
  parts.pairsGo.hidden = !said.button;
}
