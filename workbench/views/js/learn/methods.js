/** The methods page: one card per registered method, the compatibility matrix, the definitions of all figures. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as find from "./find.js";
import * as methodmap from "./methodmap.js";
import * as methodcardsboards from "./boards.js";
import * as pagehead from "../shared/pagehead.js";
import * as ribbon from "../shared/ribbon.js";
import * as roles from "../shared/roles.js";
import * as tree from "../live/tree.js";
import * as recommend from "./recommend.js";

/** Return the first informative round: some drafts accepted and some not, preferably on several branches. Pure.
 *  @param {object[]} rounds @returns {object|null} */
export function informativeRound(rounds) {
  const branches = ({ nodes }) => new Set(nodes.parents).size < nodes.parents.length;
  const mixed = ({ nodes, path }) => path.length > 0 && path.length < nodes.parents.length;
  return (
    rounds.find((r) => mixed(r) && branches(r)) ??
    rounds.find(mixed) ??
    rounds.find((r) => r.path.length) ??
    rounds.find((r) => r.emitted?.length > 0) ??
    rounds[0] ??
    null
  );
}

/** Describe the allowed values of a parameter. Pure. */
export function range(spec) {
  if (spec.kind === "bool") return "true, false";
  if (spec.choices?.length) return spec.choices.join(", ");
  if (spec.ge === null && spec.le === null) return spec.kind;
  return `${spec.ge ?? "−∞"} … ${spec.le ?? "∞"}`;
}

/** Group a method's row of the matrix by target: the draft models with which it runs, and why it does not run with the
 *  others. If all reasons of a target contain the same shorter one, only that one is listed. Pure.
 *  @param {{target: string, drafter: string|null}[]} columns  @param {string[]} reasons  empty: it runs
 *  @returns {{target: string, on: string[], off: {reason: string, with: string[]}[], all: boolean}[]} */
export function byTarget(columns, reasons) {
  const named = (drafter) => (drafter ? drafter : "no draft model");
  return [...new Set(columns.map((c) => c.target))].map((target) => {
    const mine = columns.map((c, i) => ({ ...c, reason: reasons[i] })).filter((c) => c.target === target),
      off = mine.filter((c) => c.reason);
    const root = off.find((c) => off.every((other) => other.reason.includes(c.reason)))?.reason, grouped = new Map();
    for (const c of off) {
      const reason = root ?? c.reason;
      grouped.set(reason, [...(grouped.get(reason) ?? []), named(c.drafter)]);
    }
    return {
      target,
      on: mine.filter((c) => !c.reason).map((c) => named(c.drafter)),
      off: [...grouped].map(([reason, list]) => ({ reason, with: list })),
      all: off.length === 0 || off.length === mine.length,
    };
  });
}

/** Return the page state that runs a method immediately; methods for images open in the Vision view. Pure.
 *  @param {{name: string, needs: string[]}} method
 *  @param {{target: string, drafter: string|null}[]} columns  pairs of models, the app's own first; [] if not known yet
 *  @param {string[]} reasons  of the method, one per pair; empty: it runs there */
export function runState(method, columns = [], reasons = []) {
  const pair = reasons[0] ? columns.find((_, i) => !reasons[i]) : null,
    models = pair ? { target: pair.target, drafter: pair.drafter } : {};
  return method.needs.includes("pictures")
    ? { tab: "vision", method: method.name }
    : { ...models, method: method.name, run: "new" };
}

