/** Exports of all pages: files, images of cards, and the menu that offers them. The browser makes all files, except
 *  Parquet and the tables of measurements, which the server writes. */

import * as address from "./address.js";
import * as alerts from "./alerts.js";
import * as kit from "./kit.js";
import { h } from "./kit.js";
import * as pagehead from "./pagehead.js";
import { html } from "./replay.js";

const WINDOW = 8;
/** CSS properties that an exported drawing keeps; others have no effect on it. */
const DRAWN = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "paint-order",
  "visibility",
  "text-decoration",
];
const LAID_OUT = [
  ...DRAWN,
  "display",
  "color",
  "background-color",
  "background-image",
  "background-size",
  "background-position",
  "background-repeat",
  "border-top",
  "border-right",
  "border-bottom",
  "border-left",
  "border-radius",
  "box-shadow",
  "box-sizing",
  "padding",
  "margin",
  "gap",
  "line-height",
  "letter-spacing",
  "white-space",
  "overflow-wrap",
  "text-align",
  "vertical-align",
  "align-items",
  "align-self",
  "align-content",
  "justify-content",
  "flex-direction",
  "flex-wrap",
  "flex",
  "grid-template-columns",
  "grid-template-rows",
  "grid-row",
  "grid-column",
  "min-width",
  "max-width",
  "min-height",
  "position",
  "top",
  "right",
  "bottom",
  "left",
];
/** Exported images cannot embed fonts. */
const PLAIN_FONT = "system-ui, sans-serif";
const MAX_PIXELS = 16000;

// -- Data ----------------------------------------------------------------------------------------------------------

/** Return a trace as JSON Lines: header, rounds, footer, and attribution if there is one, each with its kind in
 *  `event`. Pure. */
export function jsonLines({ header, rounds, footer, attribution }) {
  const lines = [
    { event: "header", ...header },
    ...rounds.map((r) => ({ event: "round", ...r })),
    { event: "footer", ...footer },
  ];
  if (attribution) lines.push({ event: "attribution", ...attribution });
  return lines.map((line) => `${JSON.stringify(line)}\n`).join("");
}

/**
 * Return a trace as Chrome-trace JSON ("JSON object format"), for Perfetto and chrome://tracing: phases on their
 * lanes, rounds above them, counters, and settings that changed. Times are in µs from the start of prefill. Pure.
 */
export function chromeTrace({ header, rounds }) {
  const pid = 1, zero = header.prefill_s ?? 0, us = (seconds) => 1e6 * (seconds + zero);
  const lanes = [...new Set(["rounds", "device", ...rounds.flatMap((r) => r.phases.map((p) => p.lane))])];
  const meta = (name, tid, value) => ({ name, ph: "M", pid, tid, ts: 0, args: { name: value } });
  const span = (name, tid, ts, dur, /** @type {any} */ args = {}) => ({ name, ph: "X", pid, tid, ts, dur, args });
  const counter = (name, ts, args) => ({ name, ph: "C", pid, tid: 0, ts, args });
  const sum = (counts, k) => counts.reduce((total, c) => total + c[k], 0), counts = [];
  const events = /** @type {any[]} */ ([
    meta("process_name", 0, `${header.method} on ${header.target}`),
    ...lanes.map((lane, tid) => meta("thread_name", tid, lane)),
  ]);
  if (zero > 0) events.push(span("prefill", lanes.indexOf("device"), 0, 1e6 * zero));
  for (const r of rounds) {
    const tested = r.nodes.status.filter((x) => x !== "discarded").length, end = us(r.started_s + r.seconds);
    const args = {
      method: r.method,
      drafted: r.nodes.status.length,
      tested,
      accepted: r.path.length,
      emitted: r.emitted.length,
      text: r.emitted.map((e) => e.text).join(""),
    };
    events.push(span(`round ${r.index + 1}`, 0, us(r.started_s), 1e6 * r.seconds, args));
    for (const p of r.phases)
      events.push(span(p.name, lanes.indexOf(p.lane), us(p.start_s), 1e6 * (p.end_s - p.start_s)));
    for (const { name, before, after } of r.changes)
      events.push({
        name: `change ${name}`,
        ph: "i",
        s: "p",
        pid,
        tid: 0,
        ts: us(r.started_s),
        args: { before, after },
      });
    counts.push([r.path.length, tested, r.emitted.length]);
    events.push(counter("tokens", end, { emitted: sum(counts, 2) }));
    const last = counts.slice(-WINDOW);
    if (sum(last, 1))
      events.push(
        counter("acceptance", end, {
          [`last ${WINDOW} rounds`]: sum(last, 0) / sum(last, 1),
          cumulative: sum(counts, 0) / sum(counts, 1),
        }),
      );
  }
  return {
    traceEvents: events,
    displayTimeUnit: "ms",
    otherData: { source: header.simulation ? "simulation" : "recorded", ...header },
  };
}

