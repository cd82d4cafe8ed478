/** Elements of the Vision tab: build them once, then draw the state of the view into them. */

import * as bar from "../live/bar.js";
import * as bymethod from "../live/bymethod.js";
import * as card from "../live/card.js";
import * as copying from "../shared/copying.js";
import * as figures from "../shared/figures.js";
import * as help from "../live/help.js";
import * as keyfigures from "../live/keyfigures.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as lines from "../live/lines.js";
import * as panel from "../shared/panel.js";
import * as ribbon from "../shared/ribbon.js";
import * as scrubber from "../live/scrubber.js";
import * as stage from "../live/stage.js";
import * as tables from "../shared/table.js";
import { NEEDS, OTHER, UNLISTED } from "./data.js";
import * as visionhelp from "./help.js";
import * as tokensChart from "./tokenschart.js";
import * as visionkinds from "./kinds.js";
import * as visionpicture from "./picture.js";
import * as visionqueries from "./queries.js";

const WINDOW = 8;
const MOST_RUNS = 8;
const MEASURES = [["attention", "attention"], ["gradient", "gradient"]];

/** Build the empty tab inside `el`; returns the parts by name. */
export function build(el) {
  const parts = {};
  const part = (name, tag = "div", properties = {}, ...children) => (parts[name] = h(tag, properties, ...children));
  const card = (...args) => panel.card(parts, ...args), chart = (...args) => panel.chart(parts, ...args);
  const modes = (name, label, entries) => {
    const group = part(name, "span", { className: "wb-modes" }, ...entries.map(([value, word]) => {
      const button = h("button", { type: "button", className: "wb-tool" }, word);
      button.dataset.value = value;
      return button;
    }));
    kit.set(group, { role: "group", "aria-label": label });
    return group;
  };
  const sight = (name, title, extra) => {
    const element = card(
      name,
      title,
      extra,
      part(name, "div", { className: "wb-picturebox" }),
      part(`${name}Facts`, "p", { className: "wb-facts-line" }),
    );
    parts[`${name}Facts`].before(parts[`${name}Note`]); // under the image: there is no room beside the title
    return element;
  };
  const buttons = (name, title) =>
    modes(`${name}Mode`, `${title}: view`, [
      ["sees", "vision tokens"],
      ["leans", "attribution"],
    ]);
  const key = panel.legend([
    ["is-accepted", "accepted"],
    ["is-corrected", "corrected"],
    ["is-bonus", "bonus"],
    ["is-plain", "plain"],
    ["is-rejected", "rejected"],
    ["is-grounded", "needs the image"],
  ]);
  const caption = (name, label) =>
    panel.region(parts, name, "wb-ribbon wb-caption", {
      role: "listbox",
      "aria-label": label,
      "aria-orientation": "horizontal",
    });
  el.append(
    header(part),
    h(
      "div",
      { className: "wb-main" },
      part("side", "aside", { className: "wb-side has-bar" }, part("controls", "div", { className: "wb-controls" })),
      part(
        "stage",
        "div",
        { className: "wb-stage" },
        part("alerts", "div", { className: "wb-alerts" }),
        part("figures", "div", { className: "wb-figures" }),
        part("byMethod", "div", { className: "wb-table wb-bymethod", hidden: true }),
        h(
          "div",
          { className: "wb-imgs" },
          sight("picture", "Image", null),
          sight("target", "Target", buttons("target", "Target")),
          sight("drafter", "Drafter", buttons("drafter", "Drafter")),
        ),
        h(
          "div",
          { className: "wb-pointing" },
          part("pointed", "p", { className: "wb-pointed" }),
          h("span", {}, "attribution by"),
          modes("how", "Measure of attribution", MEASURES),
        ),
        h(
          "div",
          { className: "wb-two" },
          card(
            "ribbon",
            "Caption",
            h(
              "span",
              { className: "wb-extra" },
              key,
              ...ribbon.switches(parts),
              copying.button(() => parts.textOf("ribbon"), "the caption"),
            ),
            part("needs", "p", { className: "wb-facts-line", hidden: true }),
            part("nameA", "p", { className: "wb-lanename" }),
            caption("ribbon", "Caption"),
            part(
              "besideBox",
              "div",
              {},
              h(
                "div",
                { className: "wb-captionhead" },
                part("nameB", "p", { className: "wb-lanename" }),
                copying.button(() => parts.textOf("beside"), "the second caption"),
              ),
              caption("beside", "Caption, second drafter"),
            ),
          ),
          card("card", "Word", null, part("card", "div", { className: "wb-nodecard", tabIndex: 0 })),
        ),
        h(
          "div",
          { className: "wb-two" },
          chart(
            "curve",
            "Acceptance rate over rounds",
            part("curveKey", "span", { className: "wb-legend" }),
            "wb-chart is-low",
          ),
          chart(
            "kinds",
            "Acceptance rate by kind of word",
            part("kindsKey", "span", { className: "wb-legend" }),
            "wb-chart is-kinds",
          ),
        ),
        h(
          "div",
          { className: "wb-halves" },
          chart("keep", "τ by number of vision tokens kept", null, "wb-chart is-keep"),
          card("runs", "Questions so far", null, part("runs", "div", { className: "wb-table wb-runs", tabIndex: 0 })),
        ),
        scrubber.build(parts, bar.build(parts)),
      ),
    ),
    part("live", "div", { className: "wb-unseen" }),
    part("keys", "dialog", { className: "wb-keys" }),
  );
  kit.set(parts.live, { "aria-live": "polite" });
  kit.set(parts.alerts, { role: "alert" });
  kit.set(parts.side, { "aria-label": "Settings" });
  kit.set(parts.card, { role: "region", "aria-label": "The selected word" });
  kit.set(parts.runs, { role: "region", "aria-label": "Questions so far" });
  kit.set(parts.pointed, { "aria-live": "polite" });
  parts.treeCard = parts.cardCard; // the arrow keys move in the tree while its node card has the focus
  help.build(parts.keys, visionhelp);
  return parts;
}

