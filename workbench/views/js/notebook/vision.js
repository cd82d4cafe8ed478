/** Notebook bundle for runs that may have images: widgets, and the player of exported files. */

import * as vision from "../vision/page.js";
import * as livereplay from "../live/replay.js";
import * as visionreplay from "../vision/replay.js";
import * as widget from "./widget.js";

/** Draw a widget into `el`. @param {any} el  @param {{model: object, shared: object}} given */
export const mount = (el, given) => widget.mount(el, { ...given, vision });

/** Play a run from a file, with its images if it has any. @param {any} el  @param {{sources: object, trace:
 *  any, definitions: object}} given */
export const play = (el, given) => (given.trace.header?.pictures?.length ? visionreplay : livereplay).play(el, given);