/** Reduce a text to at most 60 letters, digits and hyphens, for a file name. Pure. */
export function clean(text) {
  return `${text ?? ""}`.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);
}

/** Return a descriptive file name of harmless characters. Pure. */
export function fileName(header, ending, part = "") {
  const day = clean(`${header.created ?? ""}`.slice(0, 16).replace(":", ""));
  return `${[clean(header.method) || "run", clean(header.target), day, clean(part)].filter(Boolean).join("_")}.${ending}`;
}

/** Return the caption of an exported image: the origin of its numbers. Pure. */
export function caption({ header }) {
  const models = header.drafter ? `${header.target} + ${header.drafter}` : header.target;
  return [
    header.simulation ? "RECORDED · SIMULATION" : "RECORDED",
    `${header.method} on ${models}`,
    header.device,
    header.dtype,
    (header.created ?? "").slice(0, 10),
    "Speculative Decoding Workbench",
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Replace characters that XML does not allow. Pure. */
export function printable(text) {
  return text.toWellFormed().replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
}

// -- Images --------------------------------------------------------------------------------------------------------

/** Return the views of the page that can be exported as images now: title, element. The title names the file. A drawing
 *  of Plotly loses its colours and its margins outside the page, so its card is left out. */
export function views(stage) {
  const shown = [...stage.querySelectorAll(".wb-figures, .wb-card")].filter(
    (el) => el.getClientRects().length > 0 && !el.querySelector(".js-plotly-plot"),
  );
  return shown.map((el) => {
    const card = [...el.classList].find((c) => c.startsWith("wb-card-"));
    return { title: card ? el.getAttribute("aria-label") : "Key figures", el };
  });
}

/** Return a view as an SVG document without stylesheet: title and legend on top, `note` below. */
export function picture({ title, el }, note) {
  const drawings = [...el.querySelectorAll("svg")].filter(
    (svg) => svg.clientWidth > 60 && !svg.closest(".wb-overview"),
  );
  const alone = drawings.length === 1 && !el.querySelector(".wb-ribbon, .wb-nodecard");
  const body = alone ? drawn(drawings[0]) : laidOut(el), head = alone ? 40 : 16;
  const root = getComputedStyle(el.closest(".wb")), start = 34 + 8 * title.length;
  const width = Math.max(body.width + 32, alone ? legendEnd(el, start) : 0), lines = wrap(note, width - 32);
  const height = head + body.height + 16 + 15 * lines.length;
  const words = (text, x, y, size, weight = 400) =>
    Object.assign(kit.s("text", { x, y, fill: root.color, "font-size": size, "font-weight": weight }), {
      textContent: printable(text),
    });
  const outer = kit.s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": PLAIN_FONT });
  kit.set(body.node, { x: 16, y: head });
  outer.append(
    kit.s("rect", { width, height, fill: root.backgroundColor }),
    body.node,
    ...lines.map((line, i) => words(line, 16, head + body.height + 19 + 15 * i, 11)),
  );
  if (alone) outer.append(words(title, 16, 25, 14, 600), ...legend(el, start, words));
  return { text: new XMLSerializer().serializeToString(outer), width, height };
}

/** Break a caption into lines of a width, between its parts. Pure. */
export function wrap(text, width) {
  const lines = [];
  for (const part of text.split(" · ")) {
    const longer = lines.length ? `${lines.at(-1)} · ${part}` : part;
    if (lines.length && 6.1 * longer.length <= width) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return lines;
}

/** Return the width of a legend entry in pixels. */
const entryWidth = (entry) => 30 + 6.4 * entry.textContent.length;

/** Return where a legend that starts at `x` ends, in pixels. */
function legendEnd(el, x) {
  return [...el.querySelectorAll(".wb-legend > span")].reduce((end, entry) => end + entryWidth(entry), x);
}

function legend(el, x, words) {
  return [...el.querySelectorAll(".wb-legend > span")].flatMap((entry) => {
    const mark = getComputedStyle(entry.querySelector("i")),
      line = parseFloat(mark.borderBottomWidth),
      text = entry.textContent,
      at = x;
    const dashes = /rgba?\([^)]*\)/.exec(mark.backgroundImage)?.[0] ?? "none";
    x += entryWidth(entry);
    return [
      kit.s("rect", { x: at, y: 15, width: 15, height: 10, fill: mark.backgroundColor }),
      kit.s("line", {
        x1: at,
        x2: at + 15,
        y1: 25,
        y2: 25,
        stroke: mark.borderBottomColor,
        "stroke-width": line,
        "stroke-dasharray": mark.borderBottomStyle === "dashed" ? "4 3" : "none",
      }),
      kit.s("line", {
        x1: at,
        x2: at + 15,
        y1: 20,
        y2: 20,
        stroke: dashes,
        "stroke-width": 2.5,
        "stroke-dasharray": "6 3",
      }),
      words(text, at + 20, 25, 12),
    ];
  });
}

function drawn(svg) {
  const copy = svg.cloneNode(true), box = { width: svg.clientWidth, height: svg.clientHeight };
  svg.querySelectorAll("text").forEach((text, i) => {
    const length = text.getComputedTextLength(); // keep the width in another font, so that nothing overlaps
    if (length > 0) copy.querySelectorAll("text")[i].setAttribute("textLength", length.toFixed(1));
  });
  inlineStyles([svg, ...svg.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")], DRAWN);
  copy.querySelector(".wb-still")?.removeAttribute("transform"); // an image has no scroll position
  copy.querySelectorAll(".wb-ground, .wb-treetip, .wb-hit").forEach((part) => part.remove());
  return { node: copy, ...box };
}

/** Return an HTML part of the page, with its computed style, in a foreign object. It is laid out again outside the
 *  page: uncut by scrolling, and in the font of the image. */
function laidOut(el) {
  const copy = el.cloneNode(true), clone = el.cloneNode(true), page = document.createElement("div");
  const offscreen = h(
    "div",
    {
      style: `position: absolute; left: -99999px; top: 0; width: ${el.offsetWidth}px; --wb-ui: ${PLAIN_FONT}; --wb-mono: monospace`,
    },
    copy,
  );
  offscreen.style.font = `14px/1.45 ${PLAIN_FONT}`;
  copy.querySelectorAll("[id]").forEach((part) => part.removeAttribute("id"));
  el.closest(".wb").append(offscreen);
  for (const part of copy.querySelectorAll("*")) part.style.contentVisibility = "visible";
  for (const part of copy.querySelectorAll(".wb-ribbon, .wb-nodecard, .wb-tree, .wb-table"))
    Object.assign(part.style, { height: "auto", maxHeight: "none", overflow: "visible" });
  for (const part of copy.querySelectorAll(".wb-label")) part.style.whiteSpace = "normal"; // an image has no ellipsis
  const width = copy.offsetWidth, height = copy.offsetHeight;
  inlineStyles([copy, ...copy.querySelectorAll("*")], [clone, ...clone.querySelectorAll("*")], LAID_OUT);
  offscreen.remove();
  page.append(clone);
  page.style.cssText = `width: ${width}px; font: 14px/1.45 ${PLAIN_FONT}`;
  const frame = kit.s("foreignObject", { width, height });
  frame.append(page);
  return { node: frame, width, height };
}

/** Copy computed styles to clones; remove hidden elements; make text printable. */
function inlineStyles(originals, copies, properties) {
  const removed = [], added = [];
  originals.forEach((original, i) => {
    const style = getComputedStyle(original), copy = copies[i];
    if (style.display === "none" || original.matches("button.wb-tool, input, label, select")) return removed.push(copy);
    copy.setAttribute("style", properties.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";"));
    if (original.tagName === "I")
      Object.assign(copy.style, { width: `${original.offsetWidth}px`, height: `${original.offsetHeight}px` });
    const drawn = before(original, properties);
    if (drawn) added.push([copy, drawn]);
    for (const child of copy.childNodes) if (child.nodeType === Node.TEXT_NODE) child.data = printable(child.data);
    for (const { name, value } of [...copy.attributes]) copy.setAttribute(name, printable(value));
  });
  added.forEach(([copy, drawn]) => copy.prepend(drawn));
  removed.forEach((copy) => copy.remove());
}

/** Return the stylesheet's content before `original` as an element, or null: an exported image has no stylesheet. */
function before(original, properties) {
  const style = getComputedStyle(original, "::before"), { content } = style;
  if (!content || content === "none" || content === "normal" || style.display === "none") return null;
  const named = /^attr\(([\w-]+)\)$/.exec(content)?.[1],
    text = named ? (original.getAttribute(named) ?? "") : content.replace(/^"|"$/g, "");
  const element = h("span", {}, printable(text));
  element.setAttribute("style", [...properties, "width", "height"].map((p) => `${p}:${style.getPropertyValue(p)}`).join(";"));
  return element;
}

/** Render an SVG image as PNG, at double resolution where possible. @returns {Promise<Blob>} */
export async function png({ text, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(2, MAX_PIXELS / Math.max(width, height));
  const canvas = Object.assign(document.createElement("canvas"), {
    width: Math.round(width * scale),
    height: Math.round(height * scale),
  });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The image is too large."))), "image/png"),
  );
}

// -- The menu ------------------------------------------------------------------------------------------------------

/** Return the Export button with its closed menu. */
export function menu(part, title) {
  const box = h(
    "div",
    { className: "wb-menu" },
    part("export", "button", { type: "button", className: "wb-badge", title }, "export ▾"),
    part("exports", "div", { className: "wb-exports", hidden: true }),
  );
  kit.set(box.firstChild, { "aria-haspopup": "true", "aria-expanded": "false" });
  return box;
}

/** Make the menu open and close. @param {AbortSignal} [signal]  ends it */
export function wire(parts, signal) {
  const turn = (on) => {
    parts.exports.hidden = !on;
    parts.export.setAttribute("aria-expanded", String(on));
  };
  const listen = (el, name, act) => el.addEventListener(name, act, { signal });
  listen(parts.export, "click", () => turn(parts.exports.hidden));
  listen(document, "click", (event) => event.target.closest(".wb-menu") || turn(false));
  listen(parts.exports.parentElement, "keydown", (event) => event.key === "Escape" && turn(false));
}

/** Fill the menu of a page: its files, and an image of each card that is visible.
 *  @typedef {{text: string, about: string, act: (data: any) => any, kind?: string, off?: () => string}} Item  `act`
 *    saves and returns the message to show; `kind`: the file's, for tests and links; `off`: why it is not available now
 *  @param {any} container
 *  @param {{title: string, nothing: string, data: () => any, items: Item[], stage: Element,
 *    note: (data: any) => string, name: (data: any, ending: string, part: string) => string}} given  `title` of the
 *    files; `nothing`: message while there is no `data`; `note`: caption of an image, the origin of its figures;
 *    `name`: file name of an image */
export function fill(container, { title, nothing, data, items, stage, note, name }) {
  const status = h("p", { className: "wb-exportnote" });
  status.setAttribute("role", "status");
  const act = (work) => async () => {
    const found = data();
    if (!found) return (status.textContent = nothing);
    status.textContent = "…";
    try {
      status.replaceChildren(...[await work(found)].flat());
    } catch (problem) {
      status.textContent = `Not saved: ${problem.message}`;
    }
  };
  const buttons = items.map(({ text, kind = "", act: work }) => {
    const properties = { type: "button", className: "wb-export", onclick: act(work) };
    const button = h("button", properties, h("b", {}, text), h("small"));
    if (kind) button.dataset.kind = kind;
    return button;
  });
  const images = h("div", { className: "wb-exportgroup" }, h("h4", {}, "Images"));
  const image = (view, ending, type, make) => {
    const save = file((found) => name(found, ending, view.title), type, (found) => make(picture(view, note(found))));
    const button = h("button", { type: "button", className: "wb-tool", onclick: act(save) }, ending.toUpperCase());
    button.setAttribute("aria-label", `${view.title} as ${ending.toUpperCase()}`);
    return button;
  };
  const list = () => {
    items.forEach(({ about, off = () => "" }, i) => {
      const reason = off();
      buttons[i].disabled = Boolean(reason);
      kit.write(buttons[i].lastChild, reason || about);
    });
    const rows = views(stage).map((view) =>
      h(
        "div",
        { className: "wb-exportview" },
        h("span", {}, view.title),
        image(view, "svg", "image/svg+xml", (made) => made.text),
        image(view, "png", "image/png", png),
      ),
    );
    images.replaceChildren(images.firstChild, ...rows);
  };
  new IntersectionObserver(([seen]) => seen.isIntersecting && list()).observe(container); // the menu was opened
  list();
  container.append(h("div", { className: "wb-exportgroup" }, h("h4", {}, title), ...buttons), images, status);
}

/** Return the action of an item that saves a file.
 *  @param {(data: any) => string} name  @param {(data: any) => any} make  its content */
export function file(name, type, make) {
  return async (data) => `Saved ${save(name(data), await make(data), type)}`;
}

/** Return the menu of a page that shows a run.
 *  @param {{trace: () => {header: object|null, rounds: object[], footer: object|null}|null,
 *    stage: Element, host: any, definitions?: () => object, lexicon?: () => object|null,
 *    keeps?: boolean, kept?: (id: string) => void, baseline?: () => object|null}} given  `keeps`: runs can be saved on
 *    the server; `kept` is called with the id of a saved run; `baseline`: baseline data to save with it */
export function ofRun({
  trace,
  stage,
  host,
  definitions = () => ({}),
  lexicon = () => null,
  keeps = false,
  kept: onKept = () => {},
  baseline = () => null,
}) {
  const named = (ending, part) => (run) => fileName(run.header, ending, part);
  const replay = async (trace) =>
    html(await host.sources(), { trace, definitions: definitions(), lexicon: lexicon() });
  const keep = {
    text: "Keep",
    about: "save the run on this machine, for the Gallery and `workbench runs`",
    act: (run) => saveRun(run, host, onKept, baseline()),
    off: () => (keeps ? "" : "not available in a public app: save a file instead"),
  };
  return {
    title: "The run",
    nothing: "Nothing to export yet: the run has no rounds.",
    data: () => {
      const run = trace();
      return run?.header ? run : null;
    },
    items: [
      ...(host.call ? [keep] : []),
      {
        text: "JSON Lines",
        about: "all rounds, in a file that this page can open again",
        act: file(named("jsonl"), "application/jsonl", jsonLines),
      },
      {
        text: "Parquet",
        about: "one row per round, for polars and pandas",
        act: file(named("parquet"), "application/vnd.apache.parquet", (run) =>
          bytesOf(host, "export_parquet", { trace: run }),
        ),
        off: () => (host.call ? "" : "not available in a replay file"),
      },
      {
        text: "Chrome trace",
        about: "time of each phase, as a trace for Perfetto",
        act: file(named("json", "Chrome trace"), "application/json", (run) => JSON.stringify(chromeTrace(run))),
      },
      {
        text: "HTML replay",
        about: "one HTML file that replays the run offline",
        act: file(named("html", "HTML replay"), "text/html", replay),
      },
    ],
    stage,
    note: caption,
    name: (run, ending, part) => fileName(run.header, ending, part),
  };
}

/** Call the server for a file. @throws {Error} its refusal */
async function demand(host, name, request) {
  const answer = await alerts.call(host, name, request);
  if (answer.error) throw new Error([answer.error.message, answer.error.remedy].filter(Boolean).join(" "));
  return answer;
}

/** Return the bytes of a file that the server makes. */
export async function bytesOf(host, name, request) {
  return bytes((await demand(host, name, request)).data);
}

/** Return rows of cells as CSV (RFC 4180); empty cells are null or undefined. A text that a spreadsheet would read as a
 *  formula begins with an apostrophe. Pure. @param {any[][]} rows */
export function csv(rows) {
  return rows.map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

function csvCell(found) {
  const plain = typeof found === "string" && /^[=+\-@\t\r]/.test(found) ? `'${found}` : `${found ?? ""}`;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Decode base64. Pure. */
export function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

async function saveRun(run, host, onKept, baseline) {
  const { id } = await demand(host, "keep", { trace: run, ...(baseline && { baseline }) });
  onKept(id);
  return [
    "Kept: ",
    h("a", { href: address.run(host.base, id) }, `/r/${id}`),
    " ",
    pagehead.copyButton(address.run(host.base, id)),
    " ",
    h("a", { href: `${host.base}/gallery#kept` }, "see all kept runs"),
  ];
}

/** Download a file. @returns {string} its name */
export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  Object.assign(document.createElement("a"), { download: name, href: url }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  return name;
}
