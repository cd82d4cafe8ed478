/** Two runs side by side with a linked selection: differences in settings, figures and text, both on one clock, and the
 *  selected round of each. Live's modules draw whatever Live shows too. */

import * as address from "../shared/address.js";
import * as wallClock from "../live/clock.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";
import * as embedded from "../live/embedded.js";
import { isPngUrl } from "../live/traces.js";
import * as pagehead from "../shared/pagehead.js";
import * as reload from "../live/reload.js";
import * as ribbon from "../shared/ribbon.js";
import * as selection from "../live/selection.js";
import * as tworunslink from "./tworunslink.js";

const BY = [["token", "same token"], ["round", "same round"], ["time", "same time"]];
const SIDES = ["A", "B"];
const CARDS = ["tree", "card"];

/** Draw the page. @param {any} el  @param {{host: any}} given */
export async function mount(el, { host }) {
  addEventListener("wb:tab", ({ detail }) => detail === "pair" && window.workbenchPair && draw(el, host));
  await draw(el, host);
}

/** Draw the runs that another view has handed over, or the runs of the address. */
async function draw(el, host) {
  const handed = window.workbenchPair ?? null;
  window.workbenchPair = null;
  el.replaceChildren();
  delete el.dataset.drawn;
  const names = handed?.map((one) => one.name) ?? new URLSearchParams(host.address.read()).getAll("recorded");
  const main = pagehead.build(el, {
    host,
    current: "Two runs",
    about: "The selection is linked: click a token, or use the arrow keys.",
  });
  const gallery = () =>
    main.append(
      h(
        "p",
        {},
        h("a", { href: `${host.base}/gallery#kept` }, "Choose runs in the Gallery"),
        ": pin a run, then compare another one with it.",
      ),
    );
  el.dataset.ready = "true";
  if (names.length !== 2) {
    pagehead.problem(main, { message: "This address does not contain two run ids.", remedy: "Use an address of the form /r/ONE+OTHER." });
    return gallery();
  }
  const requests = handed ?? names.map((name) => ({ name }));
  const found = await Promise.all(requests.map((request) => pagehead.ask(main, { host }, "run", request)));
  if (found.some((one) => !one)) return gallery();
  const page = {
    host,
    names,
    hasAddress: !handed,
    found,
    runs: found.map((one) => one.trace.rounds),
    pin: tworunslink.fromQuery(handed ? "" : host.address.read()),
    views: [],
    texts: [],
  };
  page.unlike = tworunslink.differences(...page.runs.map((rounds) => tworunslink.tokens(rounds).map((t) => t.text)));
  main.append(
    h(
      "div",
      { className: "wb-tworuns" },
      heads(page),
      differing(page),
      figures(page),
      clock(page),
      texts(page),
      stages(page),
    ),
  );
  await fill(page);
  show(page, page.pin, false);
  el.dataset.drawn = "true";
}

/** Return a card with a heading. */
function card(h, title, about, ...content) {
  return h("section", { className: "wb-card" }, h("h3", {}, h("span", {}, title), h("em", {}, about)), ...content);
}

/** Draw the heads: name, link and main settings of each run. */
function heads({ host, names, hasAddress, found }) {
  const one = (i) => {
    const { header, rounds } = found[i].trace, picture = header.pictures?.[0]?.url;
    const open = hasAddress ? h("a", { href: address.run(host.base, names[i]) }, names[i]) : h("b", {}, names[i]);
    const facts = [
      reload.currentHeader({ header, rounds: rounds.slice(0, 1) }).method,
      header.target,
      header.drafter,
      pagehead.when(header.created),
    ]
      .filter(Boolean)
      .join(" · ");
    return h(
      "div",
      { className: "wb-pairhead" },
      h("b", { className: "wb-side-name" }, SIDES[i]),
      h("div", {}, open, h("small", {}, facts)),
      ...(isPngUrl(picture)
        ? [h("img", { src: picture, alt: `The image of run ${SIDES[i]}` })]
        : []),
    );
  };
  return h("div", { className: "wb-sides" }, one(0), one(1));
}

function table(h, head, rows) {
  const cells = (row, tag) => row.map((text, i) => h(i ? tag : "th", i ? {} : { scope: "row" }, text));
  const scroll = h(
    "div",
    { className: "wb-scroll", tabIndex: 0 },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        {},
        ...rows.map(({ cells: row, differs }) =>
          h("tr", { className: differs ? "is-unlike" : "" }, ...cells(row, "td")),
        ),
      ),
    ),
  );
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", head[0]);
  return scroll;
}

