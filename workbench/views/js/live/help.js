/** The dialog with the keys and the words of the Live view. */

import * as kit from "../shared/kit.js";

const KEYS = [
  ["Ctrl / ⌘ Enter", "run"],
  ["Space", "pause or resume; afterwards play"],
  ["← →", "token (in the tree: parent, child)"],
  ["↑ ↓", "node of the same depth"],
  ["Enter, Esc", "in the tree: unfold, fold"],
  ["+ − 0", "in the tree: zoom"],
  ["[ ]", "previous, next round"],
  ["{ }", "sum one round less, more on the wall clock"],
  ["Home End", "first, last round"],
  ["Enter or P", "pin what is shown"],
  ["Esc", "clear the pin"],
  ["L", "jump to live"],
  ["M", "spine, levels, attention mask or list"],
  ["1 – 6", "figures, tokens, tree, wall clock, curves, scrubber"],
  ["?", "this list"],
];
const WORDS = [
  ["draft", "tokens the drafter proposes"],
  ["verify", "one forward of the target over all of them"],
  ["accepted", "tested and kept"],
  ["rejected", "tested and refused"],
  ["corrected", "the target's own token after a rejection"],
  ["bonus", "the target's extra token after a fully accepted path"],
  ["plain", "the target's token where nothing was drafted: plain decoding"],
  ["discarded", "drafted, never tested: the path ended before it or took another branch"],
  ["τ", "tokens emitted per verification"],
  ["p, q, u", "target's probability, drafter's, and the uniform that was drawn"],
  [
    "overhead",
    "wall time after the prefill in no forward of a round: judging, committing, bookkeeping, also between rounds",
  ],
  ["waiting", "time in forwards for other runs of the same batch, which this one took no part in"],
];

/** Fill `dialog`. @param {{KEYS: string[][], WORDS: string[][]}} said  a view's own */
export function build(dialog, said = { KEYS, WORDS }) {
  const list = (rows) => kit.h("dl", {}, ...rows.flatMap(([a, b]) => [kit.h("dt", {}, a), kit.h("dd", {}, b)]));
  dialog.setAttribute("aria-label", "Keys and words");
  dialog.append(
    kit.h(
      "form",
      { method: "dialog" },
      kit.h(
        "div",
        { className: "wb-two" },
        kit.h("div", {}, kit.h("h3", {}, "Keys, while the stage has the focus"), list(said.KEYS)),
        kit.h("div", {}, kit.h("h3", {}, "Words"), list(said.WORDS)),
      ),
      kit.h("button", { className: "wb-go" }, "Close"),
    ),
  );
}
