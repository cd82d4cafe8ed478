/** "Recommend a method": measure the user's prompts and rank the methods; below it, the board of methods without
 *  training by kind of work. */

import { h } from "../shared/kit.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as roles from "../shared/roles.js";
import * as worktable from "./worktable.js";

const SILENCE_MS = 8000;
const NO_TEXT = "Choose a text file: one prompt per line, or JSON Lines with a `prompt` field.";

/** Format a ratio. Pure. @param {number|null} v */
export const times = (v) => (v === null ? "–" : `${v.toFixed(2)}×`);

/** Format a speed-up, with its interval if there is one. Pure.
 *  @param {{value: number, low: number|null, high: number|null, n: number}} s */
export function figure(s) {
  const runs = s.n === 1 ? "one run" : `${s.n} runs`;
  if (s.low === null) return `${times(s.value)}, ${runs}: no confidence interval yet`;
  return `${times(s.value)} (${s.low.toFixed(2)}–${times(s.high)})`;
}

/** Return the positions of bars, whiskers and the baseline, in percent of the width. Pure: an interval much wider than
 *  all values is cut, so that bars stay readable.
 *  @param {{speedup: {value: number, low: number|null, high: number|null}}[]} ranking
 *  @returns {{one: number, bars: {to: number, from: number|null, until: number|null, cut: boolean}[]}} */
export function layout(ranking) {
  const longest = Math.max(1, ...ranking.map((c) => c.speedup.value)),
    most = Math.min(2 * longest, Math.max(1.05, longest, ...ranking.map((c) => c.speedup.high ?? 0)));
  const at = (v) => Math.min(100, (100 * v) / most);
  return {
    one: at(1),
    bars: ranking.map(({ speedup: s }) => ({
      to: at(s.value),
      from: s.low === null ? null : at(s.low),
      until: s.high === null ? null : at(s.high),
      cut: s.high !== null && s.high > most,
    })),
  };
}

/** State the progress of a measurement. Pure. @param {any} advice */
export function progress({ spent, seconds, done, text, waiting, last }) {
  const runs = done === 1 ? "one run" : `${done} runs`;
  if (last) return text === "done" ? `Measured: ${runs} in ${spent.toFixed(0)} s.` : `Stopped after ${runs}.`;
  return `${spent.toFixed(0)} of ${seconds} s, ${runs} · ${waiting || text}`;
}

/** Read the text of a file, or return an error. @param {{size: number, arrayBuffer: () => Promise<ArrayBuffer>}} file
 *  @param {number} chars  maximum number of characters
 *  @returns {Promise<{text?: string, error?: {message: string, remedy: string}}>} */
export async function textOf(file, chars) {
  const long = { message: `The file has more than ${chars.toLocaleString("en")} characters.`, remedy: "Use fewer prompts." };
  if (file.size > 4 * chars) return { error: long }; // of UTF-8, a character has four bytes at most
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return [...text].length > chars ? { error: long } : { text };
  } catch {
    // reported below
  }
  return { error: { message: "This file is not text.", remedy: NO_TEXT } };
}

/** Add the button and the section to the page. @param {any} page  @param {HTMLElement} body
 *  @param {HTMLElement} contents */
export async function add(page, body, contents) {
  const { host, main } = page;
  const open = h("button", { type: "button", className: "wb-button is-main wb-whichbutton" }, "Recommend a method");
  main.querySelector(".wb-pagetitle").append(open);
  const section = h("section", { className: "wb-card wb-which", id: "which", hidden: true });
  body.prepend(section);
  const link = h("a", { href: pagehead.place("which") }, "Recommend a method");
  contents.prepend(link);
  const view = { page, host, section, open, channel: null, job: null, advice: null, lastMessageAt: 0, isBuilt: false, written: "", silent: false };
  const show = () => opened(view);
  open.addEventListener("click", show);
  link.addEventListener("click", show);
  kit.set(open, { "aria-expanded": "false", "aria-controls": "which" });
  host.listen?.((message) => onMessage(view, message));
  if (location.hash === "#which") await show();
}

async function opened(view) {
  const { section, open, page } = view;
  section.hidden = false;
  open.setAttribute("aria-expanded", "true");
  if (!view.isBuilt) {
    view.isBuilt = true;
    const asking = await pagehead.ask(section, page, "asking");
    if (!asking) return void (view.isBuilt = false);
    build(view, asking);
    const boards = await page.boards;
    if (boards) section.append(worktable.build(boards.work));
  }
  section.scrollIntoView({ block: "start" });
  view.target?.focus({ preventScroll: true });
}