/** Draw the settings: those that differ, and the number of equal ones. */
function differing({ found }) {
  const rows = tworunslink.settings(...found.map((one) => one.trace.header)),
    unlike = rows.filter((row) => row.differs),
    lacking = rows.filter((row) => row.lacking),
    alike = rows.filter((row) => !row.differs && !row.lacking);
  const alone = h(
    "details",
    {},
    h("summary", {}, `Recorded for only one of the runs: ${lacking.map((row) => row.name).join(", ")}`),
    table(
      h,
      ["setting", ...SIDES],
      lacking.map((row) => ({ cells: [row.name, ...row.values], differs: false })),
    ),
  );
  const same = h(
    "details",
    {},
    h("summary", {}, `${alike.length} settings are the same`),
    table(
      h,
      ["setting", "both"],
      alike.map((row) => ({ cells: [row.name, row.values[0]], differs: false })),
    ),
  );
  return card(
    h,
    "Settings",
    unlike.length ? "differences" : "no differences",
    ...(unlike.length
      ? [
          table(
            h,
            ["setting", ...SIDES],
            unlike.map((row) => ({ cells: [row.name, ...row.values], differs: true })),
          ),
        ]
      : []),
    ...(lacking.length ? [alone] : []),
    ...(alike.length ? [same] : []),
  );
}

function figures({ found }) {
  const [a, b] = found.map((one) => one.figures), words = found[0].definitions;
  const rows = Object.keys(a).map((name) => ({
    cells: [
      words[name]?.[0] ?? name.replaceAll("_", " "),
      tworunslink.figure(name, a[name]),
      tworunslink.figure(name, b[name]),
      tworunslink.difference(name, a[name], b[name]),
    ],
    differs: a[name] !== b[name],
  }));
  return card(h, "Figures", "as recorded; one run each", table(h, ["figure", ...SIDES, "B compared with A"], rows));
}

/** Draw both runs on one clock that starts at the end of each prefill. */
function clock(page) {
  page.clockNote = h("em");
  page.clock = h("div", { className: "wb-lanes", tabIndex: 0 });
  page.clock.addEventListener("click", (event) => {
    const at = event.target.closest("[data-round]");
    if (at) show(page, { side: Number(at.dataset.trace), round: Number(at.dataset.round), token: null });
  });
  page.clock.addEventListener("keydown", (event) => walk(page, event, "round"));
  page.clock.addEventListener("wb:redraw", () => page.at && clocks(page));
  kit.set(page.clock, { role: "group", "aria-label": "Both runs on one clock" });
  return h("section", { className: "wb-card" }, h("h3", {}, h("span", {}, "One clock"), page.clockNote), page.clock);
}

/** Draw both texts token by token; tokens that the other text lacks are double-underlined. */
function texts(page) {
  const { unlike, runs } = page;
  const one = (side) => {
    const box = h("div", { className: "wb-pairtext", tabIndex: 0 }), missing = side ? unlike.b : unlike.a;
    tworunslink.tokens(runs[side]).forEach((t, i) => {
      const span = h(
        "span",
        { className: `wb-token is-${t.kind}${missing.has(i) ? " is-unlike" : ""}` },
        ribbon.visibleText(t.text),
      );
      Object.assign(span.dataset, { round: t.round, token: t.token });
      if (missing.has(i)) span.title = "this token is not in the other text";
      box.append(span);
    });
    box.addEventListener("click", (event) => {
      const at = event.target.closest("[data-token]");
      if (at) show(page, { side, round: Number(at.dataset.round), token: Number(at.dataset.token) });
    });
    box.addEventListener("keydown", (event) => walk(page, event, "token", side));
    kit.set(box, { role: "group", "aria-label": `Text of run ${SIDES[side]}` });
    page.texts.push(box);
    return box;
  };
  const same =
    unlike.first === null
      ? "identical texts, token for token"
      : `first difference at token ${unlike.first + 1}; ${unlike.a.size} and ${unlike.b.size} tokens are not in the other text${unlike.whole ? "" : "; the texts are too long to align, so everything after that token is marked"}`;
  return card(h, "Texts", same, h("div", { className: "wb-sides" }, one(0), one(1)));
}

