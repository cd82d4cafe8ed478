/** Ticks of axes. Pure. */

/** Return a step of 1, 2 or 5 times a power of ten, with at most `most` steps in a range. */
export function niceStep(range, most) {
  const raw = range / most, power = 10 ** Math.floor(Math.log10(raw || 1));
  return power * ([1, 2, 5, 10].find((s) => s * power >= raw) ?? 10);
}

/** Return the ticks of a time axis that starts at 0.
 *  @param {number} seconds  its length  @param {number} scale  pixels per second  @param {"s"|"ms"} [unit]
 *  @returns {{x: number, text: string}[]} */
export function timeTicks(seconds, scale, unit = "s") {
  const step = niceStep(seconds, 5), times = unit === "ms" ? 1e3 : 1;
  return Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => ({
    x: i * step * scale,
    text: `${Number((i * step * times).toPrecision(3))} ${unit}`,
  }));
}

/** Return about four whole numbers from 0 to at most `max`, for an axis of counts. */
export function countTicks(max) {
  const step = Math.max(1, niceStep(max, 4));
  return Array.from({ length: Math.floor(max / step) + 1 }, (_, i) => i * step);
}
