/** The race: the recorded text of every lane on one clock that starts at the end of the prefill. */

import * as comparetable from "./table.js";
import * as controls from "../shared/controls.js";
import * as copying from "../shared/copying.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as ribbon from "../shared/ribbon.js";

const WINDOW = 36;

/** Return the clock of a race: `t` in seconds; `speed` 1 is the recorded speed. */
export function newRace() {
  return { t: Infinity, speed: 1, playing: false, frame: null };
}

/** Return a lane's state at a time: its tokens so far, and whether it has ended. Pure.
 *  @param {{rounds: [number, [string, string][]][], seconds: number}} race  @param {number} t  seconds
 *  @returns {{tokens: number, of: number, last: [string, string][], ended: boolean, cut: boolean}}  `last`: at most
 *    `window` */
export function at(race, t, window = WINDOW) {
  let tokens = 0, of = 0;
  const last = [];
  for (const [end, emitted] of race.rounds) {
    of += emitted.length;
    if (end > t) continue;
    tokens += emitted.length;
    last.push(...emitted);
  }
  return { tokens, of, last: last.slice(-window), ended: tokens === of, cut: last.length > window };
}

/** Return whether a text is wider than its line, in a monospaced font. Pure. */
export function overflows(words, room, letter = 8.4) {
  return words.reduce((n, word) => n + word.length, 0) * letter > room;
}

/** Return the end of the last lane, in seconds. Pure. */
export function length(lanes, prompt) {
  return Math.max(0, ...lanes.map((lane) => lane.race?.[prompt]?.rounds.at(-1)?.[0] ?? 0));
}

/** Name the run that is replayed, and how it was selected. Pure. */
export function replay(lanes, prompt, repeats, name) {
  const repeat = lanes.find((lane) => lane.race?.[prompt])?.race[prompt].repeat ?? null;
  if (repeat === null) return `replayed: one recorded run of ${name}`; // schema 1 has no repeat index
  return repeats > 1
    ? `replay of repeat ${repeat + 1} of ${repeats} on ${name}, the repeat whose speed-ups are closest to those over all repeats`
    : `replayed: the only run on ${name}`;
}

/** Return the speed-up of the run that a lane replays. The table has the estimates over all prompts and repeats: next
 *  to a race they could rank the lanes in another order. Pure.
 *  @returns {{value: number|null, text: string, of: string}} */
export function ratio(lane, prompt) {
  const value = lane.race?.[prompt]?.speedup ?? null;
  if (lane.plain) return { value: 1, text: "1.00×", of: "reference" };
  return { value, text: value === null ? "–" : `${value.toFixed(2)}×`, of: "this run" };
}

/** Start, continue or stop. `again`: from the beginning. With reduced motion, show the end instead. */
export function toggle(page, again = false) {
  const { race } = page;
  if (race.playing && !again) return stop(page);
  stop(page);
  const end = length(page.comparison?.lanes ?? [], page.prompt);
  if (!end) return;
  if (kit.prefersStill() && again) return seek(page, 1);
  if (again || race.t >= end) race.t = 0;
  race.playing = true;
  let before = performance.now();
  const tick = (now) => {
    race.t += ((now - before) / 1000) * race.speed;
    before = now;
    if (race.t >= end) {
      race.t = end;
      stop(page);
      page.parts.live.textContent = announcement(page);
    } else race.frame = requestAnimationFrame(tick);
    render(page);
  };
  race.frame = requestAnimationFrame(tick);
  page.draw();
}

/** Stop the race. */
export function stop(page) {
  cancelAnimationFrame(page.race.frame);
  page.race.playing = false;
  page.draw();
}

/** Go to a fraction of the race, 0 to 1. */
export function seek(page, share) {
  stop(page);
  page.race.t = share * length(page.comparison?.lanes ?? [], page.prompt);
  page.draw();
}

/** Step back or forward by 1/50 of the race. */
export function nudge(page, direction) {
  const end = length(page.comparison?.lanes ?? [], page.prompt);
  if (end) seek(page, Math.min(1, Math.max(0, Math.min(page.race.t, end) / end + direction / 50)));
}

/** Describe the result. */
function announcement(page) {
  const order = page.comparison.lanes
    .filter((lane) => lane.race?.[page.prompt])
    .sort((a, b) => ratioTime(a, page) - ratioTime(b, page));
  return `The race has ended: ${order.map((lane) => `${lane.name} ${ratioTime(lane, page).toFixed(2)} s`).join(", ")}`;
}

const ratioTime = (lane, page) => lane.race[page.prompt].rounds.at(-1)?.[0] ?? 0;

