/** What the dialog says of the keys and the words of the Vision tab. */

export const KEYS = [
  ["Ctrl / ⌘ Enter", "run"],
  ["Ctrl / ⌘ V", "take the clipboard's picture"],
  ["arrows, on a picture", "walk over its patches"],
  ["Space or Enter, on the picture", "paint the patch, with a tool chosen"],
  ["← →", "previous, next word"],
  ["↑ ↓", "drafts of the same place"],
  ["[ ]", "previous, next round"],
  ["Enter or P", "pin the word"],
  ["Esc", "clear the pin"],
  ["L", "jump to live"],
  ["Space", "pause or resume; afterwards play"],
  ["1 – 6", "figures, picture, caption, word, curves, time line"],
  ["?", "this list"],
];
export const WORDS = [
  ["vision token", "one patch of the picture, as the target reads it"],
  ["needs the picture", "a token that loses 0.2 or more of its probability by the target when the picture is blanked"],
  [
    "leans on",
    "attention or gradient of the word on each patch, largest = 1 for that word; the gradient of a drafter on the target's features is taken against the mean patch of the picture",
  ],
  ["kept, pooled, queries", "how the drafter's compressor makes fewer tokens of the patches"],
  ["gate", "chooses the compressor by the question"],
  ["blind", "a drafter that sees no picture"],
  [
    "vision-target",
    "a toy: six shapes, eight colours, numbers and a few words. Asked for what is not there, it invents",
  ],
  ["accepted", "tested and kept"],
  ["corrected", "the target's own token after a rejection"],
  ["rejected, discarded", "tested and refused; never tested"],
  ["τ", "tokens emitted per verification"],
];
