/** Race: a run and plain decoding of the same prompt on one clock that starts at the end of prefill, and its result. */

import * as figures from "../shared/figures.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as ribbon from "../shared/ribbon.js";
import * as speedup from "../shared/speedup.js";

/** Duration of a replay on the page, in seconds; the clock is slowed down to reach it. */
const SHOWN_S = 4;
/** Characters of a lane's newest text that are drawn; the rest is beyond the lane's left edge. */
const MOST_TEXT = 140;

/** Return the clock of a race: `t` in seconds of the runs, `speed` relative to their own. */
export function newRace() {
  return { t: Infinity, speed: 1, playing: false, frame: null };
}

/** Lanes by the first round of their run: a run only grows, and is drawn after each of its rounds. */
const lanes = new WeakMap(), NOTHING = {};

/** Return a lane: end of each round in seconds after the prefill, and tokens and text emitted until then. Pure.
 *  @returns {{name: string, passes: number, tokens: number, seconds: number, ends: number[], counts: number[], texts:
 *    string[]}} */
export function lane(name, rounds) {
  const key = rounds[0] ?? NOTHING, known = lanes.get(key);
  const own = known && known.ends.length <= rounds.length ? known : { passes: 0, ends: [], counts: [], texts: [] };
  for (const round of rounds.slice(own.ends.length)) {
    own.passes += round.target_forwards;
    own.ends.push((round.started_s ?? 0) + round.seconds);
    own.counts.push((own.counts.at(-1) ?? 0) + round.emitted.length);
    own.texts.push(round.emitted.map((e) => ribbon.tokenText(round, e)).join(""));
  }
  if (rounds.length) lanes.set(key, own);
  return { ...own, name, tokens: own.counts.at(-1) ?? 0, seconds: own.ends.at(-1) ?? 0 };
}

/** Return a time with milliseconds below one second, so that the ratio of two times is that of the speed-up. Pure. */
export const clock = (seconds) => `${seconds.toFixed(seconds < 1 ? 3 : 2)} s`;

/** Return whether a lane has as many rounds as a measured run of the same prompt and seed. Pure. */
const fits = (own, timed) => Boolean(own && timed && own.ends.length > 0 && own.ends.length === timed.ends.length);

/** Replace the times of a lane by those of a measured run. */
function takeTimes(own, { ends }) {
  Object.assign(own, { ends, seconds: ends.at(-1) });
}

const passes = (n) => `${n} target pass${n === 1 ? "" : "es"}`;

/** Return the number of rounds that a lane has finished at a time. Pure. */
export function finished({ ends }, t) {
  const open = ends.findIndex((end) => end > t);
  return open < 0 ? ends.length : open;
}

/** Compare the texts of two complete runs. Pure.
 *  @param {object[]} mine  rounds  @param {object[]} plain  @param {{greedy: boolean, exact: boolean}} promised
 *  @returns {string} */
export function compareTexts(mine, plain, { greedy, exact }) {
  const ids = (rounds) => rounds.flatMap((round) => round.emitted.map((e) => e.token));
  const [a, b] = [ids(mine), ids(plain)], same = a.length === b.length && a.every((id, i) => id === b[i]);
  if (same) return "same text, token for token";
  if (!exact) return "the text differs: this method is approximate";
  return greedy ? "the texts differ" : "same distribution, another sample";
}

/** Return the data of the race of a view. Pure.
 *  @param {any} view  of `view.js`  @param {string} none  why there is no plain run  */
export function of(view, none) {
  if (!view.rounds.length && !view.active && view.example) return ofExample(view.example, view.methodTitle);
  const { run, plainRounds, active, figures: own, speed, methodTitle } = view, rounds = run?.raced ?? view.rounds;
  if (!active && (!rounds.length || (!plainRounds && run?.from !== "live"))) return null;
  const names = [...new Set(rounds.map((round) => round.method))].map((name) => methodTitle(name));
  const mine = lane(names.length > 2 ? `${names.length} methods` : names.join(" → ") || methodTitle(run?.header?.method ?? ""), rounds);
  const plain = plainRounds ? lane("Plain decoding", plainRounds) : null;
  const isOver = run?.raced ? true : !active && !view.arriving && Boolean(run?.footer);
  const isTypical = isOver && fits(mine, view.typical?.method) && fits(plain, view.typical?.plain);
  if (isTypical) {
    takeTimes(mine, view.typical.method);
    takeTimes(plain, view.typical.plain);
  }
  const params = run?.header?.params ?? {}, shown = run?.raced ? figures.summary(rounds) : own;
  const title = isOver && plain ? headline(speed) : "";
  return {
    mine,
    plain,
    none,
    over: isOver,
    headline: title,
    faster: title.endsWith("faster"),
    slow: title.includes("slower") ? reasonForSlowness(mine, plain, parseFloat(speed.value)) : "",
    result:
      isOver && plain
        ? [
            [
              speed.label.match(/^no significant difference yet/)?.[0],
              speed.unit,
              speed.label.match(/n = \d+ pairs of runs|one run.*/)?.[0],
            ]
              .filter(Boolean)
              .join(", "),
            isTypical ? "the clock shows the pair of runs that is closest to the estimated speed-up" : "",
            shown.delayed_rounds && !isTypical ? "some rounds of this run were delayed and took longer than at full speed" : "",
            compareTexts(rounds, plainRounds, {
              greedy: !(Number(params.temperature) > 0),
              exact: run?.header?.promise !== "approximate" && !rounds.some(figures.isApproximate),
            }),
            `${passes(mine.passes)} instead of ${plain.passes}`,
          ]
            .filter(Boolean)
            .join(" · ")
        : "",
    shares: rounds.length ? shares(shown) : [],
  };
}