function build(view, { targets, numbers, offered, keeps, last, chars }) {
  const { section } = view;
  const target = h("select", { id: "wb-which-target" }, ...targets.map((t) => option(t)));
  const source = (value, words, checked) =>
    h("label", {}, h("input", { type: "radio", name: "wb-which-source", value, checked }), ` ${words}`);
  const text = h("textarea", { id: "wb-which-text", rows: 5, spellcheck: false });
  kit.set(text, { "aria-label": "Prompts, one per line", placeholder: "One prompt per line" });
  const file = h("input", { type: "file", className: "wb-unseen", id: "wb-which-file", accept: ".txt,.jsonl,.json,.md,text/*" });
  kit.set(file, { "aria-label": "File of prompts" });
  const seconds = h("input", { type: "number", id: "wb-which-seconds", value: numbers.seconds.default, min: numbers.seconds.ge, max: numbers.seconds.le, step: 5 });
  const go = h("button", { type: "submit", className: "wb-button is-main" }, "Measure");
  const stop = h("button", { type: "button", className: "wb-button", hidden: true }, "Stop");
  const bar = h("progress", { max: 1, value: 0, hidden: true });
  bar.setAttribute("aria-label", "Measuring time");
  const status = h("p", { className: "wb-whichsaid" });
  status.setAttribute("role", "status");
  const runs = source("last", `prompts of my last ${last} kept runs of this target`, false);
  runs.hidden = !keeps;
  const choose = h("label", { className: "wb-button", htmlFor: "wb-which-file" }, "From a file …");
  const form = h(
    "form",
    { className: "wb-whichform", noValidate: true },
    h("div", {}, h("label", { htmlFor: "wb-which-target" }, "Target"), target),
    h("div", {}, h("label", { htmlFor: "wb-which-seconds" }, "Time limit in seconds"), seconds),
    h(
      "fieldset",
      {},
      h("legend", {}, "Prompts"),
      h("div", { className: "wb-whichsource" }, source("text", "prompts typed here, one per line", true), runs, choose, file),
      text,
    ),
    h("div", { className: "wb-actions" }, go, stop),
  );
  const alerts = h("div", { className: "wb-alerts" }), found = h("div", { className: "wb-whichfound", hidden: true });
  Object.assign(view, { target, text, seconds, go, stop, bar, status, alerts, found, form, last });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    start(view);
  });
  stop.addEventListener("click", () => cancelWait(view));
  text.addEventListener("input", () => pick(form, "text"));
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    const read = await textOf(chosen, chars);
    showError(view, read.error);
    if (read.text === undefined) return;
    text.value = read.text;
    pick(form, "text");
  });
  section.append(
    h("h2", {}, "Recommend a method"),
    h(
      "p",
      { className: "wb-about" },
      "All exact methods that run on a target are measured in turn on your prompts with greedy decoding, together with plain decoding, until the time is up. Methods that are clearly slower than the best are dropped early. Measuring runs in the background: other runs have priority, and waiting time is not counted.",
    ),
    form,
    alerts,
    bar,
    status,
    found,
  );
  if (!offered) {
    go.disabled = true;
    showError(view, { message: "Background measurement is not available here.", remedy: "On the machine with the models, run: workbench recommend" });
  }
  setInterval(() => watch(view), 1000);
}

function option(t) {
  const off = t.available === false, words = off ? `${t.title}: ${t.reason || t.detail}` : t.title;
  return h("option", { value: t.name, disabled: off }, words);
}

function pick(form, value) {
  form.querySelector(`input[value="${value}"]`).checked = true;
}

function showError(view, error) {
  view.alerts.replaceChildren();
  if (error) pagehead.problem(view.alerts, error);
}

function start(view) {
  const { host, form, text, seconds, target, last } = view, own = form.querySelector("input[type=radio]:checked").value === "text";
  showError(view, null);
  if (own && !text.value.trim()) {
    showError(view, { message: "There is no prompt.", remedy: "Write one prompt per line, or choose a file." });
    return text.focus();
  }
  const channel = jobs.newChannel("which");
  Object.assign(view, { channel, job: null, advice: null, lastMessageAt: performance.now(), written: own ? text.value : "" });
  measuring(view, true);
  kit.write(view.status, "Starting …");
  const prompts = own ? { text: text.value } : { last };
  host.decode({ channel, target: target.value, seconds: Number(seconds.value), ...prompts });
}

function cancelWait(view) {
  if (view.job) view.host.call("stop", { job: view.job }).catch(() => null);
  kit.write(view.status, "Stopping …");
  if (!view.job || view.silent) {
    sendPrompts(view);
    kit.write(view.status, "Stopped: the app did not answer. The results so far stay below.");
  }
}