/** Draw the page. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  const main = pagehead.build(el, {
    host,
    current: "Methods",
    about:
      "The idea, the promise and the requirements of each method, taken from the engine's registry.",
  });
  const wait = main.appendChild(h("p", { className: "wb-empty" }, "The backend is starting …"));
  const page = /** @type {any} */ ({ host, main });
  const [found, measured] = await Promise.all(["methods", "measured"].map((name) => pagehead.ask(main, { host }, name)));
  wait.remove();
  if (found) {
    const places = /** @type {[string, string][]} */ ([["runs", "Methods and models"], ...methodcardsboards.PLACES, ["figures", "Figures"]]);
    const link = ([id, words]) => h("a", { href: pagehead.place(id) }, words);
    const methods = found.methods.map((x) => link([x.name, x.title]));
    const list = h("nav", { className: "wb-contents" }, ...places.map(link), h("div", {}, ...methods));
    list.setAttribute("aria-label", "On this page");
    page.recordings = found.recordings;
    const body = h(
      "div",
      { className: "wb-methods" },
      ...found.methods.map((x) => card(x, page)),
      matrix(),
      definitions(found.definitions, h),
    );
    const map = measured ? mapOf(page, measured, body) : null;
    if (map) main.append(map.section);
    main.append(find.field(body, map?.search), h("div", { className: "wb-withcontents" }, list, body));
    page.boards = pagehead.ask(main, { host }, "boards");
    const boards = methodcardsboards.add(page, body), mine = recommend.add(page, body, list);
    const again = () => (main.isConnected ? find.reveal(body) : removeEventListener("hashchange", again));
    addEventListener("hashchange", again);
    // a click on a link to the current hash fires no `hashchange`
    list.addEventListener("click", () => setTimeout(() => find.reveal(body)));
    const there = find.reveal(body); // show a card before the boards have loaded, which takes seconds
    el.dataset.ready = "true";
    await Promise.all([fill(page), boards, mine]);
    if (!there) find.reveal(body);
  }
  el.dataset.ready = "true";
  el.dataset.drawn = "true";

  function matrix() {
    const about =
      "Methods by target and draft model, as available in this backend. " +
      "If a method cannot run, its cell gives the reason.";
    const wait = h("p", { className: "wb-empty" }, "Loading …");
    page.matrix = h("div", { className: "wb-scroll", tabIndex: 0 }, wait);
    page.matrix.setAttribute("role", "region");
    page.matrix.setAttribute("aria-label", "Compatibility of methods and models");
    const head = [h("h2", {}, "Methods and models"), h("p", { className: "wb-about" }, about)];
    return find.fold({ id: "runs" }, head, [page.matrix]);
  }
}

function card(method, page) {
  const { host, recordings } = page, recorded = recordings.includes(method.name);
  const promise = h("span", { className: "wb-promised" }, method.promise),
    meaning = controls.PROMISES[method.promise]?.split(": ")[1];
  const otherwise = controls.verifierPromises(method);
  promise.dataset.promise = method.promise;
  const source = h(
    "a",
    { className: "wb-paper", ...safe(method.source.url), target: "_blank", rel: "noopener" },
    controls.cite(method.source),
  );
  const run = h("a", { className: "wb-button is-main" }, "Run it"),
    leads = (...known) => (run.href = pagehead.liveLink(host.base, runState(method, ...known)));
  leads();
  (page.runs ??= new Map()).set(method.name, leads);
  const watch = h(
    "a",
    { className: "wb-button", href: pagehead.liveLink(host.base, { recorded: method.name }), hidden: !recorded },
    "Watch the recording",
  );
  run.setAttribute("aria-label", `Run ${method.title}`);
  watch.setAttribute("aria-label", `Watch the recording of ${method.title}`);
  const words = h(
    "div",
    {},
    h("p", { className: "wb-idea" }, method.idea),
    method.formula ? h("p", { className: "wb-rule" }, method.formula) : "",
    h(
      "dl",
      { className: "wb-factlist" },
      h("dt", {}, "promise"),
      h("dd", {}, method.promise, meaning ? `: ${meaning}` : "", otherwise && `; ${otherwise}`),
      h("dt", {}, "needs"),
      h("dd", {}, method.needed),
      h("dt", {}, "from"),
      h("dd", {}, source),
    ),
    differences(method, h),
    h("div", { className: "wb-actions" }, run, watch),
  );
  const drawing = h(
    "figure",
    { className: "wb-picture", hidden: true },
    h("div", { className: "wb-tree", tabIndex: 0 }),
    h("figcaption", {}),
  );
  kit.set(drawing.firstChild, { role: "group", "aria-label": `A draft of ${method.title}` });
  const head = [
    h("h2", {}, method.title, " ", h("code", {}, method.name)),
    h("span", { className: "wb-methodsays" }, promise),
    h("p", { className: "wb-teaches" }, method.teaches),
  ];
  const body = [h("div", { className: "wb-methodbody" }, words, drawing), parameters(method.params, h)];
  const draw = () => recorded && picture(method, page, drawing);
  const section = find.fold({ className: "wb-method", id: method.name }, head, body, draw);
  section.dataset.method = method.name;
  return section;
}

/** List the differences from the method's paper, folded; empty if there are none.
 *  @param {{title: string, differs: string[]}} method */
export function differences(method, h) {
  if (!method.differs.length) return "";
  const points = method.differs.length === 1 ? "one point" : `${method.differs.length} points`;
  const words = h("summary", {}, `Differs from the paper in ${points}`);
  return h(
    "details",
    { className: "wb-differs" },
    words,
    h("ul", {}, ...method.differs.map((each) => h("li", {}, each))),
  );
}

