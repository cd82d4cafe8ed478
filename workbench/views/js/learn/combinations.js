/** Matrix of the methods page: drafters by verifiers, with signs for promise and evidence. The selected cell lists its
 *  methods, policies, tree builders and evidence below; a cell without methods says whether the combination would be
 *  sound. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";

const CHOICES = ["policy", "grower"];
/** Signs of a cell and their meanings, in the order of the legend. */
const SIGNS = [
  ["✓", "exact, confirmed on the exactness board"],
  ["✓?", "exact, partly confirmed"],
  ["?", "exact, not tested"],
  ["!", "exact, but a test failed"],
  ["≈", "approximate"],
  ["◇", "simulation"],
  ["·", "would be exact, but no method offers this combination"],
  ["–", "approximate for any kind of draft; no method offers it"],
  ["✕", "disabled: would not preserve the target's distribution"],
];
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const WORDS = new Map(/** @type {[string, string][]} */ (SIGNS));

/** @typedef {{method: string, title: string, verifier: string, promise: string, standing: string, reason: string,
 *    ways: Record<string, string[]>, only?: Record<string, string>, policies?: Record<string, string>,
 *    greyed?: boolean}} Offer
 *  @typedef {{offers: Offer[], reason: string, approximate?: boolean}} Cell
 *  @typedef {{drafter: string, methods: string[], cells: Cell[]}} Row
 *  @typedef {{policy?: string, grower?: string}} Wanted  a choice of each; empty: any */

/** Return the choices of an offer, one line each, with the evidence for each policy. Pure.
 *  @param {{verifier: string, ways: Record<string, string[]>, policies?: Record<string, string>, reason: string}} offer
 *  @returns {string[]} */
export function lines(offer) {
  const seen = offer.policies ?? {};
  const policyText = (name, value) => (name === "policy" && seen[value] ? `${value} (${seen[value]})` : value);
  const options = Object.entries(offer.ways).map(
    ([name, values]) => `${name}: ${values.map((value) => policyText(name, value)).join(", ")}`,
  );
  return [...(offer.verifier ? [`verifier = ${offer.verifier}`] : []), ...options, offer.reason].filter(Boolean);
}

/** Describe a cell that no method offers. Pure.
 *  @param {{reason: string, approximate?: boolean}} cell  why it would be unsound; empty: sound */
export function missing({ reason, approximate = false }) {
  if (!reason) return "No method offers this combination; it would be exact.";
  return approximate ? `– Not offered. ${reason}` : `✕ ${reason}`;
}

/** Return the offers that allow the wanted choices. Pure. @param {Offer[]} offers  @param {Wanted} wanted */
export function offersWith(offers, wanted) {
  const has = (/** @type {Offer} */ { ways, only }, name) =>
    !wanted[name] || (ways[name] ?? [only?.[name]]).includes(wanted[name]);
  return offers.filter((offer) => CHOICES.every((name) => has(offer, name)));
}

/** Return the signs of a cell: exactness with the evidence for all its policies, then whether some offers are
 *  approximate. Empty if no offer allows the wanted choices. Pure.
 *  @param {Cell} cell  @param {Wanted} [wanted]  @returns {string[]} */
export function signs({ offers, reason, approximate = false }, wanted = {}) {
  if (!offers.length) return [!reason ? "·" : approximate ? "–" : "✕"];
  const found = offersWith(offers, wanted), exact = found.filter((o) => o.promise === "exact");
  const seen = exact.flatMap(({ policies = {}, standing }) =>
    wanted.policy ? [policies[wanted.policy] ?? standing] : [standing, ...Object.values(policies)],
  );
  const shown = seen.filter((standing) => standing === "shown");
  const evidence = shown.length === seen.length ? "✓" : shown.length ? "✓?" : "?";
  return [
    ...(exact.length ? [seen.includes("broken") ? "!" : evidence] : []),
    ...(found.some((o) => o.promise === "approximate" && !o.greyed) ? ["≈"] : []),
    ...(found.length && found.every((o) => o.greyed) ? ["✕"] : []),
    ...(found.length && found.every((o) => o.promise === "simulation") ? ["◇"] : []),
  ];
}

/** Describe signs in words. Pure. @param {string[]} found  @param {Wanted} wanted */
export function signsText(found, wanted) {
  const choicesText = CHOICES.filter((name) => wanted[name]).map((name) => `${name} ${wanted[name]}`).join(" and ");
  return found.map((sign) => WORDS.get(sign)).join("; also ") || `not offered with ${choicesText}`;
}

/** Name the methods of a drafter. Pure. @param {Row} row */
export const drafterText = ({ methods, drafter }) => methods.join(", ") || drafter;

/** Build the matrix, its choices, and the details of the selected cell.
 *  @param {{verifiers: string[], rows: Row[]}} found
 *  @param {(word: string) => Element} standing  draws a standing of the exactness board */
