/** The generated text, grouped by round: committed tokens above, rejected and discarded drafts ("ghosts") below. */

import * as tentative from "./tentative.js";
import * as kit from "./kit.js";
import * as preferences from "./preferences.js";
import * as roles from "./roles.js";

const CHUNK = { least: 24, most: 64 };
const MAX_GHOSTS = 5;
const GHOST_CHARS = 20;
const BYTES = /^(?:‹[0-9A-F]{2}›)+$/;
const legibles = new WeakMap();
const HEX = /(?:‹[0-9A-F]{2}›)+/g, OPEN = /(?:‹[0-9A-F]{2}›)+$/;

/** Split a round at line breaks, so that code and lists keep their layout.
 *  @returns {{tokens: {k: number, text: string, kind: string, node: number|null, raw?: string}[], breaks: number,
 *             ghosts: {node: number, text: string, status: string}[], hidden: number}[]} */
export function segments(round) {
  const out = [{ tokens: [], breaks: 0, ghosts: [], hidden: 0 }];
  round.emitted.forEach((e, k) => {
    if (out.at(-1).breaks) out.push({ tokens: [], breaks: 0, ghosts: [], hidden: 0 });
    out.at(-1).tokens.push({ k, text: tokenText(round, e), raw: e.text, kind: e.kind, node: e.node });
    out.at(-1).breaks = [...e.text].filter((c) => c === "\n").length;
  });
  const { shown, hidden } = ghosts(round);
  const home = out.findLast((s) => s.tokens.length) ?? out[0];
  home.ghosts = shown;
  home.hidden = hidden;
  return out;
}

/** Return the drafts that were not accepted: rejected ones first, then discarded, in draft order. */
export function ghosts(round) {
  const { status } = round.nodes, text = words(round.nodes, roles.word);
  const lost = [];
  for (const wanted of ["rejected", "discarded"]) {
    status.forEach((s, node) => s === wanted && lost.push({ node, text: ghostText(text[node]), status: s }));
  }
  let chars = 0;
  const shown = lost.filter((g, i) => i < MAX_GHOSTS && (i === 0 || (chars += g.text.length) <= GHOST_CHARS));
  return { shown, hidden: lost.length - shown.length };
}

/** Return the text of a committed token; a token without text (end of sequence) shows its name in the vocabulary. */
export function tokenText(round, emitted) {
  if (emitted.text !== "") return visibleText(emitted.text);
  for (const top of round.top_p ?? []) {
    const i = top.tokens.indexOf(emitted.token);
    // a later token completes its character
    if (i >= 0 && top.text[i] !== "") return BYTES.test(top.text[i]) ? "·" : visibleText(top.text[i]);
  }
  return "·";
}

/** Decode bytes of one character that several tokens share; invalid bytes stay in hexadecimal. Pure. */
export function readable(text) {
  return text.replace(/(?:‹[0-9A-F]{2}›)+/g, (run) => {
    const bytes = Uint8Array.from(run.match(/[0-9A-F]{2}/g), (hex) => parseInt(hex, 16));
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return run;
    }
  });
}

/** Return the texts of drafted tokens for display: bytes of a split character show the character if the drafts before
 *  complete it, else a dot; a chat marker shows its role. Pure.
 *  @param {{text: string[], parents: number[]}} nodes  @param {(text: string) => string} role  */
export function words(nodes, role = (one) => one) {
  return joined(nodes).seen.map((text) => role(text.replace(HEX, "·")));
}

/** Join the texts of drafted tokens with the incomplete bytes before them; return the incomplete bytes after each. */
function joined({ text, parents }) {
  const open = [];
  const seen = text.map((own, i) => {
    const whole = readable((open[parents[i]] ?? "") + own);
    open[i] = OPEN.exec(whole)?.[0] ?? "";
    return whole;
  });
  return { seen, open };
}

/** Return a round for views of single tokens: drafts as in `words`, candidates joined with the bytes before them; an
 *  incomplete character shows its bytes in hexadecimal. Pure and cached per round. */
export function legible(round) {
  if (!legibles.has(round)) {
    const { open } = joined(round.nodes);
    const read = (top, place) =>
      top && { ...top, text: top.text.map((text) => bytesNamed(readable((open[place - 1] ?? "") + text))) };
    legibles.set(round, {
      ...round,
      nodes: { ...round.nodes, text: words(round.nodes) },
      top_p: round.top_p?.map(read),
      top_q: round.top_q?.map(read),
      ranking: round.ranking?.map(read),
    });
  }
  return legibles.get(round);
}

