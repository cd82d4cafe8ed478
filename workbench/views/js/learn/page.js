/** The guided tour: one step at a time over the Live view, which plays a recording. The learner does the task there,
 *  and the step is then marked as done. */

import * as barChart from "../shared/bars.js";
import { h } from "../shared/kit.js";
import * as embedded from "../live/embedded.js";
import * as pagehead from "../shared/pagehead.js";
import * as selection from "../live/selection.js";
import * as store from "../shared/store.js";
import { expectedTau } from "../live/theory.js";

const DONE = "wb-learn";

/** Return the tokens per round if every draft is accepted with probability `a`, and the speed-up over plain decoding if
 *  a draft step costs `c` verifications. Pure. */
export function gain(a, k, c) {
  const tau = expectedTau(a, k);
  return { tau, speedup: tau / (1 + k * c) };
}

/** Return whether a pin fulfils the step's task: one of its rounds, or one of its nodes selected directly. Pure.
 *  @param {{round: number, node?: any, token?: any}} pin  @param {{round: number, node: number|string|null}|null} at
 *    place that the pin shows */
export function reached(step, pin, at) {
  const selectsNode = (pin.node ?? pin.token ?? null) !== null;
  return (
    step.rounds.includes(pin.round) ||
    (selectsNode && step.places.some(([round, node]) => round === at?.round && node === at?.node))
  );
}

/** Draw the page. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const main = pagehead.build(el, {
    host,
    current: "Learn",
    about:
      "Eight steps on recorded generations. Answer each question first, then look at the recording. A step is marked as done when you have completed its task.",
  });
  const steps = await pagehead.ask(main, { host }, "steps");
  if (steps?.length === 0)
    main.append(h("p", { className: "wb-empty" }, "The tour needs recordings. Create them with: workbench record"));
  if (steps?.length) await begin(host, main, steps);
  el.dataset.ready = "true";
}

/** Build the tour, and open the step of the address or the first one that is not done. */
async function begin(host, main, steps) {
  const page = {
    host,
    main,
    steps,
    done: new Set(storedSteps(host).filter((name) => steps.some((s) => s.name === name))),
    answers: {},
    traces: new Map(),
    at: 0,
  };
  const ofHash = () => steps.findIndex((s) => s.name === location.hash.slice(1));
  build(page);
  const next = ofHash() >= 0 ? ofHash() : steps.findIndex((s) => !page.done.has(s.name));
  await open(page, Math.max(0, next));
  addEventListener("hashchange", () => ofHash() >= 0 && ofHash() !== page.at && open(page, ofHash()));
}

function storedSteps(host) {
  try {
    return JSON.parse(host.remember?.getItem(DONE) ?? "[]");
  } catch {
    return [];
  }
}

function build(page) {
  const { main, steps } = page;
  page.list = h(
    "ol",
    { className: "wb-steps" },
    ...steps.map((step, i) =>
      h("li", {}, h("button", { type: "button", onclick: () => open(page, i) }, h("i"), h("span", {}, step.title))),
    ),
  );
  page.reset = h(
    "button",
    { type: "button", className: "wb-link wb-forget", onclick: () => resetTour(page) },
    "Start over",
  );
  const nav = h("nav", { className: "wb-tour" }, page.list, page.reset);
  nav.setAttribute("aria-label", "Steps");
  page.text = h("section", { className: "wb-lessontext" });
  page.status = h("p", { className: "wb-unseen" });
  page.status.setAttribute("role", "status");
  page.stage = h("div", { className: "wb wb-lesson" });
  page.dials = h("div", { className: "wb-card wb-dials", hidden: true });
  main.append(
    h(
      "div",
      { className: "wb-learn" },
      nav,
      h("div", { className: "wb-lessonbody" }, page.text, page.stage, page.dials, page.status),
    ),
  );
  const look = () => requestAnimationFrame(() => check(page));
  for (const name of ["click", "keyup", "input", "pointerup"]) page.stage.addEventListener(name, look);
}

async function open(page, i) {
  const { host, main, steps } = page, step = steps[i];
  page.at = i;
  history.replaceState(history.state, "", `${location.pathname}${location.search}#${step.name}`);
  marks(page);
  words(page, step);
  page.stage.hidden = step.dials;
  page.dials.hidden = !step.dials;
  if (step.dials) return dials(page, step);
  if (!page.traces.has(step.recording))
    page.traces.set(step.recording, await pagehead.ask(main, { host }, "recording", { name: step.recording }));
  const trace = page.traces.get(step.recording);
  if (!trace || page.at !== i) return;
  page.view ??= await embedded.mount(page.stage, { host, trace });
  page.start = { round: 0 };
  embedded.showCards(page.stage, [...step.cards, "scrub"]);
  embedded.select(page.view, page.start, { run: store.fromTrace(step.name, trace, "recorded") });
}

