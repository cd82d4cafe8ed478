/** The short tour: a panel over the Live page whose steps highlight one part each and select a round that shows it. The
 *  page stays usable meanwhile. The steps are those of `workbench/views/tour.py`. */

import { ask } from "../shared/alerts.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as opening from "./opening.js";
import * as player from "./player.js";
import * as preferences from "../shared/preferences.js";
import * as store from "../shared/store.js";

/** Preference: off once the reader has closed the tour. In session storage: the step of an open tour, for a reload. */
const NAME = "wb-tour";
const NARROW = "(max-width: 560px)";
/** Distance of the panel from the edges of the window, in pixels. */
const EDGE = 16;

/** Return the selection that shows a step's subject, or null to keep the current one. Pure.
 *  @param {string} shows  "rejected": a round with a rejected draft; "sibling": one in which a later sibling was
 *    accepted, else one with a rejected draft; without such a round, the largest draft; "": any round
 *  @param {{path: number[], nodes: {status: string[], parents: number[]}}[]} rounds
 *  @returns {{round: number, node?: number}|null} */
export function selectionFor(shows, rounds) {
  const places = rounds.flatMap(({ nodes, path }, round) => {
    const is = (status, i) => nodes.status[i] === status;
    const later = (i) => nodes.status.findIndex((_, k) => k < i && is("rejected", k) && nodes.parents[k] === nodes.parents[i]) >= 0;
    const node = shows === "sibling" ? path.findLast(later) : nodes.status.indexOf("rejected");
    return node === undefined || node < 0 ? [] : [{ round, node, accepted: path.length }];
  });
  const best = places.toSorted((a, b) => b.accepted - a.accepted)[0];
  if (!shows || !rounds.length) return null;
  if (!best && shows === "sibling") return selectionFor("rejected", rounds);
  if (best) return { round: best.round, node: best.node };
  const sizes = rounds.map(({ nodes }) => nodes.status.length), largest = Math.max(...sizes);
  return largest ? { round: sizes.indexOf(largest) } : null;
}

/** Return the corner in which a panel covers least of a part. Pure; in pixels of the window.
 *  @param {{left: number, top: number, right: number, bottom: number}} part
 *  @param {{width: number, height: number}} panel
 *  @param {{left: number, top: number, right: number, bottom: number}} free  region that the panel may use
 *  @returns {{left: number, top: number}} */
export function corner(part, panel, free) {
  const lefts = [free.right - panel.width, free.left], tops = [free.bottom - panel.height, free.top];
  const all = tops.flatMap((top) => lefts.map((left) => ({ left, top })));
  const shared = (a, b, c, d) => Math.max(0, Math.min(b, d) - Math.max(a, c));
  const covers = ({ left, top }) =>
    shared(left, left + panel.width, part.left, part.right) * shared(top, top + panel.height, part.top, part.bottom);
  return all.reduce((best, each) => (covers(each) < covers(best) ? each : best));
}

/** Return the element of a step's part; null if the page does not show it. */
function elementOf({ parts }, part) {
  const picker = () => parts.side.querySelector("[data-what=method]")?.closest(".wb-pick");
  const element = {
    race: parts.race,
    text: parts.ribbonCard,
    tree: parts.treeCard,
    card: parts.cardCard,
    curves: parts.curves,
    picker: picker(),
    share: parts.copy,
  }[part];
  return element && !element.closest("[hidden]") ? element : null;
}

/** Connect the buttons that open the tour. */
export function wire(page) {
  const { parts, signal } = page;
  page.tour = null;
  if (!page.host.address || !page.host.call) return void (parts.introTour.hidden = true);
  invite(parts);
  parts.introTour.addEventListener("click", () => open(page, parts.introTour), { signal });
  const again = h("button", { type: "button", className: "wb-tool wb-tourbutton" }, "Two-minute tour");
  again.addEventListener("click", () => (parts.keys.close(), open(page, parts.help)), { signal });
  parts.keys.firstChild.append(again);
  page.ends.push(() => close(page, false));
}

/** Write the link of the introduction: shorter for a reader who has closed the tour before. */
function invite({ introTour }) {
  write(introTour, preferences.isOn(NAME, true) ? "New here? Two-minute tour" : "Two-minute tour");
}

/** Open the tour again after a reload at its step, without moving the focus. */
export async function restore(page) {
  const stored = page.embed ? null : page.host.remember?.getItem(NAME);
  if (stored) await open(page, null, stored);
}

/** Open the tour. @param {any} page  @param {HTMLElement|null} opener  gets the focus back at the end; null: the focus
 *  does not move  @param {string} [name]  of the first step to show */