function bytesNamed(text) {
  const bytes = BYTES.test(text) ? text.match(/[0-9A-F]{2}/g) : [];
  return bytes.length ? `byte${bytes.length > 1 ? "s" : ""} ${bytes.join(" ")}` : text.replace(HEX, "·");
}

/** Name of the preference: show rejected and discarded drafts in a second line. */
const DRAFTS = "wb-drafts";
/** Name of the preference: show the text as running text. */
const READING = "wb-reading";

/** Return the two checkboxes of the ribbon's card, with their labels. */
export function switches(parts) {
  const toggle = (name, text, title) => {
    parts[name] = kit.h("input", { type: "checkbox" });
    return kit.h("label", { className: "wb-toggle", title }, parts[name], text);
  };
  return [
    toggle("ghosts", "rejected drafts", "Show the rejected and discarded drafts of each round in a second line"),
    toggle("reading", "reading view", "Show running text; only corrected and bonus tokens are marked"),
  ];
}

/** Keep the checkboxes and the stored preferences in step.
 *  @param {any} parts  @param {(ghosts: boolean) => void} onDrafts
 *  @param {{regions?: HTMLElement[], drafts?: boolean}} [more]  `regions`: elements that show the text; `drafts`:
 *    whether rejected drafts are shown before the reader chooses */
export function listenSwitches(parts, onDrafts, { regions = [parts.ribbon], drafts = false } = {}) {
  const listen = (checkbox, name, fallback, act) => {
    checkbox.checked = preferences.isOn(name, fallback);
    act(checkbox.checked);
    checkbox.addEventListener("change", () => {
      preferences.set(name, checkbox.checked);
      act(checkbox.checked);
    });
  };
  listen(parts.ghosts, DRAFTS, drafts, onDrafts);
  listen(parts.reading, READING, false, (on) => regions.forEach((el) => el.classList.toggle("is-reading", on)));
}

/** Make line breaks and tabs visible. */
export function visibleText(text) {
  return text === "" ? "·" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥   ");
}

function ghostText(text) {
  const seen = visibleText(text);
  return seen.length > 14 ? `${seen.slice(0, 13)}…` : seen;
}

/** Describe a round for a screen reader. */
export function describe(round) {
  const tested = round.nodes.status.filter((s) => s !== "discarded").length;
  const last = round.emitted.at(-1);
  if (tentative.isPlacing(round)) return `Round ${round.index + 1}: ${tentative.words(round)}`;
  if (round.bonus_kind === "plain")
    return `Round ${round.index + 1}: no drafts; target token “${tokenText(round, last)}”`;
  const end = round.bonus_kind === "corrected" ? `corrected token “${tokenText(round, last)}”`
    : round.bonus_kind === "bonus" ? `bonus token “${tokenText(round, last)}”` : "end of text";
  return `Round ${round.index + 1}: ${round.path.length} of ${tested} tested drafts accepted; ${end}`;
}

/** Return whether a new chunk starts: after a line break once the last chunk is long enough, or when it is full. Pure.
 *  @param {number} size  rounds in the last chunk  @param {boolean} broke  whether the last round ended a line */
export function chunkEnds(size, broke) {
  return size >= CHUNK.most || (size >= CHUNK.least && broke);
}

/** Draw into `el`. Rounds are only appended, in chunks that the browser can skip in layout while out of view; a new
 *  `data.key` starts over.
 *  @param {{key: string, prompt: {role: string|null, text: string}[], rounds: object[], shown: {round: number, token:
 *    number|null, scroll: boolean}|null, ghosts: boolean, follow: boolean, arriving?: object|null, bands?:
 *    object[]}} data  `arriving`: the round being verified; `bands`: from `figures.methodSegments`, named and
 *    coloured where there are several */