/** Draw the choice of the link between the runs, and below it a round of each run. */
function stages(page) {
  const by = h("div", { className: "wb-modes" });
  for (const [name, words] of BY) {
    const button = h(
      "button",
      { type: "button", className: "wb-tool", onclick: () => show(page, { ...page.pin, by: name }) },
      words,
    );
    button.dataset.by = name;
    by.append(button);
  }
  by.setAttribute("role", "group");
  by.setAttribute("aria-label", "Link the selection of both runs by");
  page.by = by;
  page.status = h("p", { className: "wb-pairtold" });
  page.status.setAttribute("role", "status");
  page.stages = SIDES.map(() => h("div", { className: "wb wb-lesson" }));
  return h(
    "div",
    { className: "wb-pairstages" },
    h("div", { className: "wb-tworunslink" }, h("span", {}, "Linked by"), by, page.status),
    h("div", { className: "wb-sides" }, ...page.stages),
  );
}

/** Mount Live's drawings of a round, once per run. */
async function fill(page) {
  const { host } = page;
  for (const [side, box] of page.stages.entries()) {
    page.views.push(await embedded.mount(box, { host, trace: page.found[side].trace }));
    embedded.showCards(box, CARDS);
    const look = () => requestAnimationFrame(() => follow(page, side));
    for (const event of ["click", "keyup"]) box.addEventListener(event, look);
  }
}

/** React to a selection in the drawings of one run. */
function follow(page, side) {
  const pin = page.views[side].selection.pin;
  if (pin && pin !== page.pins?.[side])
    show(page, { side, round: pin.round, token: pin.token ?? null, node: pin.node ?? null });
}

/** Step once with an arrow key. */
function walk(page, event, by, side = page.pin.side) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const { runs } = page, at = page.at[side];
  const to =
    by === "round"
      ? selection.stepRound(at, runs[side], step)
      : selection.stepToken(selection.complete(at, runs[side]), runs[side], step);
  if (to) show(page, { side, round: to.round, token: by === "round" ? null : to.token });
}

/** Show a place of one run, and the corresponding place of the other. */
function show(page, wanted, write = true) {
  const { runs } = page, pin = { by: page.pin.by, ...wanted }, { side } = pin;
  if (!runs[side].length) return;
  pin.round = Math.min(pin.round, runs[side].length - 1);
  const here = { round: pin.round, token: pin.token, node: pin.node ?? null },
    there = tworunslink.counterpart(pin.by, here, runs[side], runs[1 - side]);
  page.pin = { side, round: pin.round, token: pin.token, by: pin.by };
  page.at = side ? [there, here] : [here, there];
  page.pins = page.at.map((at) => at && { round: at.round, token: at.token, node: at.node ?? null });
  page.views.forEach((view, i) => page.pins[i] && embedded.select(view, page.pins[i], { scroll: true }));
  page.texts.forEach((box, i) => marked(box, page.at[i]));
  for (const button of page.by.children) button.setAttribute("aria-pressed", String(button.dataset.by === pin.by));
  const note = page.at
    .map((at, i) => (at ? `${SIDES[i]}: round ${at.round + 1} of ${runs[i].length}` : `${SIDES[i]} has no rounds`))
    .join(" · ");
  kit.write(
    page.status,
    there?.over ? `${note}. Run ${SIDES[1 - side]} had already ended; its last round is shown.` : note,
  );
  clocks(page);
  if (write)
    page.host.address.write(
      `${new URLSearchParams(page.names.map((name) => ["recorded", name]))}&${tworunslink.toQuery(page.pin)}`,
    );
}

function clocks({ clock, clockNote, runs, found, at }) {
  const label = (i) =>
    `${found[i].figures.tokens} tokens · ${tworunslink.figure("tokens_per_second", found[i].figures.tokens_per_second)} tokens/s`; // same figure as above
  wallClock.render(clock, {
    traces: runs.map((rounds, i) => ({ name: `Run ${SIDES[i]}`, rounds, label: label(i) })),
    selection: { rounds: at.map((each) => each?.round) },
    note: h("i"),
  });
  kit.write(clockNote, "time since the end of each prefill, with draft, verify and overhead of each round");
}

/** Mark the selected token and its round in a text. */
function marked(box, at) {
  for (const span of box.querySelectorAll(".is-shown, .is-round")) span.classList.remove("is-shown", "is-round");
  if (!at) return;
  const own = [...box.querySelectorAll(`[data-round="${at.round}"]`)], one = own[at.token ?? 0];
  for (const span of own) span.classList.add("is-round");
  one?.classList.add("is-shown");
  if (!one) return;
  const { top, bottom } = one.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (top < frame.top || bottom > frame.bottom) box.scrollTop += (top + bottom - frame.top - frame.bottom) / 2;
}
