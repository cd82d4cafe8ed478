/** Elements of the Lab view: build them once, then draw the state of the page into them. */

import * as alerts from "../shared/alerts.js";
import * as frame from "../shared/frame.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import { h, emit } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as tables from "../shared/table.js";
import * as chart from "../shared/linechart.js";
import * as curves from "./curves.js";
import * as words from "./words.js";

const INTRO = [
  ["Loss", "training loss of the head, per step"],
  ["Teacher-forced accuracy and on-policy acceptance", "accuracy of the head after true text, and acceptance rate of its drafts"],
  ["By position", "acceptance rate at each draft position during training"],
  ["τ", "tokens per forward pass of the target, several runs in one chart"],
  ["Speed-up", "tokens per second relative to plain decoding of the same prompts, at each checkpoint"],
  ["Promote", "use the head in Live, also in runs in progress"],
];
/** Maximum number of runs drawn in addition to the open one. */
const MOST = 7;
const CHARTS = [
  ["beside", "Teacher-forced accuracy and on-policy acceptance"],
  ["byPosition", "Acceptance rate by draft position, on policy"],
  ["taus", "Mean accepted length τ, on policy"],
  ["speedups", "Speed-up over plain decoding, during training"],
  ["losses", "Loss"],
];
const ACTIONS = [
  ["stop", "Stop", "Stop training and keep a checkpoint of the current step"],
  ["resume", "Resume", "Continue training from the last checkpoint"],
  ["promote", "Promote", "Use this head for drafting in the app"],
  ["draftlive", "Use the head in Live ↗", ""],
  ["forget", "Delete", "Delete the run, its curves and its head"],
];

/** Build the empty view inside `el`; returns the parts by name. */
export function build(el, host) {
  const build = frame.builder(), { parts, part, card, tool } = build;
  const actions = ACTIONS.map(([name, text, title]) => {
    const button = tool(name, text, title);
    button.addEventListener("click", () => emit(el, "wb:press", { button: name }));
    return button;
  });
  const charts = CHARTS.map(([name, title]) => build.chart(name, title, null, "wb-plot"));
  const stage = part(
    "stage",
    "div",
    { className: "wb-stage" },
    build.alerts(),
    part("barred", "p", { className: "wb-banner", hidden: true }),
    part("message", "p", { className: "wb-banner is-note", hidden: true }),
    build.intro(INTRO),
    card(
      "run",
      "Run",
      null,
      part("facts", "dl", { className: "wb-labfacts" }),
      part("deeds", "div", { className: "wb-deeds" }, ...actions),
      build.progress(),
    ),
    part("charts", "div", { className: "wb-two wb-labcharts" }, ...charts),
    card("runs", "Runs", null, part("runs", "ul", { className: "wb-labruns" })),
    part("logs", "details", { className: "wb-card wb-lablog" }, h("summary", {}, "Training log"), part("log", "pre", { className: "wb-codebox", tabIndex: 0 })),
  );
  parts.besideCard.append(part("parting", "p", { className: "wb-parting" }));
  frame.frame(el, build, { host, current: "Lab", side: "Training settings" }, stage);
  kit.set(parts.log, { role: "region", "aria-label": "End of the training log" });
  return parts;
}

/** Draw the state of the page. */
export function draw(page) {
  const { parts, offer, runs, opened } = page, shown = words.shownRun(page);
  const isRecorded = shown !== null && shown !== opened;
  const busy = runs.find((run) => run.state === "running")?.id ?? null;
  alerts.render(parts.alerts, [...page.errors, ...(opened?.trouble ? [{ kind: "error", ...opened.trouble }] : [])]);
  parts.barred.hidden = !offer?.barred;
  kit.write(parts.barred, offer?.barred ?? "");
  const message = page.message || (isRecorded ? words.recordedNote(shown) : "");
  parts.message.hidden = !message;
  kit.write(parts.message, message);
  kit.write(parts.badgeText, page.lost ? "NO ANSWER" : busy ? "TRAINING" : isRecorded ? "RECORDED" : "");
  kit.set(parts.badge, {
    "data-state": page.lost ? "lost" : busy ? "running" : isRecorded ? "recorded" : "idle",
    "data-from": isRecorded ? "recorded" : "live",
  });
  parts.badge.hidden = !parts.badgeText.textContent;
  parts.intro.hidden = Boolean(shown);
  kit.write(
    parts.empty,
    !offer
      ? "The backend is starting …"
      : offer.barred
        ? "Training is not available here."
        : "Press Train: the target generates answers, and the head is trained on them in a separate process. The curves grow during training. The estimated time is above the button.",
  );
  for (const name of ["runCard", "charts", "logs"]) parts[name].hidden = !shown;
  parts.runsCard.hidden = !runs.length;
  list(page);
  parts.deeds.hidden = isRecorded;
  if (shown) run(page, shown, busy);
}