export function render(el, data) {
  const state = (el._ribbon ??= startFollowing(el));
  if (state.key !== data.key) {
    state.inner.replaceChildren();
    Object.assign(state, {
      key: data.key,
      drawn: 0,
      groups: [],
      lit: [],
      prompt: null,
      chunk: null,
      size: 0,
      broke: false,
      scrolledBack: false,
      named: 0,
    });
  }
  const text = JSON.stringify(data.prompt);
  if (state.prompt !== text) {
    const first =
      state.inner.querySelector(".wb-prompt") ??
      state.inner.insertBefore(kit.h("span", { className: "wb-prompt" }), state.inner.firstChild);
    first.replaceChildren(...data.prompt.flatMap((turn) => turnElement(turn)));
    state.prompt = text;
  }
  el.classList.toggle("no-ghosts", !data.ghosts);
  state.follow = data.follow;
  // scroll anchoring only while the reader does not follow
  el.style.overflowAnchor = data.follow && !state.scrolledBack ? "none" : "auto";
  if (state.drawn < data.rounds.length || !data.arriving) state.coming?.remove();
  if (state.drawn < data.rounds.length) {
    state.places?.remove();
    for (; state.drawn < data.rounds.length; state.drawn += 1) append(state, data.rounds[state.drawn]);
    state.places = tentative.draw(tentative.tentativeTokens(data.rounds), (text) => visibleText(readable(text).replace(HEX, "·")));
    if (state.places) chunkOfNext(state).append(state.places);
  }
  drawMethods(el, state, data.bands ?? []);
  if (data.arriving) drawArriving(state, data.arriving);
  highlight(el, state, data.shown, data.follow);
}

/** Return one turn of the prompt. The stylesheet draws the role, so it is not copied with the text. */
function turnElement({ role, text }) {
  const chip = kit.h("span", { className: "wb-role" });
  chip.dataset.role = role;
  return [...(role === null ? [] : [chip]), ...(text === "" ? [] : [kit.h("span", {}, readable(text))])];
}

/** Return whether the reader scrolled back, away from the newest text. */
export function isScrolledBack(el) {
  return el._ribbon?.scrolledBack ?? false;
}

/** Scroll to the newest text and follow it. */
export function scrollToEnd(el) {
  if (!el._ribbon) return;
  el._ribbon.scrolledBack = false;
  scrollTo(el, el._ribbon, el.scrollHeight);
}

/** Follow the newest text: its height changes when rounds are added, and again when estimated chunks are laid out.
 *  Scroll to the end after each change of height. */
function startFollowing(el) {
  const inner = el.appendChild(kit.h("div"));
  inner.setAttribute("role", "presentation");
  const state = {
    inner,
    key: null,
    uid: `wb${Math.random().toString(36).slice(2, 8)}`,
    scrolledBack: false,
    follow: false,
    top: 0,
  };
  el.addEventListener("scroll", () => {
    const far = el.scrollTop + el.clientHeight < el.scrollHeight - 30, before = state.scrolledBack;
    if (!far || el.scrollTop < state.top - 2) state.scrolledBack = far; // only the reader scrolls back
    state.top = el.scrollTop;
    if (state.scrolledBack !== before) kit.emit(el, "wb:redraw");
  }, { passive: true });
  const watcher = new ResizeObserver(() => state.follow && !state.scrolledBack && scrollTo(el, state, el.scrollHeight));
  watcher.observe(inner);
  watcher.observe(el);
  return state;
}

function scrollTo(el, state, top) {
  el.scrollTop = top;
  state.top = el.scrollTop;
}

/** Return the latest draft with its visible test results, in text order. Pure. */
export function draftWords({ round, tested, line }) {
  const { status } = round.nodes, text = words(round.nodes, roles.word);
  return line.map(({ node, test }) => ({
    text: visibleText(text[node]),
    kind: test < tested ? status[node] : "pending",
  }));
}

function drawArriving(state, arriving) {
  const words = draftWords(arriving),
    box = (state.coming ??= kit.h("span", { className: "wb-round is-coming" }, kit.h("span", { className: "wb-row" })));
  kit.set(box, { "aria-hidden": "true" });
  const row = box.firstChild, chunk = chunkOfNext(state);
  kit.resize(row, words.length, () => kit.h("span"));
  words.forEach((w, i) => {
    kit.set(row.children[i], { class: `wb-guess is-${w.kind}` });
    kit.write(row.children[i], w.text);
  });
  if (chunk.lastChild !== box) chunk.append(box);
}

/** Put each segment's method name before its first token, and its colour over its rounds; visible once the run has a
 *  second method. */
