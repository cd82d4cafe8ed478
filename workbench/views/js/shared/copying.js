/** Copying text as it was generated: what is selected in a ribbon, without ghosts and signs, and whole texts by a
 *  button. */

import * as kit from "./kit.js";

const SAID_MS = 1600;

/** The generated text of a record: as its end says, which cuts it before a stop string; else what came so far. Pure.
 *  @param {{footer: object|null, rounds: object[]}|null} run */
export function textOf(run) {
  if (!run) return "";
  const { footer, rounds } = run;
  return footer?.reason ? footer.text : rounds.flatMap((r) => r.emitted.map((e) => e.text)).join("");
}

/** Put pieces of text together, each cut where the selection cuts it; one whose signs stand for something is whole.
 *  Pure.
 *  @param {{raw: string, shown: string, from: number, to: number}[]} pieces */
export function joined(pieces) {
  return pieces
    .map(({ raw, shown, from, to }) => (raw === shown ? raw.slice(from, to) : to > from ? raw : ""))
    .join("");
}

/** From now on, what is copied out of the tokens in `el` is their text: `_raw` of an element, where what is shown
 *  differs. */
export function listen(el) {
  el.addEventListener("copy", (event) => {
    const marked = getSelection(), range = marked.rangeCount ? marked.getRangeAt(0) : null;
    if (!range || marked.isCollapsed || event.target.closest?.("input, textarea")) return;
    const pieces = [...el.querySelectorAll(".wb-token, .wb-prompt > span")]
      .filter((e) => range.intersectsNode(e))
      .map((e) => piece(e, range));
    if (!pieces.length) return;
    event.clipboardData.setData("text/plain", joined(pieces));
    event.preventDefault();
  });
}

function piece(element, range) {
  const shown = element.textContent,
    offset = (node, at) => (node.nodeType === Node.TEXT_NODE && element.contains(node) ? at : null);
  const from = offset(range.startContainer, range.startOffset) ?? 0,
    to = offset(range.endContainer, range.endOffset) ?? shown.length;
  return { raw: element._raw ?? shown, shown, from, to };
}

/** Put `text` into the clipboard. @returns {Promise<boolean>} whether it is there */
export async function put(text) {
  if (
    await navigator.clipboard?.writeText(text).then(
      () => true,
      () => false,
    )
  )
    return true;
  // pages that are not secure have no clipboard of their own
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/** A button that copies what `text()` gives, and says that it has. @param {() => string|Promise<string>} text  @param
 *  {string} of  whose, for its name */
export function button(text, of, className = "wb-tool") {
  const made = kit.h("button", { type: "button", className, title: `Copy ${of}, as plain text` }, "copy text");
  let over = null;
  kit.set(made, { "aria-live": "polite" });
  made.addEventListener("click", async () => {
    const found = await text(), done = found !== "" && (await put(found));
    kit.write(made, done ? "copied" : found === "" ? "no text yet" : "not copied");
    clearTimeout(over);
    over = setTimeout(() => kit.write(made, "copy text"), SAID_MS);
  });
  return made;
}
