/** A comparison while it is measured: which lane runs, how many tokens it has, and what the lanes have come to by
 *  now. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as speedup from "../shared/speedup.js";

/** The comparison so far: each step brings the race of one prompt, the others stay from before. Pure. */
export function merge(before, now) {
  const kept = (i, prompt) => (Array.isArray(before?.lanes[i]?.race) ? before.lanes[i].race[prompt] : null) ?? null;
  const lanes = now.lanes.map((lane, i) =>
    Array.isArray(lane.race)
      ? lane
      : { ...lane, race: now.prompts.map((_, prompt) => lane.race?.[prompt] ?? kept(i, prompt)) },
  );
  return { ...now, lanes };
}

/** Whether a race can be run on a prompt: plain decoding and another lane have a run. Pure. */
export function raced(made, prompt = 0) {
  const there = (made?.lanes ?? []).filter((lane) => Array.isArray(lane.race) && lane.race[prompt]);
  return there.length > 1 && there.some((lane) => lane.plain);
}

/** A row for each lane. Pure.
 *  @param {{lane: string, tokens: number, limit: number, waiting: string}} step
 *  @returns {{name: string, now: boolean, share: number, text: string}[]}  share: of the run in progress, else of all
 *    runs */
export function rows(step, made, words) {
  const all = made.prompts.length * made.settings.repeats;
  return made.lanes.map((lane) => {
    const { n, speedup } = lane.figures, now = step.lane === lane.name && !lane.error, so_far = `${n} of ${all} so far`;
    const found = speedup && !lane.plain ? ` · ${words.sentence(speedup)}` : "";
    const text = lane.error
      ? "left out"
      : now
        ? step.waiting || `${step.tokens} of at most ${step.limit} tokens · run ${Math.min(n + 1, all)} of ${all}`
        : n
          ? `${so_far}${found}`
          : "waits for its turn";
    return { name: lane.name, now, share: now ? step.tokens / Math.max(1, step.limit) : n / all, text };
  });
}

/** The least number of runs that a lane which goes on has: what a screen reader is told of when it rises. Pure. */
export function level(made) {
  const going = (made?.lanes ?? []).filter((lane) => !lane.error);
  return going.length ? Math.min(...going.map((lane) => lane.figures.n)) : 0;
}

/** Draw the rows into `el`; they are kept and changed. */
export function render(el, step, made) {
  const shown = rows(step, made, speedup);
  while (el.childElementCount > shown.length) el.lastChild.remove();
  while (el.childElementCount < shown.length) {
    const row = h(
      "div",
      { className: "wb-nowrow" },
      h("b"),
      h("span", { className: "wb-racebar" }, h("i")),
      h("small"),
    );
    row.setAttribute("role", "listitem");
    el.append(row);
  }
  shown.forEach(({ name, now, share, text }, i) => {
    const row = el.children[i], [title, bar, said] = row.children;
    row.dataset.lane = name;
    row.classList.toggle("is-now", now);
    kit.write(title, name);
    bar.firstChild.style.width = `${Math.round(100 * Math.min(1, share))}%`;
    kit.write(said, text);
  });
}

/** What is said above a recorded example; empty for what was measured here. Pure.
 *  @param {object} made  a comparison  @param {boolean} same  whether the panel asks for the same */
export function banner(made, same) {
  const { machine, settings } = made,
    on = [machine.gpu || machine.cpu, machine.cores ? `${machine.cores} cores` : "", settings.dtype]
      .filter(Boolean)
      .join(", ");
  return `RECORDED example, measured on ${on}; ${machine.date}.${same ? "" : " Its lanes and prompts are not those of the panel."} Measure puts figures of this machine in its place.`;
}
