/** The Lab view: heads that are trained in a separate process. All data come from the runs' files, which the page
 *  polls: closing a tab loses nothing, and a reopened page shows the current state. */

import * as alerts from "../shared/alerts.js";
import * as controller from "../shared/controller.js";
import * as form from "../shared/form.js";
import { liveLink } from "../shared/pagehead.js";
import * as panel from "./panel.js";
import * as stage from "./stage.js";
import * as words from "./words.js";

const BUSY_MS = 1500, IDLE_MS = 5000, FORGET_MS = 5000;

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export function mount(el, { host }) {
  return controller.open(el, {
    parts: stage.build(el, host),
    host,
    state: {
      offer: null,
      choice: null,
      runs: [],
      openId: new URLSearchParams(host.address.read()).get("run"),
      opened: null,
      recorded: null,
      chosen: new Set(),
      compared: {},
      message: "",
      asksToForget: null,
      lost: false,
    },
    draw,
    wire,
    press,
    arrive: async (page) => {
      example(page);
      page.offer = await alerts.ask(page, "offer");
      if (page.offer) {
        const { heads, targets } = page.offer;
        page.choice = {
          head: heads[0]?.name,
          target: targets.find((t) => t.available !== false)?.name,
          options: {},
        };
      }
      await poll(page);
      again(page);
    },
  });
}

/** Load the recorded training, which is shown until the app has a run of its own. It needs no backend. */
async function example(page) {
  const found = await page.host.call("example", {}).catch(() => null);
  if (!found?.curves) return;
  page.recorded = found;
  page.draw();
}

/** Poll the runs again and again while the tab is visible. */
function again(page) {
  setTimeout(
    async () => {
      if (page.signal.aborted) return;
      if (controller.isOpen(page) && !document.hidden) await poll(page);
      again(page);
    },
    busy(page) ? BUSY_MS : IDLE_MS,
  );
}

const busy = (page) => page.runs.find((run) => run.state === "running")?.id ?? null;

/** Poll the runs. */
async function poll(page) {
  if (!page.offer || page.offer.barred) return page.draw();
  const request = { opened: page.openId, compared: [...page.chosen] };
  const found = await page.host.call("runs", request).catch(() => null);
  page.lost = !found;
  if (found?.error) page.errors = [{ ...found.error, kind: "error", polled: true }];
  else if (found) {
    page.errors = page.errors.filter((error) => !error.polled); // the error is gone
    const was = page.opened;
    Object.assign(page, { runs: found.runs, opened: found.opened, compared: found.compared });
    if (!page.opened && page.runs.length) return open(page, busy(page) ?? page.runs[0].id);
    if (was?.id === page.opened?.id && was?.state === "running" && page.opened.state !== "running")
      page.parts.live.textContent = `The run is ${words.state(page.opened.state)}.`;
  }
  page.draw();
}

/** Open a run. Exported for tests. */
export function open(page, id) {
  if (id !== page.asksToForget) withdraw(page);
  page.openId = id;
  page.host.address.write(`run=${id}`);
  return poll(page);
}

function wire(page, on) {
  on("wb:choose", (change) => {
    Object.assign(page.choice, change);
    page.draw();
  });
  on("wb:param", ({ name, value, note }) => {
    page.choice.options = { ...page.choice.options, [name]: value };
    page.note = note;
    page.draw();
  });
  on("wb:open", ({ id }) => open(page, id));
  on("wb:compare", ({ id, on: chosen }) => {
    if (chosen) page.chosen.add(id);
    else page.chosen.delete(id);
    poll(page);
  });
}

/** Withdraw the question whether to delete a run, and its hint. */
function withdraw(page) {
  clearTimeout(page.forgetting);
  if (page.asksToForget) page.parts.live.textContent = "";
  page.asksToForget = null;
}

/** Act on a button. Deleting asks first: it takes a second press within `FORGET_MS`. Exported for tests. */
export async function press(page, button) {
  const { opened, choice, offer } = page;
  const asksFirst = button === "forget" && opened && page.asksToForget !== opened.id;
  withdraw(page);
  Object.assign(page, { errors: [], message: "" });
  page.parts.live.textContent = "";
  if (asksFirst) {
    page.asksToForget = opened.id;
    page.parts.live.textContent = "Press again to delete the run permanently.";
    page.forgetting = setTimeout(() => {
      withdraw(page);
      page.draw();
    }, FORGET_MS);
    return page.draw();
  }
  if (button === "train") {
    const started = await alerts.ask(page, "train", choice);
    if (started) {
      page.parts.live.textContent = "Training started.";
      page.parts.stage.scrollIntoView?.({ block: "start" });
      await open(page, started.id);
    }
  } else if (!opened) return;
  else if (button === "draftlive") live(page, opened);
  else if (button === "promote") {
    const found = await alerts.ask(page, "promote", { id: opened.id, on: !opened.promoted });
    if (found && !opened.promoted) {
      const method = offer.heads.find((one) => one.name === opened.head)?.title ?? opened.head;
      page.message = `${words.promotionNote(found, method)} On the command line: --head ${found.folder}`;
      page.parts.live.textContent = page.message;
    }
    await poll(page);
  } else {
    const done = await alerts.ask(page, { stop: "stop_training", resume: "resume", forget: "forget" }[button], { id: opened.id });
    if (done && button === "forget") Object.assign(page, { openId: null, opened: null });
    await poll(page);
  }
  page.draw();
}

/** Open Live with the method that uses a head. */
function live({ host, offer }, { head, target }) {
  const method = offer.heads.find((one) => one.name === head)?.method;
  location.assign(liveLink(host.base, { target, method }));
}

function draw(page) {
  if (page.offer && page.choice)
    panel.render(page.parts.side, {
      offer: page.offer,
      choice: page.choice,
      busy: busy(page),
      note: page.note,
      draw: form.render,
    });
  stage.draw(page);
}