function header(part) {
  const badge = (name, text, title) => part(name, "button", { type: "button", className: "wb-badge", title }, text);
  const file = part("file", "input", { type: "file", accept: ".json,.jsonl,application/json", hidden: true });
  const menu = h(
    "div",
    { className: "wb-menu" },
    badge("export", "export ▾", "Save this run"),
    part("exports", "div", { className: "wb-exports", hidden: true }),
  );
  file.setAttribute("aria-label", "Trace file");
  return h(
    "header",
    { className: "wb-head" },
    h("h1", { className: "wb-name" }, h("span", {}, "Speculative Decoding "), "Workbench"),
    part("nav", "nav", { className: "wb-nav" }),
    h("span", { className: "wb-space" }),
    part("badge", "span", { className: "wb-badge wb-from-where" }, h("i"), part("badgeText", "span")),
    badge("copy", "copy link", "Copy a link to these settings and this selection"),
    menu,
    badge("open", "open …", "Open a trace file: JSON or JSON Lines"),
    file,
    badge("theme", "◐ theme", "Light or dark"),
    badge("help", "?", "Keys and terms"),
  );
}

/** Draw the state of the view (see `visionview.of`). */
export function draw(parts, view) {
  write(parts.badgeText, view.badge);
  Object.assign(parts.badge.dataset, { state: view.state, from: view.run?.from ?? "live" });
  parts.badge.title = view.badge;
  stage.alerts(parts.alerts, view.alerts);
  keyfigures.render(parts.figures, { items: view.items });
  bymethod.render(parts.byMethod, { segments: view.segments, all: view.figures, range: null });
  pictures(parts, view);
  lane(parts, view, "ribbon", view.main);
  lane(parts, view, "beside", view.second);
  parts.besideBox.hidden = !view.second;
  write(parts.nameA, view.second ? view.main.name : "");
  parts.nameA.hidden = !view.second;
  write(parts.needs, NEEDS.replace(/^n/, "N"));
  parts.needs.hidden = !(view.main.grounded ?? view.second?.grounded);
  write(parts.nameB, view.second ? view.second.name : "");
  parts.ribbon.classList.toggle("is-empty", view.rounds.length === 0);
  kit.set(parts.ribbon, { "data-empty": view.waiting });
  press(parts.how, view.how);
  write(parts.ribbonNote, view.status);
  const on = view.on;
  card.render(parts.card, { round: on.round, node: on.node, barred: view.barredBranch, rules: on.rules });
  write(parts.cardTitle, on.title);
  write(parts.cardNote, on.note);
  curve(parts, view);
  kinds(parts, view);
  keep(parts, view);
  runs(parts, view);
  scrubber.render(parts, { ...view, ...view.line, scrolledBack: ribbon.isScrolledBack(parts.ribbon) });
}