/** Return the race of a recording with a plain run and measured pairs, without a run on display. Pure.
 *  @param {any} trace  with `plain` and `baseline`  @param {(method: string) => string} methodTitle */
export function ofExample(trace, methodTitle) {
  const rounds = trace.rounds, own = figures.summary(rounds), other = figures.summary(trace.plain.rounds);
  const speed = speedup.figure({
    mine: own.tokens_per_second,
    plain: other.tokens_per_second,
    none: "",
    measured: speedup.estimate([trace.baseline?.ratios ?? []]),
  });
  const data = of(
    {
      run: { from: "recorded", header: trace.header, footer: trace.footer, raced: rounds },
      rounds,
      plainRounds: trace.plain.rounds,
      active: false,
      arriving: null,
      figures: own,
      speed,
      methodTitle,
    },
    "",
  );
  return data && { ...data, source: `recorded on ${trace.header.target}` };
}

/** Return the speed-up in words: "2.06× faster", or the bare ratio while its interval contains 1. Pure. */
export function headline({ value, label }) {
  const verdict = ["faster", "slower"].find((word) => label.startsWith(word));
  if (verdict === "slower") return `${value}: slower`;
  if (!verdict && parseFloat(value) < 1 && label.startsWith("one run")) return `${value}: slower in this run`;
  return verdict ? `${value} faster` : value;
}

/** Say why a run was slower than plain decoding: tokens per round, and the duration of a round in plain passes. Pure.
 *  "" for a run that was not slower.
 *  @param {{tokens: number, ends: number[]}} mine  @param {{tokens: number, ends: number[]}} plain
 *  @param {number} ratio  the speed-up shown, from which the duration follows: rounds of the run on display may be
 *    delayed  */
export function reasonForSlowness(mine, plain, ratio) {
  if (!mine.ends.length || !plain.ends.length || !(ratio < 1)) return "";
  const perRound = mine.tokens / mine.ends.length, cost = perRound / (plain.tokens / plain.ends.length) / ratio;
  return `A round gave ${perRound.toFixed(2)} tokens but took as long as ${cost.toFixed(2)} plain passes.`;
}

/** Return the shares of a run's time, which add up to 1. Pure. @returns {{name: string, share: number}[]} */
export function shares({ seconds, draft_seconds, verify_seconds, overhead_seconds, waited_seconds }) {
  const parts = [
    ["draft", draft_seconds],
    ["verify", verify_seconds],
    ["overhead", overhead_seconds],
    ["waiting for other runs", waited_seconds],
  ];
  return parts.filter(([, s]) => s > 0).map(([name, s]) => ({ name, share: s / seconds }));
}

/** Build the card and add its elements to `parts`. @param {Record<string, any>} parts */
export function build(parts) {
  const button = (name, text, title) =>
    (parts[name] = h("button", { type: "button", className: "wb-tool", title }, text));
  const line = (kind) => {
    const row = h("div", { className: `wb-firstracelane is-${kind}` });
    Object.assign(row, {
      _name: h("b"), _passes: h("small"), _text: h("span", { className: "wb-firstracetext" }), _fill: h("i"),
      _rounds: h("span", { className: "wb-firstracerounds" }), _time: h("b", { className: "wb-firstracetime" }),
    });
    row.append(
      h("span", { className: "wb-firstracename" }, row._name, row._passes),
      h("span", { className: "wb-firstracebar" }, row._fill, row._rounds, row._text),
      row._time,
    );
    row.setAttribute("role", "listitem");
    return row;
  };
  parts.raceLanes = h("div", { className: "wb-firstracelanes" }, line("plain"), line("mine"));
  parts.raceLanes.setAttribute("role", "list");
  parts.raceSplit = h("span", { className: "wb-firstracesplit" });
  parts.raceSplit.setAttribute("aria-hidden", "true"); // the words beside it say the same
  parts.race = h(
    "section",
    { className: "wb-card wb-firstrace", hidden: true },
    parts.raceLanes,
    h(
      "div",
      { className: "wb-firstraceresult" },
      (parts.raceHeadline = h("strong")),
      (parts.raceWords = h("span")),
      (parts.raceReason = h("span", { className: "wb-firstracereason", hidden: true }, (parts.raceReasonText = h("span")), " ", (parts.raceOther = h("button", { type: "button", className: "wb-link" }, "Choose another method")))),
      h("span", { className: "wb-firstracebuttons" }, button("raceReplay", "Replay", "Show both runs again on one clock"), button("raceLive", "Run it live", "Decode this prompt now")),
    ),
    (parts.raceTime = h(
      "div",
      { className: "wb-firstracewhere" },
      parts.raceSplit,
      (parts.raceShares = h("span")),
      (parts.raceWhy = h("button", { type: "button", className: "wb-link" }, "Why this fast?")),
    )),
  );
  kit.set(parts.race, { "aria-label": "Race of this run and plain decoding" });
  return parts.race;
}

