/** A branch and the run it came from: how the page goes from one to the other. */

import * as choices from "./choice.js";
import * as opening from "./opening.js";
import * as memory from "./recall.js";
import * as store from "../shared/store.js";

/** Show the other run of a branch: the one it came from, or from that one the branch. Both stay until the next run. */
export function turn(page) {
  const { run } = page, other = run.origin?.run ?? run.branch;
  if (!other || store.isActive(run)) return;
  if (run.origin) other.branch = run;
  opening.show(page, other);
  if (!other.header || !page.catalogue) return;
  page.choice = { ...choices.adopt(page.choice, memory.inForce(other), page.catalogue), lent: false };
  if (other.origin) Object.assign(page.choice, { prompt_tokens: other.header.prompt_tokens, origin: other.origin });
  other.asked = page.settings();
  page.draw();
}
