/** Common parts of the Live and Vision pages: the state of a page of runs, its header, keys, Export menu, and the
 *  screen-reader announcements of a run. */

import * as controller from "../shared/controller.js";
import * as exports from "../shared/exports.js";
import * as figures from "../shared/figures.js";
import * as ribbon from "../shared/ribbon.js";
import * as store from "../shared/store.js";
import * as help from "./help.js";
import * as player from "./player.js";
import * as selection from "./selection.js";
import * as words from "./words.js";

const ANNOUNCE_MS = 5000;

/** Return the state of a page of runs before anything has arrived. */
function newState() {
  return {
    catalogue: null,
    choice: null,
    run: null,
    plain: null,
    plainKey: "",
    selection: selection.newSelection(),
    pendingPin: null,
    brush: null,
    ghosts: false,
    threshold: 0,
    mode: "spine",
    wantPlain: false,
    changes: {},
    channels: 0,
    playing: null,
    feeding: null,
    next: null,
    lost: 0,
    scroll: false,
    announcedAt: 0,
    announcedRounds: 0,
    stepping: false,
    shownView: null,
    recorded: null,
    estimate: "",
    touched: false,
  };
}

/** Build a page of runs in `el` and show what its address names.
 *  @param {any} el  @param {any} view  as `controller.open` takes it, with `embed`: without settings of its own;
 *    `actions(page)`: functions of its buttons and keys; `applyFrame(page)`: adapt to embedding; `menu(page)`: data of
 *    its exports  @returns {Promise<any>} */
export async function open(el, { embed, state, ...view }) {
  const page = await controller.open(el, {
    ...view,
    state: { ...newState(), embed, ...state },
    main: "run",
    begin: (page) => {
      page.announce = (over) => announce(page, over);
      view.begin(page);
      page.actions = view.actions(page);
    },
    press: (page, button) => page.actions.press(button),
    keys: (page, event) => {
      const meant = help.meaning({ key: event.key, inTree: page.parts.treeCard.contains(event.target) });
      return meant && (() => page.actions[meant[0]](meant[1]));
    },
    arrive: async (page) => {
      await view.arrive(page);
      view.applyFrame(page);
    },
    exports: (page) =>
      exports.ofRun({
        stage: page.parts.stage,
        host: page.host,
        definitions: () => page.view?.definitions ?? {},
        keeps: page.catalogue?.keeps,
        ...view.menu(page),
      }),
  });
  page.ends.push(() => player.stop(page), () => page.feeding?.stop());
  return page;
}

/** Announce to a screen reader: every round while stepping, a summary every few seconds of a run, and its end. */
export function announce(page, over) {
  const { run } = page;
  if (!run || run.from !== "live") return;
  const rounds = store.visible(run), now = performance.now(), last = rounds.at(-1);
  const running = store.isActive(run) && run.state === "running";
  let text = null;
  if (over) text = words.announcement(figures.summary(rounds), true);
  else if (page.stepping && rounds.length !== page.announcedRounds && last) {
    text = `${last.vision?.pictures?.length ? "The image was changed. " : ""}${ribbon.describe(last)}`;
  } else if (running && now - page.announcedAt > ANNOUNCE_MS && last)
    text = words.announcement(figures.summary(rounds), false);
  if (text === null) return;
  Object.assign(page, { announcedAt: now, announcedRounds: rounds.length });
  page.parts.live.textContent = text;
}
