/** The Lab view: heads that are trained in a separate process. All data come from the runs' files, which the page
 *  polls: closing a tab loses nothing, and a reopened page shows the current state. */

import * as form from "../shared/form.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import { liveLink } from "../shared/pagehead.js";
import * as panel from "./panel.js";
import * as stage from "./stage.js";
import * as words from "./words.js";

const BUSY_MS = 1500, IDLE_MS = 5000, FORGET_MS = 5000;

/** Mount the view in `el`. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const page = {
    el,
    host,
    parts: stage.build(el, host),
    offer: null,
    choice: null,
    runs: [],
    openId: new URLSearchParams(host.address.read()).get("run"),
    opened: null,
    chosen: new Set(),
    compared: {},
    errors: [],
    message: "",
    asksToForget: null,
    note: "",
    lost: false,
    draw: () => {},
  };
  page.draw = kit.paced(() => host.isOpen?.() !== false && draw(page));
  wire(page);
  new ResizeObserver(page.draw).observe(page.parts.stage);
  page.draw();
  page.offer = await jobs.ask(page, "offer");
  if (page.offer) {
    const { heads, targets } = page.offer;
    page.choice = {
      head: heads[0]?.name,
      target: targets.find((t) => t.available !== false)?.name,
      options: {},
    };
  }
  await poll(page);
  el.dataset.ready = "true";
  const again = async () => {
    if (host.isOpen?.() !== false && !document.hidden) await poll(page);
    page.timer = setTimeout(again, busy(page) ? BUSY_MS : IDLE_MS);
  };
  page.timer = setTimeout(again, BUSY_MS);
  return page;
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

function wire(page) {
  const { el, parts, host } = page, on = (name, act) => el.addEventListener(name, (event) => act(event.detail));
  on("wb:redraw", page.draw);
  on("wb:choose", (change) => {
    Object.assign(page.choice, change);
    page.draw();
  });
  on("wb:param", ({ name, value, note }) => {
    page.choice.options = { ...page.choice.options, [name]: value };
    page.note = note;
    page.draw();
  });
  on("wb:press", ({ button }) => press(page, button));
  on("wb:open", ({ id }) => open(page, id));
  on("wb:compare", ({ id, on: chosen }) => {
    if (chosen) page.chosen.add(id);
    else page.chosen.delete(id);
    poll(page);
  });
  parts.theme.addEventListener("click", () => host.theme());
}

/** Withdraw the question whether a run shall be deleted, and its hint. */
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
    const started = await jobs.ask(page, "train", choice);
    if (started) {
      page.parts.live.textContent = "Training started.";
      page.parts.stage.scrollIntoView?.({ block: "start" });
      await open(page, started.id);
    }
  } else if (!opened) return;
  else if (button === "draftlive") live(page, opened);
  else if (button === "promote") {
    const found = await jobs.ask(page, "promote", { id: opened.id, on: !opened.promoted });
    if (found && !opened.promoted) {
      const method = offer.heads.find((one) => one.name === opened.head)?.title ?? opened.head;
      page.message = `${words.promotionNote(found, method)} On the command line: --head ${found.folder}`;
      page.parts.live.textContent = page.message;
    }
    await poll(page);
  } else {
    const done = await jobs.ask(page, { stop: "stop_training", resume: "resume", forget: "forget" }[button], { id: opened.id });
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
