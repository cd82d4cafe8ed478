/** Elements of the Compare view: build them once, then draw the state of the page into them. */

import * as comparechoice from "./choice.js";
import * as comparelive from "./live.js";
import * as compareplots from "./plots.js";
import * as comparerace from "./race.js";
import * as comparetable from "./table.js";
import * as comparetext from "./text.js";
import * as alerts from "../shared/alerts.js";
import * as frame from "../shared/frame.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as roles from "../shared/roles.js";

const SPEEDS = /** @type {[number, string][]} */ ([[1, "1×"], [0.5, "0.5×"], [0.25, "0.25×"], [0.1, "0.1×"]]);

/** Description of the cards, shown before the first measurement. */
const INTRO = [
  ["Race", "each lane's tokens appear at the measured speed, or slowed down to as little as a tenth of it"],
  [
    "Measured",
    "speed-up over plain decoding with its 95 % confidence interval, τ, acceptance rate, tokens per second; make a lane the reference to see differences from it",
  ],
  ["Time per token", "milliseconds of draft, verify and overhead"],
  ["Break-even acceptance rate", "the acceptance rate above which a method beats plain decoding at these costs, and the rate that would give its measured speed-up"],
  [
    "Same text?",
    "whether an exact method's text equals plain decoding's, token for token, and where it first differs",
  ],
];

/** Build the empty view inside `el`; returns the parts by name. */
export function build(el, host) {
  const build = frame.builder(), { parts, part, card, chart, select, tool } = build;
  const stage = part(
    "stage",
    "div",
    { className: "wb-stage" },
    build.alerts(),
    build.intro(INTRO),
    build.progress(part("now", "div", { className: "wb-now", role: "list" })),
    part("banner", "p", { className: "wb-banner", hidden: true }),
    card(
      "race",
      "Race",
      h(
        "span",
        { className: "wb-extra" },
        select("prompt", "Prompt of the race"),
        part("origin", "span", { className: "wb-origins" }),
        panel.legend([
          ["is-accepted", "accepted"],
          ["is-corrected", "corrected"],
          ["is-bonus", "bonus"],
        ]),
      ),
      part("questionImage", "img", { className: "wb-asked", hidden: true }),
      part("race", "div", { className: "wb-race", role: "list" }),
      h(
        "div",
        { className: "wb-raceline" },
        tool("play", "▶"),
        slider(part),
        select("speed", "Playback speed of the race", SPEEDS),
        part("clock", "span", { className: "wb-clock" }),
      ),
    ),
    h(
      "div",
      { className: "wb-two" },
      card("table", "Measured", null, part("table", "div", { className: "wb-scroll wb-compared", tabIndex: 0 })),
      chart(
        "costs",
        "Time per token",
        panel.legend([
          ["wb-phase-draft", "draft"],
          ["wb-phase-verify", "verify"],
          ["wb-phase-overhead", "overhead"],
        ]),
        "wb-plot",
      ),
    ),
    h(
      "div",
      { className: "wb-two" },
      chart("pays", "Break-even acceptance rate", null, "wb-chart"),
      card("exact", "Same text?", null, part("exact", "div", { className: "wb-exact" })),
    ),
    card(
      "texts",
      "Text compared with plain decoding",
      h(
        "span",
        { className: "wb-extra" },
        select("lane", "Lane whose text is shown"),
        panel.legend([
          ["wb-key-plain", "only in the text of plain decoding"],
          ["wb-key-lane", "only in this lane's text"],
        ]),
      ),
      part("texts", "div", { className: "wb-texts", tabIndex: 0 }),
    ),
    part("foot", "p", { className: "wb-foot" }),
  );
  const tools = [
    build.badge("copy", "copy link", "Copy a link to these lanes and prompts"),
    build.exporter("Save this comparison"),
    ...build.opener("Open a comparison saved as JSON", "Comparison file", ".json,application/json"),
  ];
  frame.frame(el, build, { host, current: "Compare", side: "Settings of the comparison", tools }, stage);
  kit.set(parts.table, { role: "region", "aria-label": "Metrics of each lane" });
  kit.set(parts.texts, { role: "region", "aria-label": "Differences of the texts" });
  kit.set(parts.play, { "aria-label": "Play the race" });
  return parts;
}

function slider(part) {
  const comparison = part("slider", "input", { type: "range", min: 0, max: 1000, step: 1, value: 0 });
  comparison.setAttribute("aria-label", "Elapsed time in the race");
  return comparison;
}

