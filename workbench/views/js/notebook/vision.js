/** Notebook bundle for runs that may have images: widgets, and the player of exported files. */

import * as vision from "../vision/page.js";
import * as livereplay from "../live/replay.js";
import * as visionreplay from "../vision/replay.js";
import * as widget from "./widget.js";

/** Draw a widget into `el`. @param {any} el  @param {{model: object, shared: object}} options */
export const mount = (el, options) => widget.mount(el, { ...options, vision });

/** Play a run from a file, with its images if it has any. @param {any} el  @param {{sources: object, trace:
 *  any, definitions: object}} options */
export const play = (el, options) =>
  (options.trace.header?.pictures?.length ? visionreplay : livereplay).play(el, options);
