/** Progress of a comparison: the lane that runs, its token count, and the results so far. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as speedup from "../shared/speedup.js";

/** Merge a step into the comparison: each step brings the race of one prompt; the other races are kept. Pure. */
export function merge(before, now) {
  const earlier = (i, prompt) => (Array.isArray(before?.lanes[i]?.race) ? before.lanes[i].race[prompt] : null) ?? null;
  const lanes = now.lanes.map((lane, i) =>
    Array.isArray(lane.race)
      ? lane
      : { ...lane, race: now.prompts.map((_, prompt) => lane.race?.[prompt] ?? earlier(i, prompt)) },
  );
  return { ...now, lanes };
}

/** Return whether a race is possible on a prompt: plain decoding and at least one other lane have a run. Pure. */
export function canRace(comparison, prompt = 0) {
  const there = (comparison?.lanes ?? []).filter((lane) => Array.isArray(lane.race) && lane.race[prompt]);
  return there.length > 1 && there.some((lane) => lane.plain);
}

/** Return one row per lane. Pure.
 *  @param {{lane: string, tokens: number, limit: number, waiting: string}} step
 *  @returns {{name: string, now: boolean, share: number, text: string}[]}  share: finished part of the run in
 *    progress, else of all runs */
export function rows(step, comparison, words) {
  const all = comparison.prompts.length * comparison.settings.repeats;
  return comparison.lanes.map((lane) => {
    const { n, speedup } = lane.figures, now = step.lane === lane.name && !lane.error, so_far = `${n} of ${all} runs so far`;
    const found = speedup && !lane.plain ? ` · ${words.sentence(speedup)}` : "";
    const text = lane.error
      ? "lane left out after an error"
      : now
        ? step.waiting || `${step.tokens} of at most ${step.limit} tokens · run ${Math.min(n + 1, all)} of ${all}`
        : n
          ? `${so_far}${found}`
          : "waiting";
    return { name: lane.name, now, share: now ? step.tokens / Math.max(1, step.limit) : n / all, text };
  });
}

/** Return the smallest number of runs over all lanes without errors; each increase is announced. Pure. */
export function level(comparison) {
  const going = (comparison?.lanes ?? []).filter((lane) => !lane.error);
  return going.length ? Math.min(...going.map((lane) => lane.figures.n)) : 0;
}

/** Draw the rows into `el`; existing rows are updated. */
export function render(el, step, comparison) {
  const shown = rows(step, comparison, speedup);
  kit.resize(el, shown.length, () => {
    const row = h(
      "div",
      { className: "wb-nowrow" },
      h("b"),
      h("span", { className: "wb-racebar" }, h("i")),
      h("small"),
    );
    row.setAttribute("role", "listitem");
    return row;
  });
  shown.forEach(({ name, now, share, text }, i) => {
    const row = el.children[i], [title, bar, status] = row.children;
    row.dataset.lane = name;
    row.classList.toggle("is-now", now);
    kit.write(title, name);
    bar.firstChild.style.width = `${Math.round(100 * Math.min(1, share))}%`;
    kit.write(status, text);
  });
}

/** Return the banner of a recorded example. Pure.
 *  @param {object} comparison  a comparison  @param {boolean} same  whether the panel asks for the same comparison */
export function banner(comparison, same) {
  const { machine, settings } = comparison,
    on = [machine.gpu || machine.cpu, machine.cores ? `${machine.cores} cores` : "", settings.dtype]
      .filter(Boolean)
      .join(", ");
  return `RECORDED example, measured on ${on}; ${machine.date}.${same ? "" : " Its lanes or prompts differ from the panel's."} Press Measure for results of this machine.`;
}
