/** Keyboard shortcuts and terms of the Vision tab's help dialog. */

export const KEYS = [
  ["Ctrl / ⌘ Enter", "start a run"],
  ["Ctrl / ⌘ V", "paste an image from the clipboard"],
  ["arrows, on an image", "move over the image's patches"],
  ["Space or Enter, on the image", "paint the patch with the selected tool"],
  ["← →", "select the previous or next word"],
  ["↑ ↓", "select another draft for the same position"],
  ["[ ]", "select the previous or next round"],
  ["Enter or P", "pin the word"],
  ["Esc", "clear the pin"],
  ["L", "jump to the newest round"],
  ["Space", "pause or resume the run; after its end, replay it"],
  ["1 – 6", "go to the key figures, image, caption, word, curves or timeline"],
  ["?", "show this list"],
];
export const WORDS = [
  ["vision token", "one position of the image in the target's sequence: one patch"],
  ["picture words", "words of the text that need the image; all other words are “other words”"],
  ["needs the image", "the target's probability of the token falls by 0.2 or more when the image is blanked"],
  [
    "depends on",
    "attention or gradient of the word on each patch, scaled to a maximum of 1; for a drafter that uses the target's hidden states, the gradient is relative to the image's mean patch",
  ],
  ["kept, pooled, queries", "ways in which the drafter's compressor reduces the number of vision tokens"],
  ["gate", "part of the drafter that selects a compressor for each question"],
  ["text-only", "a drafter without image input"],
  [
    "vision-target",
    "the bundled toy model: it describes six shapes, eight colours and numbers in a few words; asked about a missing object, it invents an answer",
  ],
  ["accepted", "a draft token that was tested and is now part of the text"],
  ["corrected", "token drawn from the residual distribution after a rejection"],
  ["rejected", "a draft token that was tested and is not part of the text"],
  ["discarded", "drafted, not tested"],
  ["τ", "tokens emitted per verification"],
];
