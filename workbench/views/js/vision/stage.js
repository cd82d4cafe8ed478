/** Elements of the Vision tab: build them once, then draw the state of the view into them. */

import * as alerts from "../shared/alerts.js";
import * as bar from "../live/bar.js";
import * as bymethod from "../live/bymethod.js";
import * as card from "../live/card.js";
import * as copying from "../shared/copying.js";
import * as figures from "../shared/figures.js";
import * as frame from "../shared/frame.js";
import * as help from "../live/help.js";
import * as keyfigures from "../live/keyfigures.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as lines from "../shared/linechart.js";
import * as panel from "../shared/panel.js";
import * as ribbon from "../shared/ribbon.js";
import * as scrubber from "../live/scrubber.js";
import * as stage from "../live/stage.js";
import * as roles from "../shared/roles.js";
import * as tables from "../shared/table.js";
import * as treebar from "../live/treebar.js";
import * as treemodel from "../live/treemodel.js";
import * as trees from "../live/tree.js";
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
export function build(el, host) {
  const build = frame.builder(), { part, parts } = build, all = cards(build);
  const controls = part("controls", "div", { className: "wb-controls" });
  frame.frame(
    el,
    build,
    { host, current: "Vision", side: "Settings", sideClass: "has-bar", settings: [controls], ...stage.header(build) },
    part(
      "stage",
      "div",
      { className: "wb-stage" },
      ...[all.alerts, all.figures, all.byMethod],
      h(
        "div",
        { className: "wb-imagestage" },
        h(
          "div",
          { className: "wb-sightleft" },
          all.headline,
          h("div", { className: "wb-imgs" }, all.picture, all.target, all.drafter),
          all.pointing,
          all.card,
        ),
        h("div", { className: "wb-sightright" }, all.ribbon, all.tree),
      ),
      h("div", { className: "wb-two" }, all.curve, all.kinds),
      h("div", { className: "wb-halves" }, all.keep, all.runs),
      all.scrubber,
    ),
  );
  help.build(parts.keys, visionhelp);
  parts.speed.value = "0.02"; // so that the patches of each word can be seen
  return parts;
}

