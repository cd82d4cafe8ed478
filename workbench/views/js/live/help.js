/** Keyboard shortcuts and terms of the Live view: the meaning of each key, and the dialog that lists them. */

import * as kit from "../shared/kit.js";

const KEYS = [
  ["Ctrl / ⌘ Enter", "start a run"],
  ["Space", "pause or resume the run; after its end, replay it"],
  ["← →", "select the previous or next token (in the tree: parent or child)"],
  ["↑ ↓", "select the previous or next node at the same depth"],
  ["Enter, Esc", "in the tree: unfold or fold nodes"],
  ["+ − 0", "in the tree: zoom in, zoom out, show 100 %"],
  ["[ ]", "select the previous or next round"],
  ["{ }", "shorten or extend the selected range of rounds by one round"],
  ["Home End", "select the first or last round"],
  ["Enter or P", "pin the selection"],
  ["Esc", "clear the pin"],
  ["L", "jump to the newest round"],
  ["M", "show the draft as spine, levels, attention mask, list or KV cache"],
  ["1 – 6", "go to the key figures, tokens, tree, wall clock, curves or scrubber"],
  ["?", "show this list"],
];
const WORDS = [
  ["draft", "tokens that the drafter proposes"],
  ["verify", "one forward pass of the target over all drafted tokens"],
  ["accepted", "a draft token that was tested and is now part of the text"],
  ["rejected", "a draft token that was tested and is not part of the text"],
  ["corrected", "token drawn from the residual distribution after a rejection"],
  ["bonus", "the target's extra token after a fully accepted path"],
  ["plain", "target token of a round without drafts: plain decoding"],
  ["discarded", "a draft token that was never tested, because the accepted path ended before it or took another branch"],
  ["τ", "tokens emitted per verification"],
  ["p, q, u", "target probability, draft probability, and uniform random number of a drafted token's test"],
  ["x, x★", "the drafted token, and the target's most likely token at its position"],
  ["T, K", "temperature, and number of drafted tokens per round"],
  [
    "overhead",
    "wall time after the prefill and outside the models' forward passes: verification rule, commit, bookkeeping",
  ],
  ["waiting", "time in forward passes for other runs of the batch"],
  ["KV cache", "the target's cached keys and values; entries of rejected drafts are dropped after verification"],
  ["hindsight", "the additional draft, named by its rank in q, that would have equalled the target's own token at the end of the accepted path"],
];

/** Fill `dialog`. @param {{KEYS: string[][], WORDS: string[][]}} content  keys and terms of the view */
export function build(dialog, content = { KEYS, WORDS }) {
  const list = (rows) => kit.h("dl", {}, ...rows.flatMap(([a, b]) => [kit.h("dt", {}, a), kit.h("dd", {}, b)]));
  dialog.setAttribute("aria-label", "Keyboard shortcuts and glossary");
  dialog.append(
    kit.h(
      "form",
      { method: "dialog" },
      kit.h(
        "div",
        { className: "wb-two" },
        kit.h("div", {}, kit.h("h3", {}, "Keyboard shortcuts (while the run view has the focus)"), list(content.KEYS)),
        kit.h("div", {}, kit.h("h3", {}, "Terms"), list(content.WORDS)),
      ),
      kit.h("button", { className: "wb-go" }, "Close"),
    ),
  );
}

/** Return the action of a key. Pure. @param {{key: string, inTree: boolean}} pressed  @returns {[string, any?]|null}
 *  action, argument */
export function meaning({ key, inTree }) {
  if (inTree && key.startsWith("Arrow")) return ["node", key];
  const table = {
    ArrowLeft: ["token", -1],
    ArrowRight: ["token", 1],
    ArrowUp: ["node", "ArrowUp"],
    ArrowDown: ["node", "ArrowDown"],
    "[": ["round", -1],
    "]": ["round", 1],
    "{": ["sum", -1],
    "}": ["sum", 1],
    m: ["mode"],
    M: ["mode"],
    Home: ["first"],
    End: ["last"],
    " ": ["playPause"],
    l: ["follow"],
    L: ["follow"],
    Enter: ["hold"],
    p: ["hold"],
    P: ["hold"],
    Escape: ["follow"],
    "?": ["help"],
  };
  return /^[1-6]$/.test(key) ? ["view", Number(key) - 1] : (table[key] ?? null);
}