/** Draw the state of the page. */
export function draw(page) {
  const { parts, comparison, step, catalogue } = page, measuring = page.channel !== null;
  alerts.render(parts.alerts, page.errors);
  kit.write(parts.badgeText, badge(page, measuring, catalogue));
  kit.set(parts.badge, {
    "data-state": page.silent ? "lost" : measuring ? "running" : comparison ? origin(page) : "idle",
    "data-from": comparison && !measuring ? origin(page) : "live",
  });
  parts.progress.hidden = !measuring;
  if (measuring) {
    const text = page.silent
      ? `no answer from the app for ${page.silent} s: check that it is still running. Stop ends the measurement and keeps the results so far`
      : step
        ? [step.waiting, step.text].filter(Boolean).join(" · ")
        : "starting …";
    jobs.progress(page, {
      text,
      note: step ? `${step.done} of ${step.total} runs${jobs.remaining(step.left_s)}` : "",
      done: step?.done,
      total: step?.total,
      label: "Runs measured",
    });
    parts.now.hidden = !comparison || !step;
    if (comparison && step) comparelive.render(parts.now, step, comparison);
  }
  const example = page.from === "example" && comparison && !measuring;
  parts.banner.hidden = !example;
  if (example)
    kit.write(
      parts.banner,
      comparelive.banner(comparison, !page.choice || comparechoice.asksFor(page.choice, catalogue, comparison, roles)),
    );
  const some = Boolean(comparison?.lanes.some((lane) => lane.figures.n || lane.error));
  for (const name of ["tableCard", "costsCard", "paysCard", "exactCard", "textsCard"]) parts[name].hidden = !some;
  for (const name of ["paysCard", "exactCard", "textsCard"]) parts[name].hidden = !some || !complete(comparison);
  const [first, second] = parts.stage.querySelectorAll(".wb-two");
  first.hidden = !some;
  second.hidden = !some || !complete(comparison);
  const raced = comparelive.canRace(comparison, page.prompt);
  parts.raceCard.hidden = !raced;
  parts.intro.hidden = some || measuring;
  parts.empty.nextSibling.hidden = !catalogue;
  kit.write(
    parts.empty,
    catalogue
      ? "Press Measure: lanes run one at a time, prompt by prompt, alone on the device; then they race on one clock."
      : "The backend is starting …",
  );
  kit.write(parts.foot, comparison ? foot(comparison, measuring) : "");
  parts.export.disabled = !comparison;
  parts.copy.disabled = !catalogue;
  if (!some) return;
  comparetable.render(page);
  compareplots.costs(page);
  if (raced) {
    picture(page);
    comparerace.render(page);
  }
  if (!complete(comparison)) return;
  compareplots.pays(page);
  comparetext.exact(page);
  comparetext.texts(page);
}

/** Return whether the texts and the results over all runs have arrived: they come with the last step. */
function complete(comparison) {
  return Boolean(comparison?.lanes.some((lane) => lane.exact !== undefined));
}

/** Return the origin of the figures, for the badge's colour. */
function origin(page) {
  return page.from === "imported" ? "imported" : "recorded";
}

/** Show the image of the questions. */
function picture({ parts, comparison, ...page }) {
  const url = comparison.settings.images?.[0] ?? (page.from === "live" ? page.pictured : "") ?? "";
  parts.questionImage.hidden = !url;
  if (url && parts.questionImage.src !== url) parts.questionImage.src = url;
  parts.questionImage.alt = comparechoice.altOf(page.catalogue, url);
}

function badge(page, measuring, catalogue) {
  const { comparison } = page;
  if (page.silent) return "NO ANSWER";
  if (measuring) return ["LIVE", catalogue?.device].filter(Boolean).join(" · ");
  if (!comparison) return catalogue?.device ?? "";
  const { target, device, dtype } = comparison.settings;
  return [
    { imported: "IMPORTED", example: "RECORDED" }[page.from] ?? "MEASURED",
    target,
    [device?.toUpperCase(), dtype].filter(Boolean).join(" · "),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** State the conditions of the measurement in one line. `going`: it is still running. */
export function foot(comparison, going = false) {
  const { settings: s, machine } = comparison,
    sampling = Object.entries(s.sampling).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
  const on = [machine.cpu, machine.cores ? `${machine.cores} cores` : "", machine.gpu].filter(Boolean).join(", ");
  return [
    `${comparison.prompts.length} prompt${comparison.prompts.length > 1 ? "s" : ""} × ${s.repeats} repeat${s.repeats > 1 ? "s" : ""} after a warm-up, at most ${s.max_new_tokens} tokens, seed ${s.seed}, ${sampling.join(", ") || "greedy"}`,
    `${on}; torch ${machine.torch}; ${machine.date}; system load before the start ${machine.load ?? "unknown"}`,
    comparison.complete || going ? "" : "Stopped before the end.",
  ]
    .filter(Boolean)
    .join(". ");
}