function press(group, value) {
  for (const button of group.children) kit.set(button, { "aria-pressed": String(button.dataset.value === value) });
}

function pictures(parts, view) {
  for (const name of ["picture", "target", "drafter"]) {
    const shown = view[name];
    visionpicture.render(parts[name], shown.drawing);
    write(parts[`${name}Title`], shown.title);
    write(parts[`${name}Note`], shown.note);
    write(parts[`${name}Facts`], shown.facts);
    if (parts[`${name}Mode`]) press(parts[`${name}Mode`], shown.mode);
  }
  visionqueries.render(parts.drafterFacts, view.drafter);
  write(parts.pointed, view.pointed);
}

/** Draw one caption: Live's ribbon, with frames around tokens that need the image, fills for tokens with weight on the
 *  selected patch, and marks where an image changed. */
function lane(parts, view, name, shown) {
  const el = parts[name];
  if (!shown) return;
  ribbon.render(el, {
    key: shown.key,
    prompt: [],
    rounds: shown.rounds,
    arriving: shown.arriving,
    ghosts: view.ghosts,
    follow: shown.follow,
    bands: shown.bands,
    shown: shown.at && { round: shown.at.round, token: shown.at.token ?? null, scroll: view.scroll },
  });
  const drawn = el.querySelectorAll(".wb-token"),
    marked = new Map(shown.marks.map((mark) => [String(mark.index), mark.text]));
  drawn.forEach((token, i) => {
    token.classList.toggle("is-grounded", shown.grounded?.[i] ?? false);
    token.classList.toggle("is-leaning", (shown.lean?.[i] ?? 0) > 0.05);
    token.style.setProperty("--lean", shown.lean?.[i] ?? 0);
    if (token.dataset.word !== shown.kinds[i]) token.dataset.word = shown.kinds[i] ?? "";
    if (token._said !== shown.kinds[i] + shown.grounded?.[i]) {
      token._said = shown.kinds[i] + shown.grounded?.[i];
      token._plain ??= token.getAttribute("aria-label");
      kit.set(token, {
        "aria-label": [
          token._plain,
          shown.kinds[i] === "other" ? "" : shown.kinds[i],
          shown.grounded?.[i] ? "needs the image" : "",
        ]
          .filter(Boolean)
          .join(", "),
      });
    }
  });
  if (marked.size) for (const group of el.querySelectorAll(".wb-round")) {
    const text = marked.get(group.dataset.round);
    if (text && group.previousElementSibling?.dataset.round !== group.dataset.round)
      kit.set(group, { "data-change": text });
  }
}

function curve(parts, view) {
  const { main, second, rounds } = view;
  const of = (lane) => (lane ? figures.acceptanceOverTime(lane.rounds, WINDOW) : []);
  const mine = of(main),
    theirs = of(second),
    key = second ? "windowed" : "cumulative",
    percent = (v) => (v === null || v === undefined ? "no drafts tested" : `${Math.round(100 * v)} %`);
  const points = (list, name) => list.map((p) => [p.index, p[name]]);
  const series = [points(mine, "windowed"), second ? points(theirs, key) : points(mine, key)].map((p, i) => ({
    name: `${i}`,
    points: p,
  }));
  const marks = view.marks,
    changes = marks.length ? `; changed: ${marks.map((c) => `${c.text} before round ${c.index + 1}`).join("; ")}` : "";
  const summary = `Acceptance over ${rounds.length} rounds, last ${WINDOW}: ${main.name} ${percent(mine.at(-1)?.windowed)}${second ? `, ${second.name} ${percent(theirs.at(-1)?.windowed)}` : `; overall ${percent(mine.at(-1)?.cumulative)}`}${changes}`;
  lines.render(parts.curve, {
    series,
    max: 1,
    ticks: [0, 0.5, 1],
    digits: 1,
    level: null,
    rounds: Math.max(rounds.length, second?.rounds.length ?? 0),
    marks,
    bands: second || main.bands.length < 2 ? [] : main.bands,
    shown: view.shown?.round ?? 0,
    summary,
  });
  legend(parts.curveKey, [
    ["wb-key-windowed", second ? main.name : `last ${WINDOW} rounds`],
    ["wb-key-cumulative", second ? second.name : "cumulative"],
  ]);
  write(parts.curveNote, mine.length ? `accepted / tested, last ${WINDOW} rounds` : "");
  table(parts.curveTable, summary, {
    head: ["round", main.name, ...(second ? [second.name] : []), "changed"],
    rows: rounds.map((_, i) => [
      i + 1,
      percent(mine[i]?.windowed),
      ...(second ? [percent(theirs[i]?.windowed)] : []),
      marks.find((c) => c.index === i)?.text ?? "",
    ]),
  });
}

