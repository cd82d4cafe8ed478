/** Playback of recorded runs: a pin that moves through the rounds, or a trace that arrives as if it were live. */

const FRAME_MS = 16;

/** Return how long a round is shown at a speed, in milliseconds. Pure. */
export function pause(round, speed) {
  return Math.max(FRAME_MS, (1000 * (round?.seconds ?? 0)) / speed);
}

/** Move a pin through `rounds` from `from` on; the speed may change meanwhile.
 *  @param {{rounds: object[], from: number, speed: () => number, show: (round: number) => void, over: () => void}} of
 *  @returns {() => void} stops the playback */
export function play({ rounds, from, speed, show, over }) {
  let at = from >= rounds.length - 1 ? 0 : from, timer = null;
  const tick = () => {
    show(at);
    timer = at + 1 < rounds.length ? setTimeout(tick, pause(rounds[at], speed())) : over();
    at += 1;
  };
  tick();
  return () => clearTimeout(timer);
}

/** Return the steps of a playback word by word: every token of every round, which share the round's time; a round
 *  without tokens is one step. Pure.
 *  @param {{seconds?: number, emitted: object[]}[]} rounds
 *  @returns {{round: number, token: number|null, seconds: number}[]} */
export function wordSteps(rounds) {
  return rounds.flatMap(({ seconds = 0, emitted }, round) =>
    emitted.length
      ? emitted.map((_, token) => ({ round, token, seconds: seconds / emitted.length }))
      : [{ round, token: null, seconds }],
  );
}

/** Let the rounds of a trace arrive one by one; all at once with `still` (reduced motion).
 *  @param {{rounds: object[], speed: number, still: boolean, arrive: (upTo: number) => void}} of
 *  @returns {() => void} stops the playback and lets the rest arrive */
export function feed({ rounds, speed, still, arrive }) {
  if (still) return arrive(rounds.length), () => {};
  let n = 0, timer = null;
  const tick = () => {
    arrive((n += 1));
    timer = n < rounds.length ? setTimeout(tick, pause(rounds[n - 1], speed)) : null;
  };
  tick();
  return () => {
    clearTimeout(timer);
    if (n < rounds.length) arrive(rounds.length);
  };
}

/** Stop the playback on a page. */
export function stop(page) {
  page.playing?.();
  page.playing = null;
}
