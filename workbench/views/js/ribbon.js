/** The text, grouped by round: what was committed on top, rejected and discarded drafts as ghosts under it. */

const MAX_GHOSTS = 5;
const GHOST_CHARS = 20;

/** Cut a round into runs of tokens that end at a line break, so that code and lists keep their shape.
 *  @returns {{tokens: {k: number, text: string, kind: string, node: number|null}[], breaks: number,
 *             ghosts: {node: number, text: string, status: string}[], hidden: number}[]} */
export function segments(round) {
  const out = [{ tokens: [], breaks: 0, ghosts: [], hidden: 0 }];
  round.emitted.forEach((e, k) => {
    if (out.at(-1).breaks) out.push({ tokens: [], breaks: 0, ghosts: [], hidden: 0 });
    out.at(-1).tokens.push({ k, text: tokenText(round, e), kind: e.kind, node: e.node });
    out.at(-1).breaks = [...e.text].filter((c) => c === "\n").length;
  });
  const { shown, hidden } = ghosts(round);
  const home = out.findLast((s) => s.tokens.length) ?? out[0];
  home.ghosts = shown;
  home.hidden = hidden;
  return out;
}

/** Drafts that did not make it: rejected ones first, then discarded, in the order of the draft. */
export function ghosts(round) {
  const { status, text } = round.nodes;
  const lost = [];
  for (const wanted of ["rejected", "discarded"]) {
    status.forEach((s, node) => s === wanted && lost.push({ node, text: ghostText(text[node]), status: s }));
  }
  let chars = 0;
  const shown = lost.filter((g, i) => i < MAX_GHOSTS && (i === 0 || (chars += g.text.length) <= GHOST_CHARS));
  return { shown, hidden: lost.length - shown.length };
}

/** The text of a committed token; one without text of its own (the end of the text) goes by its name in the vocabulary. */
export function tokenText(round, emitted) {
  if (emitted.text !== "") return visibleText(emitted.text);
  for (const top of round.top_p ?? []) {
    const i = top.tokens.indexOf(emitted.token);
    if (i >= 0 && top.text[i] !== "") return visibleText(top.text[i]);
  }
  return "·";
}

/** Line breaks and tabs become visible; everything else stays as it is. */
export function visibleText(text) {
  return text === "" ? "·" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥   ");
}

function ghostText(text) {
  const seen = visibleText(text);
  return seen.length > 14 ? `${seen.slice(0, 13)}…` : seen;
}

/** One sentence for a screen reader. */
export function describe(round) {
  const tested = round.nodes.status.filter((s) => s !== "discarded").length;
  const last = round.emitted.at(-1);
  const end = round.bonus_kind === "corrected" ? `target corrected to “${tokenText(round, last)}”`
    : round.bonus_kind === "bonus" ? `bonus “${tokenText(round, last)}”` : "the text ended";
  return `Round ${round.index + 1}: ${round.path.length} of ${tested} tested drafts accepted; ${end}`;
}

/** Draw into `el`. Rounds are only ever appended; a new `data.key` starts over.
 *  @param {{key: string, prompt: string[], rounds: object[], shown: {round: number, token: number|null}|null,
 *           ghosts: boolean, waiting: string, follow: boolean}} data */
export function render(el, data) {
  const state = (el._ribbon ??= { key: null, drawn: 0, groups: [], lit: [], uid: `wb${Math.random().toString(36).slice(2, 8)}` });
  if (state.key !== data.key) {
    el.replaceChildren();
    Object.assign(state, { key: data.key, drawn: 0, groups: [], lit: [], prompt: null });
  }
  const text = data.prompt.join("");
  if (state.prompt !== text) {
    const first = el.querySelector(".wb-prompt") ?? el.insertBefore(node("span", "wb-prompt"), el.firstChild);
    first.textContent = text;
    state.prompt = text;
  }
  el.classList.toggle("no-ghosts", !data.ghosts);
  if (state.drawn < data.rounds.length) {
    const tail = document.createDocumentFragment();
    for (; state.drawn < data.rounds.length; state.drawn += 1) {
      const made = data.rounds[state.drawn].emitted.length ? group(data.rounds[state.drawn], state.uid) : [];
      state.groups.push(made);
      tail.append(...made);
    }
    el.append(tail);
    if (data.follow) el.scrollTop = el.scrollHeight;
  }
  light(el, state, data.shown, data.follow);
}

function group(round, uid) {
  const parts = [];
  for (const segment of segments(round)) {
    const bare = segment.ghosts.length === 0 && segment.tokens.every((t) => /^⏎+$/.test(t.text));
    const box = node("span", `wb-round${bare ? " is-break" : ""}`);
    box.dataset.round = round.index;
    const row = node("span", "wb-row"), under = node("span", "wb-ghosts");
    for (const t of segment.tokens) {
      const token = node("span", `wb-token is-${t.kind}`, t.text);
      token.dataset.round = round.index;
      token.dataset.token = t.k;
      if (t.node !== null) token.dataset.node = t.node;
      token.id = `${uid}-${round.index}-${t.k}`;
      token.setAttribute("role", "option");
      token.setAttribute("aria-label", `${t.text.trim() || "space"}, ${t.kind}, round ${round.index + 1}`);
      row.append(token);
    }
    for (const g of segment.ghosts) {
      const ghost = node("span", `wb-ghost is-${g.status}`, g.text);
      ghost.dataset.round = round.index;
      ghost.dataset.node = g.node;
      under.append(ghost);
    }
    if (segment.hidden) under.append(node("span", "wb-more", `+${segment.hidden}`));
    under.setAttribute("aria-hidden", "true");
    box.append(row, under);
    parts.push(box);
    for (let i = 0; i < segment.breaks; i += 1) parts.push(node("span", "wb-break"));
  }
  return parts;
}

function light(el, state, shown, follow) {
  for (const old of state.lit) {
    old.classList.remove("is-shown");
    old.removeAttribute("aria-selected");
  }
  state.lit = shown ? (state.groups[shown.round] ?? []).filter((g) => g.classList.contains("wb-round")) : [];
  const token = shown && shown.token !== null ? el.querySelector(`#${state.uid}-${shown.round}-${shown.token}`) : null;
  if (token) {
    token.setAttribute("aria-selected", "true");
    state.lit = [...state.lit, token];
    el.setAttribute("aria-activedescendant", token.id);
  } else el.removeAttribute("aria-activedescendant");
  for (const now of state.lit) now.classList.add("is-shown");
  const first = state.lit[0];
  if (first && !follow && shown.scroll) {
    const top = first.offsetTop - el.offsetTop;
    if (top < el.scrollTop || top > el.scrollTop + el.clientHeight - 40) el.scrollTop = top - el.clientHeight / 3;
  }
}

function node(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export default { render };