function run(page, opened, busy) {
  const { parts } = page, off = words.actions(opened, { busy, swaps: Boolean(page.offer?.swaps) });
  kit.write(parts.runTitle, `${curves.title(opened)} for ${opened.target}`);
  kit.write(parts.runNote, `${page.opened ? "started" : "recorded"} ${pagehead.when(opened.created)}`);
  kit.write(parts.promote, opened.promoted ? "Remove from the app" : "Promote");
  kit.write(parts.forget, page.asksToForget === opened.id ? "Delete permanently" : "Delete");
  for (const name of ["stop", "resume", "promote", "forget"]) {
    parts[name].disabled = Boolean(off[name]);
    parts[name].title = off[name] || ACTIONS.find(([one]) => one === name)[2];
  }
  parts.draftlive.hidden = !opened.promoted;
  facts(parts.facts, [
    ["state", opened.stopping ? "stopping; a checkpoint of the current step is kept" : words.state(opened.state)],
    ["step", `${opened.step}`],
    ["τ on policy", opened.tau === null ? "–" : `${opened.tau.toFixed(2)}${opened.rounds ? ` · ${opened.rounds} rounds` : ""}`],
    ["speed-up", opened.speedup === null ? "–" : `${opened.speedup.toFixed(2)}×`],
    ["memory", opened.memory ? words.megabytes(opened.memory) : "–"],
    ["promoted", opened.promoted ? "yes, used in this app" : "no"],
    ["settings", words.settingsLine(opened.options) || "–"],
  ]);
  const at = words.progress(opened);
  parts.progress.hidden = opened.state !== "running";
  jobs.progress(page, { ...at, label: "Progress of the current training stage" });
  const own = opened.curves, others = { ...page.compared, [opened.id]: own };
  const listed = page.runs.length ? page.runs : [opened];
  const shown = listed.filter((one) => one.id === opened.id || page.chosen.has(one.id));
  show(parts, "beside", curves.forcedAndOnPolicy(own), { top: 1, digits: 2 });
  show(parts, "byPosition", curves.byPosition(own), { top: 1, digits: 2 });
  show(parts, "taus", curves.seriesOfRuns(shown, others, curves.TAU), { from: 1, digits: 1 });
  show(parts, "speedups", curves.seriesOfRuns(shown, others, curves.SPEEDUP), { digits: 2 });
  show(parts, "losses", curves.losses(own), { digits: 1 });
  const explanation = curves.explainDifference(own);
  parts.parting.hidden = !explanation;
  kit.write(parts.parting, explanation);
  kit.write(parts.log, opened.log.join("\n"));
}

function show(parts, name, series, options) {
  const title = CHARTS.find(([one]) => one === name)[1], summary = curves.summary(title, series);
  chart.render(parts[name], { ...curves.chartOf(series, options), summary });
  const measured = name.endsWith("osition") ? `measured values, only positions with at least ${curves.ENOUGH} rounds` : "measured values, not smoothed";
  kit.write(parts[`${name}Note`], series.length ? measured : "not measured yet");
  if (parts[`${name}Table`].hidden) return;
  kit.write(parts[`${name}Table`].firstChild, summary);
  tables.render(parts[`${name}Table`], curves.table(series));
}

function facts(el, rows) {
  while (el.childElementCount < rows.length) el.append(h("div", {}, h("dt"), h("dd")));
  rows.forEach(([name, value], i) => {
    kit.write(el.children[i].firstChild, name);
    kit.write(el.children[i].lastChild, value);
  });
}

function list(page) {
  const { parts, runs } = page;
  kit.resize(parts.runs, runs.length, row);
  runs.forEach((one, i) => {
    const item = parts.runs.children[i], [label, open] = item.children, box = label.firstChild;
    const isOpen = page.openId === one.id;
    item.dataset.run = one.id;
    box.checked = isOpen || page.chosen.has(one.id);
    const full = !box.checked && page.chosen.size >= MOST;
    box.disabled = isOpen || full;
    label.title = isOpen ? "This run is open" : full ? `at most ${MOST} other runs can be shown` : "Show the τ of this run together with that of the open run";
    kit.write(label.children[1], `${curves.title(one)} for ${one.target}`);
    kit.write(
      label.children[2],
      `${words.state(one.state)} · ${[words.settingsLine(one.options), `step ${one.step}`].filter(Boolean).join(" · ")} · τ ${one.tau === null ? "–" : one.tau.toFixed(2)}${one.promoted ? " · promoted" : ""} · ${pagehead.when(one.created)}`,
    );
    open.setAttribute("aria-pressed", String(isOpen));
    open.setAttribute("aria-label", `open ${curves.title(one)}`);
  });
}

function row() {
  const box = h("input", { type: "checkbox" }), open = h("button", { type: "button", className: "wb-tool" }, "open");
  const id = (event) => event.target.closest("li").dataset.run;
  box.addEventListener("change", (event) => emit(box, "wb:compare", { id: id(event), on: box.checked }));
  open.addEventListener("click", (event) => emit(open, "wb:open", { id: id(event) }));
  return h("li", {}, h("label", {}, box, h("b", {}), h("small", {})), open);
}