/** Draw the lanes at the clock's time. Elements are created once and then updated. */
export function render(page) {
  const { parts, comparison, race, prompt } = page;
  const lanes = comparison.lanes.filter((lane) => lane.race?.[prompt]),
    end = length(lanes, prompt),
    t = Math.min(race.t, end),
    of = comparison.prompts[prompt]?.name ?? "";
  const pin = page.pin && lanes.find((lane) => comparetable.key(comparison, lane) === page.pin.key);
  if (document.activeElement !== parts.prompt || parts.prompt._key === undefined)
    controls.select(
      parts.prompt,
      comparison.prompts.map((p, i) => ({ value: `${i}`, text: p.name })),
      `${prompt}`,
    );
  kit.resize(parts.race, lanes.length, row);
  const room = parts.race.firstChild?._more.parentElement.clientWidth ?? 0; // read once, before any write
  lanes.forEach((lane, i) => {
    const line = parts.race.children[i],
      now = at(lane.race[prompt], t),
      view = ratio(lane, prompt),
      against = pin && pin !== lane ? ratio(pin, prompt).value : null;
    kit.set(line, { "data-lane": lane.name });
    kit.write(line._name, lane.name);
    line._text = lane.race[prompt].rounds.flatMap(([, emitted]) => emitted.map(([text]) => text)).join("");
    kit.write(
      line._count,
      `${now.tokens} of ${now.of} tokens${now.ended ? ` · ${ratioTime(lane, page).toFixed(2)} s` : ""}`,
    );
    const cut = now.cut || overflows(now.last.map(([text]) => ribbon.visibleText(text)), room);
    kit.write(line._more, cut ? "…" : "");
    line._tokens.classList.toggle("is-cut", cut);
    now.last.forEach(([text, kind], k) => {
      if (k >= line._tokens.childElementCount) line._tokens.append(h("span"));
      const token = line._tokens.children[k],
        shown = ribbon.visibleText(text),
        name = `wb-token is-${lane.plain ? "plain" : kind}`;
      kit.write(token, shown);
      token._raw = text;
      if (token.className !== name) token.className = name;
      token.hidden = false;
    });
    for (let k = now.last.length; k < line._tokens.childElementCount; k += 1) line._tokens.children[k].hidden = true;
    line._fill.style.width = `${now.of ? (100 * now.tokens) / now.of : 0}%`;
    line._bar.classList.toggle("is-plain", lane.plain);
    kit.write(line._ratio, view.text);
    const isPart = !lane.plain && comparison.prompts.length > 1; // the table has the estimate over all prompts
    kit.write(line._own, isPart ? `${view.of}, ${of} only` : view.of);
    const delta = view.value === null || against === null ? null : view.value - against;
    kit.write(line._delta, delta === null ? "" : comparetable.signed(delta, 2, "×"));
  });
  kit.write(
    parts.raceNote,
    `${replay(lanes, prompt, comparison.settings.repeats, of)} · ${t.toFixed(2)} s of ${end.toFixed(2)} s after the prefill`,
  );
  kit.write(parts.clock, `${t.toFixed(2)} s`);
  if (document.activeElement !== parts.slider || race.playing)
    parts.slider.value = end ? Math.round((1000 * t) / end) : 0;
  parts.slider.setAttribute("aria-valuetext", `${t.toFixed(2)} of ${end.toFixed(2)} seconds`);
  parts.slider.style.setProperty("--fill", `${end ? (100 * t) / end : 0}%`);
  kit.write(parts.play, race.playing ? "❚❚" : "▶");
  parts.play.setAttribute("aria-label", race.playing ? "Stop the race" : "Play the race");
}

function row() {
  const line = h("div", { className: "wb-racer" });
  line.setAttribute("role", "listitem");
  line._name = h("b");
  line._count = h("small");
  line._more = h("span", { className: "wb-more" });
  line._tokens = h("span", { className: "wb-racetokens" });
  line._fill = h("i");
  line._bar = h("div", { className: "wb-racebar" }, line._fill);
  line._ratio = h("b");
  line._own = h("small");
  line._delta = h("small", { className: "wb-delta" });
  line._ratio.title =
    "tokens per second of the replayed run / tokens per second of plain decoding in the same repeat; the table covers all prompts and repeats";
  line.append(
    h(
      "div",
      { className: "wb-racename" },
      line._name,
      line._count,
      copying.button(() => line._text, "the lane's text"),
    ),
    h(
      "div",
      { className: "wb-racetext" },
      h("div", { className: "wb-racewords" }, line._more, line._tokens),
      line._bar,
    ),
    h("div", { className: "wb-raceratio" }, line._ratio, line._own, line._delta),
  );
  return line;
}
