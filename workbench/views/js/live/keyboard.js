/** Keys of the Live view. They act while the stage has the focus; see `controller.js`. */

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
