/** Drawing rate of runs at full speed. Browser and engine may share CPU cores, so each redraw slows the run. The text
 *  and the key figures follow each message; tree, node card, clock, curves and settings follow every `READ_MS`. A
 *  user's action and the end of the run redraw everything at once. */

import * as store from "../shared/store.js";

export const READ_MS = 300;

/** Set `page.draw` and `page.news`; both draw in the next frame. `draw` draws everything, `news` only reports that data
 *  arrived. @param {() => void} frame  draws in the next frame */
export function setDrawing(page, frame) {
  page.draw = () => {
    page.redrawAll = true;
    frame();
  };
  page.news = frame;
}

/** Return whether to draw everything now; otherwise schedule it. */
export function all(page, now, later = setTimeout) {
  const waits = page.redrawAll || !isFast(page) ? 0 : READ_MS - (now - (page.drawnAt ?? -Infinity));
  if (waits > 0) {
    page.drawsAgain ??= later(page.draw, waits);
    return false;
  }
  clearTimeout(page.drawsAgain);
  Object.assign(page, { redrawAll: false, drawnAt: now, drawsAgain: null });
  return true;
}

/** Return whether the run is not paced: its rounds arrive as fast as the engine produces them. */
function isFast({ run, plain }) {
  return [run, plain].some((each) => store.isActive(each) && each.state === "running" && !(each.pace > 0));
}
