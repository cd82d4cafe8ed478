/** Player of a recorded Vision run in a file; runs without images open in Live's view. */

import * as live from "../live/replay.js";
import { standaloneHost } from "../shared/replay.js";
import { mount } from "./page.js";

/** Play `trace` in `el`. @param {any} el  @param {{sources: object, trace: any, definitions: object, lexicon?:
 *  object|null}} given */
export async function play(el, { sources, trace, definitions, lexicon = null }) {
  if (!trace.header?.pictures?.length) return live.play(el, { sources, trace, definitions });
  const page = await mount(el, { host: standaloneHost(sources), trace, embed: true });
  Object.assign(page, { definitions });
  Object.assign(page.vision, { lexicon });
  page.draw();
}