function drawMethods(el, state, bands) {
  el.classList.toggle("has-bands", bands.length > 1);
  for (const band of bands.slice(Math.max(0, state.named - 1))) {
    const groups = state.groups.slice(band.from, band.to + 1).flat();
    for (const group of groups) if (group.classList.contains("wb-round")) kit.set(group, { "data-slot": band.slot });
    const at = bands.indexOf(band);
    if (at < state.named || !groups.length) continue;
    const chip = kit.h("span", { className: "wb-methodchip" });
    kit.set(chip, { "data-name": band.name, "data-slot": band.slot, "aria-hidden": "true" });
    groups[0].before(chip);
    const first = groups[0].querySelector(".wb-token");
    if (at && first) kit.set(first, { "aria-label": `${first.getAttribute("aria-label")}, from here on drafted by ${band.name}` });
    state.named = at + 1;
  }
}

/** Return the chunk of the next round. */
function chunkOfNext(state) {
  if (!state.chunk || chunkEnds(state.size, state.broke)) {
    state.chunk = state.inner.appendChild(kit.h("div", { className: "wb-chunk" }));
    state.chunk.setAttribute("role", "presentation");
    state.size = 0;
  }
  return state.chunk;
}

function append(state, round) {
  chunkOfNext(state);
  const elements = round.emitted.length ? group(round, state.uid) : [];
  state.groups.push(elements);
  state.chunk.append(...elements);
  state.size += 1;
  state.broke = elements.at(-1)?.className === "wb-break";
}

function group(round, uid) {
  const parts = [];
  for (const segment of segments(round)) {
    const bare = segment.ghosts.length === 0 && segment.tokens.every((t) => /^⏎+$/.test(t.text));
    const box = kit.h("span", { className: `wb-round${bare ? " is-break" : ""}` });
    box.dataset.round = round.index;
    const row = kit.h("span", { className: "wb-row" }), under = kit.h("span", { className: "wb-ghosts" });
    for (const t of segment.tokens) {
      const token = kit.h("span", { className: `wb-token is-${t.kind}`, id: `${uid}-${round.index}-${t.k}` }, t.text);
      token._raw = t.raw; // see `copying.js`
      token.dataset.round = round.index;
      token.dataset.token = t.k;
      if (t.node !== null) token.dataset.node = t.node;
      token.setAttribute("role", "option");
      token.setAttribute("aria-selected", "false");
      token.setAttribute("aria-label", `${t.text.trim() || "space"}, ${t.kind}, round ${round.index + 1}`);
      row.append(token);
    }
    for (const g of segment.ghosts) {
      const ghost = kit.h("span", { className: `wb-ghost is-${g.status}` }, g.text);
      ghost.dataset.round = round.index;
      ghost.dataset.node = g.node;
      under.append(ghost);
    }
    if (segment.hidden) under.append(kit.h("span", { className: "wb-more" }, `+${segment.hidden}`));
    under.setAttribute("aria-hidden", "true");
    box.append(row, under);
    parts.push(box);
    for (let i = 0; i < segment.breaks; i += 1) parts.push(kit.h("span", { className: "wb-break" }));
  }
  return parts;
}

function highlight(el, state, shown, follow) {
  const token =
    shown && shown.token !== null ? document.getElementById(`${state.uid}-${shown.round}-${shown.token}`) : null;
  const key = shown ? `${shown.round}/${shown.token}/${(state.groups[shown.round] ?? []).length}` : "";
  if (state.litKey !== key || token !== state.token) {
    for (const old of state.lit) old.classList.remove("is-shown");
    state.token?.setAttribute("aria-selected", "false");
    state.lit = shown ? (state.groups[shown.round] ?? []).filter((g) => g.classList.contains("wb-round")) : [];
    if (token) {
      token.setAttribute("aria-selected", "true");
      state.lit = [...state.lit, token];
      el.setAttribute("aria-activedescendant", token.id);
    } else el.removeAttribute("aria-activedescendant");
    for (const now of state.lit) now.classList.add("is-shown");
    Object.assign(state, { litKey: key, token });
  }
  const first = state.lit[0];
  if (first && !follow && shown.scroll) {
    const box = el.getBoundingClientRect(), at = first.getBoundingClientRect();
    if (at.top < box.top || at.bottom > box.bottom - 20)
      scrollTo(el, state, el.scrollTop + at.top - box.top - el.clientHeight / 3);
  }
}