/** Return the elements of the tab's stage by name. */
function cards(build) {
  const { parts, part, card, chart, modes, region } = build;
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
  const views = (name, title) =>
    modes(`${name}Mode`, `${title}: view`, [["sees", "vision tokens"], ["leans", "attribution"]]);
  const caption = (name, label) =>
    region(name, "wb-ribbon wb-caption", { role: "listbox", "aria-label": label, "aria-orientation": "horizontal" });
  const legend = (name) => part(name, "span", { className: "wb-legend" });
  const key = panel.legend([
    ["is-accepted", "accepted"],
    ["is-corrected", "corrected"],
    ["is-bonus", "bonus"],
    ["is-plain", "plain"],
    ["is-rejected", "rejected"],
    ["is-grounded", "needs the image"],
  ]);
  const all = {
    alerts: build.alerts(),
    figures: part("figures", "div", { className: "wb-figures" }),
    byMethod: part("byMethod", "div", { className: "wb-table wb-bymethod", hidden: true }),
    headline: part("headline", "div", { className: "wb-headline" }),
    picture: sight("picture", "Image", null),
    target: sight("target", "Target", views("target", "Target")),
    drafter: sight("drafter", "Drafter", views("drafter", "Drafter")),
    pointing: h(
      "div",
      { className: "wb-pointing" },
      part("pointed", "p", { className: "wb-pointed" }),
      h("span", {}, "attribution by"),
      modes("how", "Measure of attribution", MEASURES),
    ),
    ribbon: card(
      "ribbon",
      "Caption",
      h(
        "span",
        { className: "wb-extra" },
        key,
        ...ribbon.switches(parts),
        copying.button(() => parts.textOf("ribbon"), "the caption"),
      ),
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
    tree: card(
      "tree",
      "Draft tree",
      null,
      region("tree", "wb-tree", { role: "group", "aria-label": "Draft tree of the selected word's round" }),
      part("treeWords", "p", { className: "wb-facts-line" }),
    ),
    card: card("card", "Word", null, part("card", "div", { className: "wb-nodecard", tabIndex: 0 })),
    curve: chart("curve", "Acceptance rate over rounds", legend("curveKey"), "wb-chart is-low"),
    kinds: chart("kinds", "Acceptance rate by kind of word", legend("kindsKey"), "wb-chart is-kinds"),
    keep: chart("keep", "τ by number of vision tokens kept", null, "wb-chart is-keep"),
    runs: card("runs", "Questions so far", null, part("runs", "div", { className: "wb-table wb-runs", tabIndex: 0 })),
    scrubber: scrubber.build(parts, bar.build(parts)),
  };
  kit.set(parts.card, { role: "region", "aria-label": "The selected word" });
  kit.set(parts.runs, { role: "region", "aria-label": "Questions so far" });
  kit.set(parts.pointed, { "aria-live": "polite" });
  return all;
}

/** Draw the state of the view (see `of` in `view.js`). */
export function draw(parts, view) {
  write(parts.badgeText, view.badge);
  Object.assign(parts.badge.dataset, { state: view.state, from: view.run?.from ?? "live" });
  parts.badge.title = view.badge;
  alerts.render(parts.alerts, view.alerts);
  keyfigures.render(parts.figures, { items: view.items });
  bymethod.render(parts.byMethod, { segments: view.segments, all: view.figures, range: null });
  headline(parts.headline, view.headline);
  pictures(parts, view);
  tree(parts, view.tree);
  lane(parts, view, "ribbon", view.main);
  lane(parts, view, "beside", view.second);
  parts.besideBox.hidden = !view.second;
  write(parts.nameA, view.second ? view.main.name : "");
  parts.nameA.hidden = !view.second;
  write(parts.nameB, view.second ? view.second.name : "");
  parts.ribbon.classList.toggle("is-empty", view.rounds.length === 0);
  kit.set(parts.ribbon, { "data-empty": view.waiting });
  frame.choose(parts.how, view.how);
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

/** Draw the headline: one line per run, "picture words 91 % accepted, other words 43 %", then the definition.
 *  @param {any} el  @param {{name: string, figures: any, why: string}[]} lines */
function headline(el, lines) {
  const shown = lines.filter((line) => line.figures || line.why), key = JSON.stringify(shown);
  el.hidden = !shown.length;
  if (el._key === key) return;
  el._key = key;
  const share = (label, { share: value, counts }, after) => [
    `${label} `, h("b", {}, value), ` ${after}`, h("small", {}, ` (${counts})`),
  ];
  el.replaceChildren(
    ...shown.map(({ name, figures: found, why }, i) =>
      h(
        "p",
        { className: `wb-headlinerow${i ? " is-second" : ""}` },
        h("span", { className: "wb-headlinename" }, name),
        h(
          "span",
          {},
          ...(found
            ? [...share("picture words", found.picture, "accepted"), ", ", ...share("other words", found.other, "")]
            : [`picture words and other words: ${why}`]),
        ),
      ),
    ),
    ...(shown.some((line) => line.figures) ? [h("p", { className: "wb-facts-line" }, NEEDS.replace(/^p/, "P"))] : []),
  );
}

/** Draw the draft tree of the selected word's round; of the newest round while it is verified. */
function tree(parts, { run, rounds, round, before, node, reveal, coming }) {
  const root = roles.word(stage.rootText(run, rounds, before, round));
  trees.render(parts.tree, {
    round,
    root,
    node,
    reveal,
    mode: "spine",
    textOf: ribbon.tokenText,
    wordsOf: (nodes) => ribbon.words(nodes, roles.word),
    empty: "The draft tree of the selected word's round",
  });
  write(parts.treeTitle, round ? `Draft tree, round ${round.index + 1}` : "Draft tree");
  const n = round?.nodes.parents.length ?? 0, drafted = `${n} node${n === 1 ? "" : "s"}`;
  write(parts.treeNote, !round ? "" : coming ? `${drafted}, being verified` : `${drafted} · ${round.path.length} accepted`);
  write(parts.treeWords, round ? treebar.words(treemodel.drafterNames(round.nodes)) : "");
}

function pictures(parts, view) {
  for (const name of ["picture", "target", "drafter"]) {
    const shown = view[name];
    visionpicture.render(parts[name], shown.drawing);
    write(parts[`${name}Title`], shown.title);
    write(parts[`${name}Note`], shown.note);
    write(parts[`${name}Facts`], shown.facts);
    if (parts[`${name}Mode`]) frame.choose(parts[`${name}Mode`], shown.mode);
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
    percent = (v) => (v === null || v === undefined ? "no drafts tested" : `${Math.round(100 * v)} %`);
  const series = stage.overRounds(
    { name: second ? main.name : `last ${WINDOW} rounds`, points: mine, key: "windowed" },
    second
      ? { name: second.name, points: theirs, key: "windowed" }
      : { name: "cumulative", points: mine, key: "cumulative" },
  );
  const marks = view.marks,
    changes = marks.length ? `; changed: ${marks.map((c) => `${c.text} before round ${c.index + 1}`).join("; ")}` : "";
  const other = second ? `, ${second.name} ${percent(theirs.at(-1)?.windowed)}` : `; overall ${percent(mine.at(-1)?.cumulative)}`;
  const summary = `Acceptance rate over ${rounds.length} rounds, in the last ${WINDOW}: ${main.name} ${percent(mine.at(-1)?.windowed)}${other}${changes}`;
  lines.render(parts.curve, {
    ...stage.roundAxis(parts.curve, Math.max(rounds.length, second?.rounds.length ?? 0), view.shown?.round ?? 0),
    series,
    y: lines.levels([0, 0.5, 1], 1, percent),
    marks,
    bands: second || main.bands.length < 2 ? [] : main.bands,
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
    ? `Acceptance rate by kind of word: ${kindRows.map((r) => `${kindName(r.kind)} ${counts(r.mine)}${r.theirs ? `, ${second.name} ${counts(r.theirs)}` : ""}`).join("; ")}`
    : "Acceptance rate by kind of word: no drafts tested yet";
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
  write(parts.kindsNote, kindRows.length ? "number of tested positions; kinds of words by this target's word list" : "");
  table(parts.kindsTable, summary, {
    head: ["kind", `${main.name}: tested`, "accepted", ...(second ? [`${second.name}: tested`, "accepted"] : [])],
    rows: kindRows.map((r) => [kindName(r.kind), ...r.mine, ...(r.theirs ?? [])]),
  });
}

const kindName = (kind) => (kind === OTHER ? UNLISTED : kind);

function keep(parts, view) {
  const { board } = view;
  const summary = tokensChart.render(parts.keep, { board, chosen: view.keepChosen });
  write(parts.keepNote, board ? board.note : "");
  table(parts.keepTable, summary, {
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

/** Draw the table of this visit's runs: question, vision tokens, results. A click shows a run again. */
function runs(parts, view) {
  const list = view.history.slice(-MOST_RUNS).reverse();
  parts.runs.classList.toggle("is-empty", !list.length);
  kit.set(parts.runs, { "data-empty": "Your questions appear here, with the compressor that the gate chose and the number of vision tokens kept." });
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
