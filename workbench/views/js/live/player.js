/** Playing what was recorded: a pin that moves through the rounds of a run, or a trace that arrives as if it were
 *  live. */

const FRAME_MS = 16;

/** Milliseconds a round is shown for at a speed. Pure. */
export function pause(round, speed) {
  return Math.max(FRAME_MS, (1000 * (round?.seconds ?? 0)) / speed);
}

/** Move a pin through `rounds` from `from` on, at a speed that may change on the way.
 *  @param {{rounds: object[], from: number, speed: () => number, show: (round: number) => void, over: () => void}} of
 *  @returns {() => void} stops it */
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

/** Let the rounds of a trace arrive one by one; at once where motion is unwanted.
 *  @param {{rounds: object[], speed: number, still: boolean, arrive: (upTo: number) => void}} of
 *  @returns {() => void} stops it and lets the rest arrive */
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

/** Stop what plays on a page. */
export function stop(page) {
  page.playing?.();
  page.playing = null;
}
