/** The last prompts used in this browser, and saved sets of prompts. Both are stored in this browser only and are never
 *  sent; they can be cleared. */

import { h } from "./kit.js";

const KEY = "wb-prompts";
/** Most prompts in the history, most sets, most prompts of a set, and the longest prompt, in characters. */
export const MOST = 12;
export const MOST_SETS = 12;
export const MOST_IN_SET = 12;
export const LONGEST = 4000;
const SHORT = 70, NAME = 40;

/** @typedef {{last: string[], sets: {name: string, prompts: string[]}[]}} Stored */

/** Return the history with a prompt in front: each once, at most `MOST`; too long and empty prompts are left out. Pure.
 *  @param {string[]} last  newest first  @param {string} prompt */
export function added(last, prompt) {
  if (!prompt.trim() || prompt.length > LONGEST) return last;
  return [prompt, ...last.filter((each) => each !== prompt)].slice(0, MOST);
}

/** Return the sets with one more in front; a set of the same name is replaced. Pure. @param {Stored["sets"]} sets
 *  @param {string} name  @param {string[]} prompts */
export function withSet(sets, name, prompts) {
  const kept = [...new Set(prompts)].filter((each) => each.trim() && each.length <= LONGEST).slice(0, MOST_IN_SET);
  const title = name.trim().slice(0, NAME);
  if (!title || !kept.length) return sets;
  return [{ name: title, prompts: kept }, ...sets.filter((each) => each.name !== title)].slice(0, MOST_SETS);
}

/** Read stored data; unreadable parts are left out. Pure. @param {string|null} text @returns {Stored} */
export function parse(text) {
  const isPrompt = (each) => typeof each === "string" && each.trim() !== "" && each.length <= LONGEST;
  try {
    const { last, sets } = JSON.parse(text ?? "{}") ?? {};
    const known = Array.isArray(sets) ? sets : [];
    return {
      last: (Array.isArray(last) ? last : []).filter(isPrompt).slice(0, MOST),
      sets: known
        .filter((set) => typeof set?.name === "string" && Array.isArray(set.prompts))
        .map((set) => ({ name: set.name.slice(0, NAME), prompts: set.prompts.filter(isPrompt).slice(0, MOST_IN_SET) }))
        .filter((set) => set.name && set.prompts.length)
        .slice(0, MOST_SETS),
    };
  } catch {
    return { last: [], sets: [] };
  }
}

/** Return a prompt in one short line. Pure. */
export function short(prompt) {
  const line = prompt.replaceAll(/<\|\w+\|>/g, " ").replace(/\s+/g, " ").trim();
  return line.length > SHORT ? `${line.slice(0, SHORT - 1)}…` : line;
}

/** Return what is stored in this browser. @param {Pick<Storage, "getItem">} [storage] */
export function read(storage) {
  try {
    return parse((storage ?? localStorage).getItem(KEY));
  } catch {
    return parse(null); // the browser may block storage
  }
}

/** Change what is stored in this browser. @param {(stored: Stored) => Partial<Stored>} change
 *  @param {Pick<Storage, "getItem"|"setItem"|"removeItem">} [storage] */
export function update(change, storage) {
  const stored = read(storage), now = { ...stored, ...change(stored) };
  try {
    if (now.last.length || now.sets.length) (storage ?? localStorage).setItem(KEY, JSON.stringify(now));
    else (storage ?? localStorage).removeItem(KEY);
  } catch {
    // without storage nothing is remembered
  }
}

/** Store a prompt that was used. @param {Pick<Storage, "getItem"|"setItem"|"removeItem">} [storage] */
export function remember(prompt, storage) {
  update(({ last }) => ({ last: added(last, prompt) }), storage);
}

/** Build the list of the last prompts. @param {(prompt: string) => void} use  called with the chosen prompt */
export function build(use) {
  const list = h("ul", {}), box = h("details", { className: "wb-promptlast" }, h("summary", {}, "Last prompts"), list);
  const draw = () => {
    const { last } = read();
    const pick = (prompt) => {
      box.open = false;
      use(prompt);
    };
    const clear = h("button", { type: "button", className: "wb-link" }, "Clear");
    clear.addEventListener("click", () => {
      update(() => ({ last: [] }));
      draw();
    });
    list.replaceChildren(
      ...last.map((prompt) => h("li", {}, h("button", { type: "button", title: prompt, onclick: () => pick(prompt) }, short(prompt)))),
      h("li", { className: "wb-promptnote" }, last.length ? "Stored in this browser only. " : "No prompt of your own was used in this browser yet.", ...(last.length ? [clear] : [])),
    );
  };
  box.addEventListener("toggle", () => box.open && draw());
  return box;
}
