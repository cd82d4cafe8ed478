/** The app's views in a notebook: adapts a Jupyter model to a host, traces and a selection. */

import * as choices from "../live/choice.js";
import * as form from "../shared/form.js";
import * as kit from "../shared/kit.js";
import * as livePage from "../live/page.js";
import * as opening from "../live/opening.js";
import * as player from "../live/player.js";
import * as store from "../shared/store.js";
import * as widgetbench from "./bench.js";
import * as widgetlane from "./lane.js";
import * as widgetpanel from "./panel.js";

const THEMED = ["class", "data-jp-theme-light", "data-vscode-theme-kind", "theme"];
const ALONE = { tokens: "tokens", tree: "tree", curves: "curves", clock: "clock" };
/** Calls that are not sent to a kernel: the stage starts with the given run and plays no example. */
const UNASKED = new Set(["recorded", "gallery", "estimate"]);

/** Draw a widget into `el`. @param {{model: object, shared: object, vision: object|null}} widget  `shared`: model with
 *  the module's source, the definitions of figures, and the word kinds; `vision`: the Vision tab, if images are
 *  possible
 *  @returns {Promise<() => void>} a function that disposes of the widget */
export async function mount(el, widget) {
  const { model } = widget, kind = model.get("kind"), ends = [];
  el.classList.add("wb-widget");
  el.dataset.kind = kind;
  el.dataset.lmSuppressShortcuts = "true"; // keys act as in the app, not as in the notebook
  for (const name of ["keydown", "keyup"]) el.addEventListener(name, (event) => event.stopPropagation());
  const root = el.appendChild(kit.h("div", { className: "wb" }));
  const place = {
    ...widget,
    el,
    root,
    kind,
    theme: themed(el, ends),
    on: (name, listener) => (model.on(name, listener), ends.push(() => model.off(name, listener))),
    ends,
  };
  const draws = {
    panel: () => widgetpanel.mount(root, place),
    lanes: () => widgetlane.mount(root, place),
    bench: () => widgetbench.mount(root, place),
    live: () => live(place),
    vision: () => recorded(place),
  };
  await (draws[kind] ?? (() => recorded(place)))();
  el.dataset.ready = "true";
  return () => ends.splice(0).forEach((end) => end());
}

/** Follow the surrounding theme until the user chooses one. @returns {() => void} toggles light and dark */
function themed(el, ends) {
  let chosen = null;
  const applyTheme = () => el.classList.toggle("dark", chosen ?? isDark(document));
  const watcher = new MutationObserver(applyTheme), preferred = matchMedia("(prefers-color-scheme: dark)");
  for (const part of [document.documentElement, document.body])
    watcher.observe(part, { attributes: true, attributeFilter: THEMED });
  preferred.addEventListener("change", applyTheme);
  ends.push(() => watcher.disconnect(), () => preferred.removeEventListener("change", applyTheme));
  applyTheme();
  return () => {
    chosen = !el.classList.contains("dark");
    applyTheme();
  };
}

/** Return whether the surrounding JupyterLab, VS Code, Colab or page is dark. Pure. */
export function isDark({ documentElement: html, body }) {
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind) return /dark|high-contrast$/.test(body.dataset.vscodeThemeKind);
  const named = html.getAttribute("theme") ?? html.getAttribute("data-theme");
  if (named) return named === "dark";
  return body.classList.contains("dark") || body.classList.contains("theme-dark");
}

// -- Recorded traces --------------------------------------------------------------------------------------------------

/** Show the traces that Python sent. A later trace replaces the first. */
async function recorded(place) {
  const { model, root, kind, shared, theme, vision } = place, host = { theme, sources: async () => sources(shared) };
  const first = model.get("_given");
  let page;
  if (kind === "vision")
    page = await vision.mount(root, { host, trace: first.trace, beside: first.beside, embed: true });
  else page = await livePage.mount(root, { host, trace: first.trace, embed: true });
  page.shownView = ALONE[kind] ?? null;
  root.dataset.view = page.shownView ?? "";
  const show = ({ trace, beside }, again) => {
    Object.assign(page, { definitions: shared.get("definitions") });
    if (kind === "vision") {
      page.vision.lexicon = shared.get("lexicon");
      if (again)
        vision.render(root, { trace, beside, lexicon: shared.get("lexicon"), definitions: shared.get("definitions") });
    } else {
      if (again) opening.show(page, store.fromTrace(`given-${(page.channels += 1)}`, trace, "recorded"));
      page.plain = beside ? store.fromTrace("beside", beside, "recorded") : null;
      page.plainKey = beside ? (page.run.key = "given") : "";
    }
  };
  root._page = page;
  show(first, false);
  place.on("change:_given", () => show(model.get("_given"), true));
  select(place, page);
  close(place, page);
}

function sources(shared) {
  return { template: shared.get("template"), style: shared.get("style"), module: shared.get("module") };
}

function close({ ends }, page) {
  ends.push(page.end);
  page.draw();
}