export function build({ verifiers, rows }, standing) {
  const state = { row: 0, column: 0, drafter: "", verifier: "", policy: "", grower: "" };
  state.row = Math.max(0, rows.findIndex((row) => row.cells.filter((cell) => cell.offers.length).length > 1));
  const details = h("div", { className: "wb-crosstold" }), body = h("tbody");
  const choices = h("div", { className: "wb-crossform" });
  kit.set(details, { "aria-live": "polite" });
  const heads = verifiers.map((name) => h("th", { scope: "col" }, h("span", {}, name)));
  const lines = rows.map((row, y) => {
    const cells = row.cells.map((_, x) => h("td", {}, h("button", { type: "button", onclick: () => choose(y, x) })));
    return h("tr", {}, h("th", { scope: "row", title: row.drafter }, drafterText(row)), ...cells);
  });
  body.append(...lines);
  body.addEventListener("keydown", move);
  const head = h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "drafter"), ...heads));
  const scroll = h("div", { className: "wb-crossbox" }, h("table", { className: "wb-cross" }, head, body));
  kit.set(scroll, { role: "region", "aria-label": "Drafters by verifiers", tabindex: 0 });
  const offers = rows.flatMap((row) => row.cells.flatMap((cell) => cell.offers));
  const optionsOf = (name) => offers.flatMap(({ ways, only }) => ways[name] ?? only?.[name] ?? []);
  const every = (name) => [...new Set(optionsOf(name))].filter(Boolean).map((value) => [value, value]);
  choices.append(
    picker("drafter", "Drafter", rows.map((row, i) => [`${i}`, drafterText(row)])),
    picker("verifier", "Verifier", verifiers.map((name, i) => [`${i}`, name])),
    picker("policy", "Policy", every("policy")),
    picker("grower", "Tree builder", every("grower")),
  );
  const legend = h("p", { className: "wb-crosslegend" });
  legend.append(...SIGNS.flatMap(([sign, word]) => [h("span", {}, h("b", {}, sign), ` ${word}`), " "]));
  draw();
  return [choices, legend, scroll, details];

  function picker(name, title, options) {
    const any = h("option", { value: "" }, "any");
    const select = h("select", {}, any, ...options.map(([value, text]) => h("option", { value }, text)));
    select.addEventListener("change", () => {
      state[name] = select.value;
      if (state.drafter) state.row = Number(state.drafter);
      if (state.verifier) state.column = Number(state.verifier);
      draw();
    });
    return h("label", {}, title, select);
  }

  function choose(row, column) {
    Object.assign(state, { row, column });
    draw();
  }

  function move(event) {
    const [dy, dx] = STEPS[event.key] ?? [0, 0];
    if (!dy && !dx) return;
    event.preventDefault();
    const row = state.drafter ? state.row : Math.min(rows.length - 1, Math.max(0, state.row + dy));
    choose(row, state.verifier ? state.column : Math.min(verifiers.length - 1, Math.max(0, state.column + dx)));
    lines[state.row].children[state.column + 1].firstChild.focus();
  }

  function draw() {
    const here = (y, x) => y === state.row && x === state.column;
    heads.forEach((head, x) => {
      head.hidden = state.verifier !== "" && x !== Number(state.verifier);
      head.classList.toggle("is-at", x === state.column);
    });
    rows.forEach((row, y) => {
      lines[y].hidden = state.drafter !== "" && y !== Number(state.drafter);
      lines[y].classList.toggle("is-at", y === state.row);
      row.cells.forEach((cell, x) => {
        const box = lines[y].children[x + 1], button = box.firstChild, found = signs(cell, state);
        box.hidden = heads[x].hidden;
        kit.write(button, found.join(" "));
        button.className = `is-${{ "✓": "shown", "!": "broken", "✕": "off", "·": "off", "–": "off" }[found[0]] ?? "other"}`;
        kit.set(button, {
          "aria-label": `${drafterText(row)}, ${verifiers[x]}: ${signsText(found, state)}`,
          "aria-pressed": here(y, x),
          tabindex: here(y, x) ? 0 : -1,
        });
      });
    });
    showDetails();
  }

  function showDetails() {
    const row = rows[state.row], cell = row.cells[state.column], found = offersWith(cell.offers, state);
    const words = cell.offers.length
      ? found.length ? found.map((offer) => offerElement(offer, standing)) : [h("p", {}, `This combination is ${signsText([], state)}.`)]
      : [h("p", {}, missing(cell))];
    const title = h("h3", {}, `Drafts of ${drafterText(row)}, verified by ${verifiers[state.column]}`);
    details.replaceChildren(title, h("div", { className: "wb-ways" }, ...words));
  }
}

function offerElement(offer, standing) {
  const promise = h("span", { className: "wb-promised" }, offer.greyed ? "disabled" : offer.promise);
  promise.dataset.promise = offer.promise;
  return h(
    "div",
    { className: offer.reason ? "wb-way is-unsound" : "wb-way" },
    h("a", { href: pagehead.place(offer.method) }, offer.title),
    " ",
    promise,
    " ",
    standing(offer.standing),
    ...lines(offer).map((words) => h("small", {}, words)),
  );
}
