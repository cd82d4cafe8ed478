/** Page of the verifier bench: header, address, files. Everything is computed in the browser, without the app. */

import * as bench from "./bench.js";
import * as exports from "../shared/exports.js";
import { h } from "../shared/kit.js";
import * as jobs from "../shared/jobs.js";
import * as kit from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";
import * as states from "./state.js";

const FILE = "verifier-bench", WAIT_MS = 250;

/** Mount the page in `el`. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const { state, problems } = states.fromQuery(host.address.read());
  const parts = header(el, host);
  let waiting = null;
  const page = bench.mount(el, { state, problems, change: (now) => {
    clearTimeout(waiting); // browsers allow about 100 address changes per 30 s; dragging makes more
    waiting = setTimeout(() => host.address.write(states.toQuery(now)), WAIT_MS);
  } });
  Object.assign(page.parts, parts);
  const note = page.parts.side._ui.note;
  const update = (text) => (kit.write(note, text), note.classList.toggle("is-empty", !text));
  parts.theme.addEventListener("click", () => host.theme());
  parts.copy.addEventListener("click", async () => {
    const url = host.address.url(states.toQuery(page.state));
    const done = await navigator.clipboard?.writeText(url).then(() => true, () => false);
    update(done ? "Link copied to the clipboard." : url);
  });
  list(page);
  jobs.wireMenu(page, (kind) => save(page, kind).then(update, (problem) => update(`Not saved: ${problem.message}`)));
  if (!host.go) document.title = "Verifiers · Speculative Decoding Workbench";
  el.dataset.ready = "true";
  return page;
}

function header(el, host) {
  const parts = /** @type {any} */ ({});
  const part = (name, tag = "div", properties = {}, ...children) => (parts[name] = h(tag, properties, ...children));
  const badge = (name, text, title) => part(name, "button", { type: "button", className: "wb-badge", title }, text);
  const nav = part("nav", "nav", { className: "wb-nav" }), menu = jobs.exportMenu(part, "Save the bench", []);
  const head = h(
    "header",
    { className: "wb-head" },
    h("h1", { className: "wb-name" }, "Speculative Decoding Workbench"),
    nav,
    h("span", { className: "wb-space" }),
    badge("copy", "copy link", "Copy a link to this p, q, drafts and rule"),
    menu,
    badge("theme", "◐ theme", "Light or dark"),
  );
  pagehead.fill(nav, host, "Verifiers");
  el.append(head);
  return parts;
}

function list({ parts }) {
  const entry = (kind, text) => {
    const button = h("button", { type: "button", className: "wb-link" }, text);
    button.dataset.kind = kind;
    return button;
  };
  const cards = exports.views(parts.stage).flatMap(({ title }) =>
    ["svg", "png"].map((ending) => entry(`${exports.clean(title)}.${ending}`, `${title}: ${ending.toUpperCase()}`)));
  parts.exports.append(
    entry("json", "JSON: distributions, acceptance rates, sampled output"), entry("csv", "CSV: acceptance rate of every rule by k"), ...cards,
  );
}

/** Return the acceptance rates as CSV: one row per line of the chart. Pure. @param {Record<string, number[]>} curves */
export function csv(curves) {
  const rows = Object.entries(curves).map(([id, values]) => [...id.split("/"), ...values.map((v) => v.toFixed(6))]);
  const head = ["rule", "drafts", ...Object.values(curves)[0].map((_, i) => `k${i + 1}`)];
  return [head, ...rows].map((row) => `${row.join(",")}\n`).join("");
}

async function save(page, kind) {
  const found = page.figures(), [name, ending] = kind.split(".");
  if (kind === "json") return saved(exports.save(`${FILE}.json`, JSON.stringify(found, null, 1), "application/json"));
  if (kind === "csv") return saved(exports.save(`${FILE}.csv`, csv(found.acceptance), "text/csv"));
  const view = exports.views(page.parts.stage).find((each) => exports.clean(each.title) === name);
  if (!view) return "Not saved: this card is hidden.";
  const image = exports.picture(view, `COMPUTED · p and q: ${page.state.from} · Speculative Decoding Workbench`);
  const content = ending === "png" ? await exports.png(image) : image.text;
  return saved(exports.save(`${FILE}_${name}.${ending}`, content, "image/svg+xml"));
}

const saved = (name) => `Saved ${name}`;
