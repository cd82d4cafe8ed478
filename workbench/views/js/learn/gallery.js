/** The gallery: one card per recorded generation and kept run, computed from its trace. */

import * as copying from "../shared/copying.js";
import * as exports from "../shared/exports.js";
import * as keptruns from "./keptruns.js";
import { h } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as ribbon from "../shared/ribbon.js";

/** Draw the page. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const main = pagehead.build(el, {
    host,
    current: "Gallery",
    about:
      "Recorded generations, one per method. They play without a model. Fork one to run its settings yourself.",
  });
  const entries = await pagehead.ask(main, { host }, "recordings");
  if (entries?.length === 0)
    main.append(
      h("p", { className: "wb-empty" }, "No recordings yet. Create them with: workbench record"),
    );
  if (entries) main.append(h("div", { className: "wb-gallery" }, ...entries.map((entry) => card(entry, host, main))));
  copying.listen(main);
  await keptruns.mount(main, { host, card: (entry, more) => card(entry, host, main, more) });
  el.dataset.ready = "true";
}

function card(
  entry,
  host,
  main,
  { badge = "RECORDED", href = pagehead.liveLink(host.base, { recorded: entry.name }), form = null, actions = [] } = {},
) {
  const f = entry.figures;
  const title = h("h2", {}, h("code", {}, entry.name));
  const badges = h("span", { className: "wb-badges" }, h("span", { className: "wb-badge" }, h("i"), badge));
  if (entry.simulation) badges.append(h("span", { className: "wb-badge is-simulation" }, "SIMULATION"));
  const open = h("a", { className: "wb-button is-main", href }, "Open");
  const fork = h(
    "a",
    { className: "wb-button", href: pagehead.liveLink(host.base, pagehead.settingsOf(entry)) },
    "Fork settings",
  );
  const load = h("button", { type: "button", className: "wb-button" }, "Download");
  for (const [part, does] of [
    [open, "Open"],
    [fork, "Fork the settings of"],
    [load, "Download the trace of"],
  ])
    part.setAttribute("aria-label", `${does} ${entry.name}`);
  load.addEventListener("click", async () => {
    const trace = await pagehead.ask(main, { host }, "recording", { name: entry.name });
    if (trace) exports.save(exports.fileName(trace.header, "jsonl"), exports.jsonLines(trace), "application/jsonl");
  });
  const copy = copying.button(
    async () => copying.textOf(await pagehead.ask(main, { host }, "recording", { name: entry.name })),
    `the text of ${entry.name}`,
    "wb-button",
  );
  return h(
    "article",
    { className: "wb-card wb-runcard" },
    h("header", {}, title, badges),
    preview(entry),
    h(
      "div",
      { className: "wb-runfigures" },
      figure(h, f.tau?.toFixed(2), "τ, tokens per round"),
      figure(
        h,
        f.acceptance_rate === null ? "–" : `${Math.round(100 * f.acceptance_rate)} %`,
        f.tested ? `${f.accepted} of ${f.tested} tested` : "no drafts",
      ),
      figure(h, f.tokens, `tokens in ${f.rounds} rounds`),
    ),
    facts(h, settings(entry, pagehead)),
    ...(form ? [form] : []),
    h("div", { className: "wb-actions" }, open, fork, load, copy, ...actions),
  );
}

function figure(h, value, label) {
  return h("div", {}, h("b", {}, `${value ?? "–"}`), h("span", {}, label));
}

function settings(entry, pagehead) {
  const { method, temperature } = { ...entry, ...entry.params };
  return [
    ["method", entry.methods.length > 1 ? entry.methods.join(" → ") : method],
    ["models", entry.drafter ? `${entry.target} + ${entry.drafter}` : entry.target],
    ["sampling", temperature > 0 ? `temperature ${temperature}, seed ${entry.seed}` : "greedy"],
    ["machine", [entry.hardware, entry.device, entry.dtype].filter(Boolean).join(" · ")],
    ["recorded", pagehead.when(entry.created)],
  ];
}

function facts(h, rows) {
  return h(
    "dl",
    { className: "wb-factlist" },
    ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function preview(entry) {
  const line = h("p", { className: "wb-preview" });
  for (const [text, kind] of entry.preview)
    line.append(h("span", { className: `wb-token is-${kind}`, _raw: text }, ribbon.visibleText(text)));
  return line;
}