function words(page, step) {
  const { at, steps } = page, answered = page.answers[step.name];
  const question = h(
    "div",
    { className: "wb-question" },
    h("p", { id: "wb-question" }, h("b", {}, "Predict first. "), step.question),
  );
  question.setAttribute("role", "group");
  question.setAttribute("aria-labelledby", "wb-question");
  for (const [i, choice] of step.choices.entries()) {
    const button = h(
      "button",
      {
        type: "button",
        className: "wb-button",
        disabled: answered !== undefined,
        onclick: () => answer(page, step, i),
      },
      choice,
    );
    if (answered !== undefined) button.dataset.mark = i === step.right ? "right" : i === answered ? "wrong" : "";
    question.append(button);
  }
  if (answered !== undefined)
    question.append(
      h(
        "p",
        { className: "wb-why" },
        h("b", {}, answered === step.right ? "✓ Right. " : `✕ Correct answer: “${step.choices[step.right]}”. `),
        step.why,
      ),
    );
  const task = h(
    "p",
    { className: "wb-task" },
    h("b", {}, page.done.has(step.name) ? "✓ Done. " : "Task: "),
    step.do,
  );
  task.classList.toggle("is-done", page.done.has(step.name));
  const back = h(
    "button",
    { type: "button", className: "wb-button", disabled: at === 0, onclick: () => open(page, at - 1) },
    "Back",
  );
  const next = h(
    "button",
    {
      type: "button",
      className: "wb-button is-main",
      disabled: at === steps.length - 1,
      onclick: () => open(page, at + 1),
    },
    "Next step",
  );
  const live = h(
    "a",
    {
      className: "wb-button",
      href: pagehead.liveLink(page.host.base, step.dials ? { method: "oracle" } : { recorded: step.recording }),
    },
    step.dials ? "Try the oracle on the Live page" : "Open on the Live page",
  );
  const badge = h(
    "span",
    { className: "wb-badge" },
    h("i"),
    step.dials ? "SIMULATION" : `RECORDED · ${step.recording}`,
  );
  badge.classList.toggle("is-simulation", step.dials);
  page.text.replaceChildren(
    h("div", { className: "wb-lessonhead" }, h("h2", {}, `${at + 1}. ${step.title}`), badge),
    h("p", {}, step.see),
    question,
    task,
    h("div", { className: "wb-actions" }, back, next, live),
  );
}

function answer(page, step, i) {
  page.answers[step.name] = i;
  words(page, step);
  page.status.textContent = i === step.right ? "Right." : `Correct answer: ${step.choices[step.right]}.`;
  page.text.querySelector(".wb-actions button.is-main").focus({ preventScroll: true });
}

function check(page) {
  const step = page.steps[page.at], pin = page.view?.selection.pin;
  if (step.dials || !pin || pin === page.start || !page.view.run) return;
  if (reached(step, pin, selection.complete(pin, store.visible(page.view.run)))) mark(page, step);
}

function mark(page, step) {
  if (page.done.has(step.name)) return;
  page.done.add(step.name);
  page.host.remember?.setItem(DONE, JSON.stringify([...page.done]));
  marks(page);
  words(page, step);
  page.status.textContent = `Step ${page.at + 1} is done (${page.done.size} of ${page.steps.length} steps).`;
}

function marks(page) {
  [...page.list.children].forEach((item, i) => {
    const done = page.done.has(page.steps[i].name), button = item.firstChild;
    button.dataset.done = done;
    if (i === page.at) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
    button.firstChild.textContent = done ? "✓" : `${i + 1}`;
    button.setAttribute("aria-label", `${page.steps[i].title}${done ? ", done" : ""}`);
  });
  page.reset.hidden = page.done.size === 0;
}

function resetTour(page) {
  page.done.clear();
  page.answers = {};
  page.host.remember?.removeItem(DONE);
  open(page, 0);
}

function dials(page, step) {
  const { dials: el } = page;
  if (!el.firstChild) {
    page.set = { a: 0.6, k: 4, c: 0.1 };
    const dial = (name, label, min, max, by) => {
      const input = h("input", { type: "range", min, max, step: by, value: page.set[name], id: `wb-dial-${name}` });
      const value = h("output", {}, `${page.set[name]}`);
      input.addEventListener("input", () => {
        page.set[name] = Number(input.value);
        value.textContent = input.value;
        update(page, page.steps[page.at]);
      });
      return h("div", { className: "wb-dial" }, h("label", { htmlFor: input.id }, label), value, input);
    };
    page.bars = h("div", { className: "wb-chart" });
    page.sum = h("p", { className: "wb-sum" });
    el.append(
      h(
        "div",
        { className: "wb-dialrow" },
        dial("a", "acceptance a", 0, 1, 0.05),
        dial("k", "draft length K, in tokens", 1, 12, 1),
        dial("c", "cost c of a draft step, relative to a verification", 0, 1, 0.05),
      ),
      page.sum,
      h("h3", {}, "Speed-up by draft length K, from the formula (SIMULATION)"),
      page.bars,
    );
  }
  update(page, step, false);
}

function update(page, step, byHand = true) {
  const { set: { a, k, c } } = page, now = gain(a, k, c);
  page.sum.textContent = `τ = ${now.tau.toFixed(2)} tokens per round; ${now.speedup.toFixed(2)} times plain decoding: ${now.speedup > 1 ? "faster" : now.speedup < 1 ? "slower" : "equally fast"}.`;
  const bars = Array.from({ length: 12 }, (_, i) => ({
    label: `${i + 1}`,
    value: gain(a, i + 1, c).speedup,
    text: gain(a, i + 1, c).speedup.toFixed(1),
    part: i + 1 === k ? gain(a, i + 1, c).speedup : 0,
  }));
  page.bars.classList.add("is-parts");
  const max = Math.max(1, ...bars.map((b) => b.value));
  barChart.render(page.bars, {
    bars,
    max,
    ticks: [0, 1],
    axis: "drafts per round, K",
    up: "speed-up",
    summary: `Speed-up by draft length: ${bars.map((b) => `${b.label}: ${b.text}`).join(", ")}`,
  });
  if (byHand && a >= 0.8 && now.speedup < 1) mark(page, step);
}