/** Draw the race at its clock's time. @param {any} race  clock, of `newRace` */
export function render(parts, data, race) {
  parts.race.hidden = data === null;
  if (data === null) return;
  const { mine, plain, none, over } = data, [plainRow, mineRow] = parts.raceLanes.children;
  drawLane(mineRow, mine, race.t, plain ? Math.max(mine.tokens, plain.tokens) : mine.tokens);
  drawLane(plainRow, plain ?? { ...lane("Plain decoding", []), note: none }, race.t, Math.max(mine.tokens, plain?.tokens ?? 0));
  rounds(mineRow._rounds, mine, race.t);
  mineRow._rounds.inert = Boolean(data.source); // its rounds are not on display
  const isDone = over && plain !== null && race.t >= Math.max(mine.seconds, plain.seconds);
  write(parts.raceHeadline, isDone ? data.headline : "");
  write(parts.raceWords, isDone ? [data.result, data.source].filter(Boolean).join(" · ") : race.playing ? `${clock(race.t)}, shown at ${race.speed.toPrecision(2)}× speed` : "");
  parts.raceHeadline.classList.toggle("is-slower", isDone && Boolean(data.slow));
  parts.raceHeadline.classList.toggle("is-open", isDone && !data.slow && !data.faster);
  parts.raceReason.hidden = !isDone || !data.slow;
  write(parts.raceReasonText, data.slow);
  write(parts.raceWhy, !isDone || data.faster ? "Why this fast?" : data.slow ? "Why this slow?" : "Why this speed?");
  parts.raceReplay.hidden = !plain || !over;
  write(parts.raceReplay, race.playing ? "Skip" : "Replay");
  parts.raceTime.hidden = !data.shares.length;
  kit.resize(parts.raceSplit, data.shares.length, () => h("i"));
  data.shares.forEach(({ name, share }, i) => {
    parts.raceSplit.children[i].className = `wb-phase-${name.split(" ")[0]}`;
    parts.raceSplit.children[i].style.flexGrow = String(share);
  });
  write(parts.raceShares, data.shares.map(({ name, share }) => `${name} ${Math.round(100 * share)} %`).join(" · "));
}

function drawLane(row, own, t, most) {
  const n = finished(own, t), tokens = own.counts[n - 1] ?? 0;
  write(row._name, own.name);
  write(row._passes, own.note ? "" : `${passes(n === own.ends.length ? own.passes : n)}`);
  write(row._text, own.note || own.texts.slice(0, n).join("").slice(-MOST_TEXT));
  row._text.classList.toggle("is-note", Boolean(own.note));
  row._fill.style.width = `${most ? (100 * tokens) / most : 0}%`;
  write(row._time, own.note || !own.ends.length ? "" : clock(n === own.ends.length ? own.seconds : t));
}

/** Draw one part per finished round of the run; a click selects that round. Its tokens do the same by keyboard. */
function rounds(el, own, t) {
  const n = finished(own, t), total = own.tokens || 1;
  kit.resize(el, n, (i) => h("span", { onclick: () => kit.emit(el, "wb:pick", { round: i }) }));
  for (let i = 0; i < n; i += 1) {
    const count = own.counts[i] - (own.counts[i - 1] ?? 0), part = el.children[i];
    part.style.width = `${(100 * count) / total}%`;
    part.title = `Round ${i + 1}: ${count} ${count === 1 ? "token" : "tokens"}; show it`;
  }
}

/** Start the clock at the end of prefill. With reduced motion, show the end.
 *  @param {any} page  with `race`  @param {() => any} data  of `of`; null: nothing to show  @param {() => void} show
 *    draws the race  @param {number|null} speed  relative to the runs' own; null: the replay takes `SHOWN_S` */
export function start(page, data, show, speed = null) {
  const { race } = page, now = data();
  if (!now?.plain || kit.prefersStill()) return stop(page, show);
  const end = Math.max(now.mine.seconds, now.plain.seconds);
  Object.assign(race, { t: 0, speed: speed ?? Math.min(1, end / SHOWN_S), playing: true });
  let before = performance.now();
  const tick = (at) => {
    race.t += (Math.max(0, at - before) / 1000) * race.speed;
    before = at;
    if (race.t >= end) return stop(page, show);
    race.frame = requestAnimationFrame(tick);
    show();
  };
  cancelAnimationFrame(race.frame);
  race.frame = requestAnimationFrame(tick);
}

/** Stop the clock at the end of the race. */
export function stop({ race }, show) {
  halt(race);
  show();
}

/** Stop a clock without drawing: another run replaces the one of the race. */
export function halt(race) {
  cancelAnimationFrame(race.frame);
  Object.assign(race, { t: Infinity, playing: false });
}
