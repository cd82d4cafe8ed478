/** Runs that are not held back: what the page draws of them. Browser and engine may share their cores, and every
 *  drawing then slows the run that it shows. The text and the key figures follow each message; what is read rather than
 *  watched (the tree, the node's card, the clock, the curves, the settings) follows a few times a second, and whatever
 *  somebody does, and the end of the run, draws all at once. */

import * as store from "../shared/store.js";

export const READ_MS = 300;

/** What `page.draw` and `page.news` are: both draw once a frame; the first for whatever is to be seen at once, the
 *  second because something has come. @param {() => void} frame  draws in the next frame */
export function drawing(page, frame) {
  page.draw = () => {
    page.asked = true;
    frame();
  };
  page.news = frame;
}

/** Whether all is to be drawn now; if not, it will be once its time has come. */
export function all(page, now, later = setTimeout) {
  const waits = page.asked || !isFast(page) ? 0 : READ_MS - (now - (page.drawnAt ?? -Infinity));
  if (waits > 0) {
    page.drawsAgain ??= later(page.draw, waits);
    return false;
  }
  clearTimeout(page.drawsAgain);
  Object.assign(page, { asked: false, drawnAt: now, drawsAgain: null });
  return true;
}

/** Whether the rounds of the run come as fast as the engine makes them. */
function isFast({ run, plain }) {
  return [run, plain].some((each) => store.isActive(each) && each.state === "running" && !(each.pace > 0));
}