export async function open(page, opener, name = "") {
  if (page.tour) return page.tour.panel.focus();
  const answer = await ask(page, "tour");
  if (!answer || page.tour) return;
  page.feeding?.stop(); // the rounds of a recording that is still playing
  const borrowed = opening.borrowExample(page);
  page.draw();
  await nextFrame();
  const steps = answer.steps.filter(({ part }) => elementOf(page, part)), ending = new AbortController();
  page.tour = { steps, at: 0, opener, borrowed, ending, marked: null, ...build(page, ending.signal) };
  page.el.append(page.tour.panel);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.activeElement === document.body) close(page);
  }, { signal: ending.signal });
  addEventListener("resize", kit.paced(() => place(page)), { signal: ending.signal });
  show(page, Math.max(0, steps.findIndex((step) => step.name === name)));
  if (opener) page.tour.panel.focus({ preventScroll: true });
}

function build(page, signal) {
  const button = (text, title, act) => {
    const made = h("button", { type: "button", className: "wb-tool", ...(title && { title }) }, text);
    made.addEventListener("click", act, { signal });
    return made;
  };
  const count = h("small"), title = h("h2", { id: "wb-tourtitle" }), text = h("p"), learn = h("a", { className: "wb-link" }, "Exercise in Learn");
  const back = button("Back", "", () => step(page, -1)), next = button("Next", "", () => step(page, 1));
  const shut = button("×", "Close the tour", () => close(page));
  kit.set(shut, { "aria-label": "Close the tour" });
  next.classList.add("is-main");
  const words = h("div", {}, count, title, text);
  kit.set(words, { "aria-live": "polite" });
  const panel = h("section", { className: "wb-card wb-tourpanel", tabIndex: -1 }, words, h("div", { className: "wb-tourbuttons" }, learn, back, next), shut);
  kit.set(panel, { role: "dialog", "aria-modal": "false", "aria-labelledby": title.id });
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    close(page);
  }, { signal });
  return { panel, count, title, text, learn, back, next };
}

function step(page, direction) {
  const { tour } = page, at = tour.at + direction;
  if (at >= tour.steps.length) return close(page);
  show(page, Math.max(0, at));
  if (tour.back.disabled && direction < 0) tour.next.focus(); // a disabled button loses the focus
}

async function show(page, at) {
  const { tour, host } = page, { steps } = tour, now = steps[at];
  tour.at = at;
  host.remember?.setItem(NAME, now.name);
  write(tour.count, `Tour · ${at + 1} of ${steps.length}`);
  write(tour.title, now.title);
  write(tour.text, now.text);
  tour.learn.hidden = !now.learn;
  tour.learn.href = `${host.base}/learn#${now.name}`;
  tour.back.disabled = at === 0;
  write(tour.next, at === steps.length - 1 ? "Done" : "Next");
  const pin = selectionFor(now.shows, page.run ? store.visible(page.run) : []);
  if (pin) {
    player.stop(page);
    Object.assign(page, { selection: { hover: null, pin }, scroll: true, brush: null });
    page.draw();
    await nextFrame();
  }
  if (page.tour === tour && tour.at === at) mark(page, elementOf(page, now.part));
}

/** Highlight a part and bring it into view. */
function mark(page, element) {
  const { tour } = page;
  tour.marked?.removeAttribute("data-toured");
  tour.marked = element;
  if (element) {
    const folded = element.closest("details");
    if (folded) folded.open = true;
    element.dataset.toured = "true";
    element.scrollIntoView({ block: matchMedia(NARROW).matches ? "start" : "center" });
  }
  place(page);
}

/** Put the panel into a corner; on a narrow page the stylesheet puts it at the foot. */
function place(page) {
  const { tour, parts } = page;
  if (!tour) return;
  const isSheet = matchMedia(NARROW).matches, { panel, marked } = tour, { style } = panel;
  if (isSheet || !marked) return Object.assign(style, { left: "", top: "" });
  const { width, height } = panel.getBoundingClientRect(), right = document.documentElement.clientWidth - EDGE;
  const bottom = Math.min(innerHeight, parts.scrub.getBoundingClientRect().top) - EDGE;
  const top = Math.max(0, parts.nav.closest("header").getBoundingClientRect().bottom) + EDGE;
  const free = { left: EDGE, top, right, bottom };
  const at = corner(marked.getBoundingClientRect(), { width, height }, free);
  Object.assign(style, { left: `${at.left}px`, top: `${at.top}px` });
}

/** Close the tour and return the focus. @param {any} page  @param {boolean} [byReader]  false: the page ends */
export function close(page, byReader = true) {
  const { tour, parts } = page;
  if (!tour) return;
  page.tour = null;
  tour.ending.abort();
  tour.marked?.removeAttribute("data-toured");
  const hadFocus = tour.panel.contains(document.activeElement);
  tour.panel.remove();
  if (!byReader) return;
  if (tour.borrowed) opening.returnExample(page);
  page.host.remember?.removeItem(NAME);
  preferences.set(NAME, false);
  invite(parts);
  if (!hadFocus) return;
  const opener = tour.opener ?? parts.introTour;
  (opener.checkVisibility() ? opener : parts.help).focus({ preventScroll: true });
}

const nextFrame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
