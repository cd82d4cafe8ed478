/** The gallery: a map of methods, and one card or table row per kept run and recorded generation. */

import * as copying from "../shared/copying.js";
import * as exports from "../shared/exports.js";
import * as keptruns from "./keptruns.js";
import { h } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as methodmap from "./methodmap.js";
import * as ribbon from "../shared/ribbon.js";
import * as runtable from "./runtable.js";
import * as thumbnail from "./thumbnail.js";

const VIEW_KEY = "wb-gallery-view";

/** Draw the page. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const main = pagehead.build(el, {
    host,
    current: "Gallery",
    about:
      "Recorded generations, one per method, and your own runs. They play without a model. Fork a recording to run its settings yourself.",
  });
  const ask = (name, request) => pagehead.ask(main, { host }, name, request);
  const [entries, measured] = await Promise.all([ask("recordings"), ask("measured")]);
  const page = /** @type {any} */ ({ shown: null, known: new Set(measured?.methods.map((method) => method.name)) });
  const own = h("div", { className: "wb-galleryown" }), list = h("div", { className: "wb-gallery" }, ...(entries ?? []).map((entry) => card(entry, host, main)));
  const recorded = h("section", { id: "recorded" }, h("h2", { hidden: true }, "Recordings"), list);
  const cards = h("div", { className: "wb-gallerycards" }, own, recorded);
  const passes = (methods) => !page.shown || methods.some((name) => page.shown.has(name) || !page.known.has(name));
  const table = runtable.build({ host, main, passes: (row) => passes([row.method]) });
  const filter = () => {
    for (const each of cards.querySelectorAll(".wb-runcard")) each.hidden = !passes(each.dataset.methods.split(" "));
    table.draw();
  };
  if (measured?.methods)
    main.append(
      methodmap.build({
        measured, host, recorded: (entries ?? []).map((entry) => entry.name),
        matrix: () => ask("matrix"),
        open: (name) => location.assign(`${host.base}/methods#${encodeURIComponent(name)}`),
        filtered: (shown) => {
          page.shown = shown;
          filter();
        },
      }).section,
    );
  main.append(views(host, { cards, table }), cards, table.section);
  if (entries?.length === 0)
    recorded.append(h("p", { className: "wb-empty" }, "No recordings yet. Create them with: workbench record"));
  copying.listen(main);
  const found = await keptruns.mount(main, {
    host, place: own, drawn: filter, changed: table.reload, card: (entry, more) => card(entry, host, main, more),
  });
  recorded.firstElementChild.toggleAttribute("hidden", !found?.allowed);
  el.dataset.ready = "true";
}

/** Return the switch between cards and the table of runs. */
function views(host, { cards, table }) {
  const buttons = ["Cards", "Table"].map((name) => h("button", { type: "button", className: "wb-button" }, name));
  const show = (isTable) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", `${isTable === (i === 1)}`));
    cards.hidden = isTable;
    table.section.hidden = !isTable;
    return isTable ? table.show() : null;
  };
  buttons.forEach((button, i) =>
    button.addEventListener("click", () => {
      try {
        host.remember?.setItem(VIEW_KEY, i === 1 ? "table" : "cards");
      } catch {
        // without storage the choice holds for this page only
      }
      return show(i === 1);
    }),
  );
  const row = h("div", { className: "wb-galleryviews" }, ...buttons);
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "Runs as");
  show(location.hash === "#runs" || (location.hash === "" && host.remember?.getItem(VIEW_KEY) === "table"));
  return row;
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
  const article = h(
    "article",
    { className: "wb-card wb-runcard" },
    h("header", {}, title, badges),
    ...(entry.lengths?.length ? [thumbnail.draw(entry.lengths)] : []),
    preview(entry),
    h(
      "div",
      { className: "wb-runfigures" },
      figure(h, f.tau?.toFixed(2), "τ, tokens per round"),
      figure(
        h,
        f.acceptance_rate === null ? "–" : `${Math.round(100 * f.acceptance_rate)} %`,
        f.tested ? `${f.accepted} of ${f.tested} tested drafts accepted` : "no drafts",
      ),
      figure(h, f.tokens, `tokens in ${f.rounds} rounds`),
    ),
    facts(h, settings(entry, pagehead)),
    ...(form ? [form] : []),
    h("div", { className: "wb-actions" }, open, fork, load, copy, ...actions),
  );
  article.dataset.methods = [...new Set([entry.method, ...entry.methods])].join(" ");
  return article;
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
