/** Notebook bundle for text runs: widgets, and the player of exported files. */

import * as livereplay from "../live/replay.js";
import * as widget from "./widget.js";

/** Draw a widget into `el`. @param {any} el  @param {{model: object, shared: object}} options */
export const mount = (el, options) => widget.mount(el, { ...options, vision: null });

/** Play a run from a file. @param {any} el  @param {{sources: object, trace: any, definitions: object}} options */
export const play = (el, options) => livereplay.play(el, options);