function kinds(parts, view) {
  const { main, second, kindRows } = view,
    share = ([tested, accepted]) => (tested ? accepted / tested : null),
    counts = (c) => (c[0] ? `${c[1]} of ${c[0]}` : "none tested");
  const summary = kindRows.length
    ? `Acceptance by kind of word: ${kindRows.map((r) => `${kindName(r.kind)} ${counts(r.mine)}${r.theirs ? `, ${second.name} ${counts(r.theirs)}` : ""}`).join("; ")}`
    : "Acceptance by kind of word: no drafts tested yet";
  visionkinds.render(parts.kinds, {
    rows: kindRows.map((r) => ({
      label: kindName(r.kind),
      mine: { value: share(r.mine), text: counts(r.mine) },
      theirs: r.theirs && { value: share(r.theirs), text: counts(r.theirs) },
    })),
    summary,
    empty: view.lexicon ? "" : "no word list for this target",
  });
  legend(parts.kindsKey, second ? [["wb-key-mine", main.name], ["wb-key-theirs", second.name]] : []);
  write(parts.kindsNote, kindRows.length ? "tested positions, by this target's word list" : "");
  table(parts.kindsTable, summary, {
    head: ["kind", `${main.name}: tested`, "accepted", ...(second ? [`${second.name}: tested`, "accepted"] : [])],
    rows: kindRows.map((r) => [kindName(r.kind), ...r.mine, ...(r.theirs ?? [])]),
  });
}

const kindName = (kind) => (kind === OTHER ? UNLISTED : kind);

function keep(parts, view) {
  const { board } = view;
  tokensChart.render(parts.keep, { board, chosen: view.keepChosen });
  write(parts.keepNote, board ? board.note : "");
  table(parts.keepTable, parts.keep._frame?.svg.getAttribute("aria-label") ?? "", {
    head: ["drafter or compressor", "vision tokens", "τ", "95 % confidence interval"],
    rows: [
      ...(board?.series ?? []).flatMap((s) => s.points.map((p) => ({ name: s.name, ...p }))),
      ...(board?.points ?? []),
    ].map((p) => [p.name, Math.round(p.tokens), p.tau.toFixed(2), `${p.low.toFixed(2)} – ${p.high.toFixed(2)}`]),
  });
}

function table(el, summary, data) {
  if (el.hidden) return;
  write(el.firstChild, summary);
  tables.render(el, data);
}

function legend(el, entries) {
  const key = JSON.stringify(entries);
  if (el._key === key) return;
  el._key = key;
  el.replaceChildren(...entries.map(([name, word]) => h("span", {}, h("i", { className: name }), word)));
}

/** Table of this visit's runs: question, vision tokens, results. A click shows a run again. */
function runs(parts, view) {
  const list = view.history.slice(-MOST_RUNS).reverse();
  parts.runs.classList.toggle("is-empty", !list.length);
  kit.set(parts.runs, { "data-empty": "Your questions appear here, with the gate's choice and the vision tokens kept." });
  const key = JSON.stringify(list.map((r) => [r.id, r.cells, r.shown]));
  if (parts.runs._key === key) return;
  parts.runs._key = key;
  const head = ["question", "drafter, vision tokens kept", "τ", "accepted, needs image", "accepted, other"];
  const rows = list.map((r) => {
    const row = h("tr", { className: r.shown ? "is-shown" : "" }),
      again = h("button", { type: "button", className: "wb-link", title: "Show this run again" }, r.cells[0]);
    again.addEventListener("click", () => kit.emit(parts.runs, "wb:again", { id: r.id }));
    row.append(h("td", {}, again), ...r.cells.slice(1).map((cell) => h("td", {}, cell)));
    return row;
  });
  parts.runs.replaceChildren(
    ...(list.length
      ? [
          h(
            "table",
            {},
            h("thead", {}, h("tr", {}, ...head.map((t) => h("th", { scope: "col" }, t)))),
            h("tbody", {}, ...rows),
          ),
        ]
      : []),
  );
}