/** Only addresses of the web become links. */
function safe(url) {
  return /^https?:\/\//.test(url) ? { href: url } : {};
}

function parameters(specs, h) {
  if (!specs.length) return "";
  const rows = specs.map((x) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", {}, x.name)),
      h("td", {}, `${x.default}`),
      h("td", {}, range(x)),
      h("td", {}, x.doc, x.when ? h("small", {}, ` (${x.when})`) : ""),
    ),
  );
  const head = h(
    "tr",
    {},
    ...["parameter", "default", "range", "description"].map((name) => h("th", { scope: "col" }, name)),
  );
  const scroll = h(
    "div",
    { className: "wb-scroll" },
    h("table", { className: "wb-params" }, h("thead", {}, head), h("tbody", {}, ...rows)),
  );
  scroll.tabIndex = 0;
  return scroll;
}

/** Draw the draft of an informative round of the method's recording, on demand. */
async function picture(method, { host, main }, figure) {
  const trace = await pagehead.ask(main, { host }, "recording", { name: method.name });
  const round = trace && informativeRound(trace.rounds);
  if (!round) return;
  figure.hidden = false;
  const before = trace.rounds[round.index - 1]?.emitted.at(-1)?.text ?? trace.header.prompt_text.at(-1) ?? "";
  tree.render(figure.firstChild, {
    round,
    root: roles.word(before),
    node: null,
    empty: "",
    height: 300,
    textOf: ribbon.tokenText,
    wordsOf: (nodes) => ribbon.words(nodes, roles.word),
  });
  const tested = round.nodes.status.filter((x) => x !== "discarded").length;
  figure.lastChild.textContent = round.nodes.status.length
    ? `Round ${round.index + 1} of the method's recording: ${round.nodes.status.length} drafted, ${tested} tested, ${round.path.length} accepted, ${round.emitted.length} tokens emitted.`
    : `Round ${round.index + 1} of the method's recording: no drafts, tokens emitted: ${round.emitted.length}.`;
}

/** Return the map of methods; its filters also hide cards of methods. */
function mapOf(page, measured, body) {
  const { host, main, recordings } = page;
  return methodmap.build({
    measured, host, recorded: recordings, hasSearch: false,
    matrix: () => (page.found ??= pagehead.ask(main, { host }, "matrix")),
    open: (name) => {
      history.replaceState(history.state, "", pagehead.place(name));
      find.reveal(body);
      body.querySelector(`[id="${CSS.escape(name)}"] summary`)?.focus({ preventScroll: true });
    },
    filtered: (shown) => {
      for (const card of body.querySelectorAll(".wb-method")) card.classList.toggle("is-filtered", !shown.has(card.dataset.method));
    },
  });
}

async function fill(page) {
  const { host, main, matrix, runs } = page;
  const found = await (page.found ??= pagehead.ask(main, { host }, "matrix"));
  if (!found) return matrix.replaceChildren();
  const heads = byTarget(found.columns, found.columns.map(() => ""));
  const head = ({ target, on }) =>
    h("th", { scope: "col" }, target, h("small", {}, `with ${on.join(", ").replace(/, ([^,]*)$/, " or $1")}`));
  const cell = ({ on, off, all }) =>
    h(
      "td",
      { className: on.length ? "is-on" : "is-off" },
      ...(on.length
        ? [
            all
              ? "✓ runs"
              : on.length > off.flatMap((each) => each.with).length
                ? "✓ runs, except"
                : `✓ runs with ${on.join(", ")}`,
          ]
        : []),
      ...off.map((each) =>
        all && off.length === 1 ? `✕ ${each.reason}` : h("small", {}, `✕ with ${each.with.join(", ")}: ${each.reason}`),
      ),
    );
  for (const { name, reasons } of found.rows) runs.get(name)?.(found.columns, reasons);
  const rows = found.rows.map((row) =>
    h("tr", {}, h("th", { scope: "row" }, row.title), ...byTarget(found.columns, row.reasons).map(cell)),
  );
  matrix.replaceChildren(
    h(
      "table",
      { className: "wb-matrix" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "method"), ...heads.map(head))),
      h("tbody", {}, ...rows),
    ),
  );
}

function definitions(list, h) {
  const rows = list.flatMap((d) => [h("dt", {}, d.title, h("code", {}, d.name)), h("dd", {}, d.meaning)]);
  const title = h("h2", {}, "Definitions of the metrics");
  return find.fold({ id: "figures" }, [title], [h("dl", { className: "wb-definitions" }, ...rows)]);
}
