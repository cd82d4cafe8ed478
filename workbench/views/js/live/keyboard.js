/** Keys of the Live view. They act while the stage has the focus, never while a control is edited. */

const EDITABLE = "input, textarea, select, [contenteditable]";

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

/** Listen on the page's parts; `actions` maps the names of `meaning` to functions. */
export function listen({ parts }, actions) {
  const root = parts.stage.parentElement.parentElement;
  parts.stage.tabIndex = -1;
  root.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      actions.press("run");
    }
  });
  parts.stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(EDITABLE)) return;
    if (event.target.closest("button") && (event.key === " " || event.key === "Enter")) return;
    const meant = meaning({ key: event.key, inTree: parts.treeCard.contains(event.target) });
    if (!meant) return;
    event.preventDefault();
    actions[meant[0]](meant[1]);
  });
}