function sendPrompts(view) {
  view.channel = null;
  measuring(view, false);
}

function measuring(view, on) {
  view.go.disabled = on;
  view.stop.hidden = view.bar.hidden = !on;
  if (on) view.bar.removeAttribute("value");
}

function watch(view) {
  const quiet = view.channel ? performance.now() - view.lastMessageAt : 0;
  view.silent = quiet > SILENCE_MS;
  const seconds = Math.round(quiet / 1000);
  if (view.silent) kit.write(view.status, `No answer from the app for ${seconds} s: check that it is still running. Stop ends the measurement.`);
}

function onMessage(view, message) {
  if (!view.channel || message.channel !== view.channel) return;
  view.lastMessageAt = performance.now();
  view.job = message.job ?? view.job;
  if (message.error) {
    sendPrompts(view);
    kit.write(view.status, "");
    return showError(view, message.error);
  }
  const { advice } = message;
  if (!advice) return;
  view.advice = advice;
  kit.write(view.status, progress(advice));
  view.bar.max = advice.seconds;
  view.bar.value = Math.min(advice.spent, advice.seconds);
  if (advice.found) draw(view, advice);
  if (advice.last) {
    sendPrompts(view);
    if (!advice.found) kit.write(view.status, `${progress(advice)} No result yet.`);
  }
}

function draw(view, { found: advice, last }) {
  const { found, host } = view, placed = layout(advice.ranking);
  found.hidden = false;
  found.dataset.state = last ? "done" : "running";
  const rows = advice.ranking.map((choice, i) => row(choice, placed.bars[i], placed.one, advice));
  const failed = Object.entries(advice.failed).map(([name, why]) => h("small", {}, `${name} could not run: ${why}`));
  const list = h("ol", { className: "wb-ranking" }, ...rows);
  kit.set(list, { "aria-label": "Methods by their speed-up over plain decoding" });
  found.replaceChildren(
    h("p", { className: "wb-whichanswer" }, last ? advice.answer : `So far: ${advice.answer}`),
    list,
    h("small", {}, "Speed-up over plain decoding of the same prompts: geometric mean with 95 % confidence interval. The dashed line is plain " +
      "decoding. The reason under each method pools all rounds of all prompts, so its ratio may differ slightly."),
    ...failed,
    ...(last && advice.limits ? [h("small", {}, advice.limits)] : []),
    ...(last ? [h("p", {}, h("code", {}, advice.command))] : []),
    ...(last ? [h("div", { className: "wb-actions" }, live(host, advice, view.written), pagehead.copyButton(advice.command, "copy command"))] : []),
  );
}

function live(host, advice, written) {
  const best = advice.ranking.find((choice) => choice.method === advice.best), first = written.split("\n").find((line) => line.trim());
  const state = { target: advice.target, method: advice.best ?? "autoregressive", ...(best?.params ?? {}) };
  const prompt = first && !first.trim().startsWith("{") ? roles.join(first.trim(), true) : undefined;
  const href = pagehead.liveLink(host.base, { ...state, prompt });
  return h("a", { className: "wb-button is-main", href }, `Open ${best?.title ?? "plain decoding"} in Live`);
}

function row(choice, bar, one, advice) {
  const drawn = h("div", { className: "wb-rankbar" }, h("i", { className: "wb-rankvalue" }), h("i", { className: "wb-rankone" }));
  drawn.setAttribute("aria-hidden", "true");
  /** @type {HTMLElement} */ (drawn.children[0]).style.width = `${bar.to}%`;
  /** @type {HTMLElement} */ (drawn.children[1]).style.left = `${one}%`;
  if (bar.from !== null && bar.until !== null) {
    const whisker = h("i", { className: bar.cut ? "wb-rankspan is-cut" : "wb-rankspan" });
    Object.assign(whisker.style, { left: `${bar.from}%`, width: `${Math.max(0, bar.until - bar.from)}%` });
    drawn.append(whisker);
  }
  const dropped = choice.left ? ` · dropped after pass ${choice.left}` : "", tied = advice.rivals.includes(choice.method) ? " · not significantly slower" : "";
  const made1 = h(
    "li",
    {},
    h("span", {}, h("b", {}, choice.title), choice.method === advice.best ? " ✓ fastest" : "", h("small", {}, `${tied}${dropped}`)),
    drawn,
    h("span", { className: "wb-rankfigure" }, figure(choice.speedup)),
    h("small", {}, choice.why),
  );
  made1.dataset.method = choice.method;
  return made1;
}
