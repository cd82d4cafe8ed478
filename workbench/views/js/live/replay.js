/** Player of a recorded run in a file: the Live view without a backend. */

import { mount } from "./page.js";
import { standaloneHost } from "../shared/replay.js";

/** Play `trace` in `el`. @param {any} el  @param {{sources: object, trace: object, definitions: object}} given */
export async function play(el, { sources, trace, definitions }) {
  const page = await mount(el, { host: standaloneHost(sources), trace, embed: true });
  Object.assign(page, { definitions });
  page.draw();
}
