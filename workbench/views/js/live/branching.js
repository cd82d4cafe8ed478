/** Navigation between a branch and its original run. */

import * as choices from "./choice.js";
import * as opening from "./opening.js";
import * as reload from "./reload.js";
import * as store from "../shared/store.js";

/** Show the original run of a branch, or the branch of an original run. Both are kept until the next run. */
export function showOther(page) {
  const { run } = page, other = run.origin?.run ?? run.branch;
  if (!other || store.isActive(run)) return;
  if (run.origin) other.branch = run;
  opening.show(page, other);
  if (!other.header || !page.catalogue) return;
  page.choice = { ...choices.adopt(page.choice, reload.currentHeader(other), page.catalogue), lent: false };
  if (other.origin) Object.assign(page.choice, { prompt_tokens: other.header.prompt_tokens, origin: other.origin });
  other.settingsQuery = page.settings();
  page.draw();
}

/** Session-storage key of the original run of the last branch, for a reload. */
const KEY = "wb-origin";

/** Store the origin of the run on the page once the run has an id. */
export function note({ run, host }) {
  const { origin } = run ?? {};
  if (!run?.id || !origin || origin.noted) return;
  origin.noted = true;
  const { round, text, instead } = origin, parent = origin.run?.id ?? null;
  host.remember?.setItem(KEY, JSON.stringify({ branch: run.id, parent, round, text, instead }));
}

/** After a reload, restore the origin of the run on the page, if the backend still has the original run. */
export async function restore({ run, host, channels }) {
  const stored = read(host);
  if (!run?.id || run.origin || stored?.branch !== run.id) return;
  const { parent, round, text, instead } = stored;
  const answer = parent && (await host.call("fetch_trace", { run: parent, from: 0 }).catch(() => null));
  const other = answer?.header ? Object.assign(store.newRun(`parent-${channels}`), { id: parent, closed: true }) : null;
  if (other) store.apply(other, answer);
  run.origin = { round, text, instead, run: other, noted: true };
}

function read({ remember }) {
  try {
    return JSON.parse(remember?.getItem(KEY) ?? "null");
  } catch {
    return null; // written by an earlier version
  }
}
