/** Notebook bundle for text runs: widgets, and the player of exported files. */

import * as livereplay from "../live/replay.js";
import * as widget from "./widget.js";

/** Draw a widget into `el`. @param {any} el  @param {{model: object, shared: object}} given */
export const mount = (el, given) => widget.mount(el, { ...given, vision: null });

/** Play a run from a file. @param {any} el  @param {{sources: object, trace: any, definitions: object}} given */
export const play = (el, given) => livereplay.play(el, given);
