/** Navigation between a branch and its original run. */

import * as alerts from "../shared/alerts.js";
import * as choices from "./choice.js";
import * as opening from "./opening.js";
import * as reload from "./reload.js";
import { h } from "../shared/kit.js";
import * as store from "../shared/store.js";

const NOT_COMPARABLE = {
  message: "One of the two runs has no rounds, so they cannot be compared.",
  remedy: "Continue from the original run again, and let the branch decode at least one round.",
};

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

/** Add the button that shows a branch beside its original run. It is visible with the button before it, which is hidden
 *  while the branch runs. */
export function offerBeside(page) {
  if (!page.host.go) return; // a notebook or a replay has no such tab
  const button = h("button", { type: "button", className: "wb-link wb-beside" }, "side by side");
  button.title = "Open the branch beside its original run, with a linked selection";
  // At the end of a run the lines above change and may move the button between press and release.
  button.addEventListener("pointerdown", (event) => button.setPointerCapture(event.pointerId));
  button.addEventListener("click", () => {
    const pair = besides(page.run);
    if (!pair) return alerts.fail(page, NOT_COMPARABLE);
    window.workbenchPair = pair;
    page.host.go("pair");
  });
  page.parts.originBack.after(" ", button);
}

/** Return the original run and its branch as traces with names; null for another run, or if one has no rounds. Pure.
 *  @param {any} run  a branch, or an original run with a branch */
export function besides(run) {
  const origin = run?.origin ?? run?.branch?.origin, branch = run?.origin ? run : run?.branch;
  const original = run?.origin ? run.origin.run : run;
  if (!origin || ![original, branch].every((each) => each?.header && store.visible(each).length)) return null;
  const name = `branch at round ${origin.round + 1}`;
  return [{ name: "original run", trace: store.toTrace(original) }, { name, trace: store.toTrace(branch) }];
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