// -- A run in progress ------------------------------------------------------------------------------------------------

/** Show a run in the kernel, or in the app that the kernel is connected to. */
async function live(place) {
  const { model, root, shared, theme, el, vision } = place, line = wire(place), listeners = [];
  const host = {
    theme,
    sources: async () => sources(shared),
    listen: (listener) => listeners.push(listener),
    decode: (request) => model.send({ decode: request }),
    call: (name, payload) => {
      if (UNASKED.has(name)) return Promise.resolve(null);
      const catalogue = model.get("_catalogue");
      return name === "catalogue" && !payload.target && catalogue?.methods
        ? Promise.resolve(structuredClone(catalogue))
        : line.call(name, payload);
    },
  };
  const pending = [];
  let page = null, pictures = false;
  const listener = (message) => {
    if (!page) return void pending.push(message);
    if (message.header?.pictures?.length && !pictures && message.run === page.run?.id) {
      pictures = true;
      return void open(message); // the header shows that the run has images
    }
    for (const ear of listeners) ear(message);
    adopt(page, message);
  };
  line.listen(listener);
  const open = async (message = null) => {
    page?.end();
    page = null;
    listeners.length = 0;
    root.replaceChildren();
    const view = pictures ? vision : livePage, mounted = await view.mount(root, { host, embed: pictures });
    if (mounted.parts.whatif) mounted.parts.whatif.hidden = true; // its charts need the app
    if (pictures) Object.assign(mounted.vision, { lexicon: shared.get("lexicon"), empty: "" });
    for (const details of root.querySelectorAll(".wb-settings")) details.open = el.clientWidth > 900;
    page = mounted;
    opening.follow(page, model.get("run_id"));
    for (const each of [message, ...pending.splice(0)]) if (each) listener(each);
    select(place, page);
    close(place, page);
  };
  await open();
}

/** Connect to the model's messages: calls with their answers, and news. */
function wire({ model, on }) {
  const waiting = new Map(), listeners = [], name = Math.random().toString(36).slice(2, 8);
  let count = 0;
  on("msg:custom", (message) => {
    if (message.news) for (const listener of listeners) listener(message.news);
    waiting.get(message.id)?.(message.answer);
    waiting.delete(message.id);
  });
  const call = (method, payload) => new Promise((answered) => {
    const id = `${name}-${(count += 1)}`;
    waiting.set(id, answered);
    model.send({ id, call: method, payload });
  });
  return { call, listen: (listener) => listeners.push(listener) };
}

/** Put the parameters in force into the panel: the run's own, then later changes. */
function adopt(page, message) {
  const { run, catalogue, choice } = page;
  if (!run?.header || message.run !== run.id || !catalogue || !choice) return;
  if (!run.adopted) {
    run.adopted = true;
    page.choice = choices.adopt(choice, run.header, catalogue);
    run.key = choices.pairing(page.choice, catalogue, form.clamp);
  }
  for (const change of (message.rounds ?? []).flatMap((r) => r.changes ?? [])) {
    if (change.name === "method" || change.name === "drafter")
      page.choice[change.name] = change.after ?? page.choice[change.name];
    else if (change.name in choices.parameters(page.choice, catalogue, page.choice.method, form.clamp))
      page.choice.params[change.name] = change.after;
  }
  page.draw();
}

// -- Selection --------------------------------------------------------------------------------------------------------

/** Return the page's selection in Python's form. Pure. @returns {Record<string, number|string>} */
export function toPython(pin, patch = null) {
  const named = { ...(pin ?? {}), ...(patch === null ? {} : { patch }) };
  return Object.fromEntries(
    ["round", "node", "token", "patch", "on"]
      .filter((name) => (named[name] ?? null) !== null && named[name] !== "run")
      .map((name) => [name, named[name]]),
  );
}

/** Return the page's pin for a selection from Python. Pure. */
export function fromPython({ round, node = null, token = null, on }) {
  return Number.isInteger(round) ? { round, node, token, ...(on && { on }) } : null;
}

/** Synchronise the page's pin and the model's `selection`. */
function select({ model, on }, page) {
  const draw = page.draw, now = () => JSON.stringify(toPython(page.selection.pin, page.vision?.patch ?? null));
  const take = () => {
    const wanted = model.get("selection") ?? {};
    if (JSON.stringify(sorted(wanted)) === JSON.stringify(sorted(JSON.parse(now())))) return;
    player.stop(page);
    page.selection = { hover: null, pin: fromPython(wanted) };
    page.scroll = true;
    if ("on" in page) page.on = wanted.on ?? "run";
    if (page.vision) page.vision.patch = wanted.patch ?? null;
    last = now();
    draw();
  };
  let last = "{}";
  page.draw = () => {
    draw();
    if (page.playing || now() === last) return;
    last = now();
    model.set("selection", JSON.parse(last));
    model.save_changes();
  };
  on("change:selection", take);
  take();
}

const sorted = (selection) => Object.entries(selection).sort(([a], [b]) => (a < b ? -1 : 1));
