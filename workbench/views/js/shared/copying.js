/** Copy generated text: the selection in a ribbon, without discarded drafts and symbols, and whole texts with a button.
 *  */

import * as kit from "./kit.js";

const SAID_MS = 1600;

/** Return the generated text of a record: the footer's text, which ends before a stop string, else the text so far.
 *  Pure.
 *  @param {{footer: object|null, rounds: object[]}|null} run */
export function textOf(run) {
  if (!run) return "";
  const { footer, rounds } = run;
  return footer?.reason ? footer.text : rounds.flatMap((r) => r.emitted.map((e) => e.text)).join("");
}

/** Join pieces of text, each cut at the selection's ends; a piece whose displayed text differs is copied whole. Pure.
 *  @param {{raw: string, shown: string, from: number, to: number}[]} pieces */
export function joined(pieces) {
  return pieces
    .map(({ raw, shown, from, to }) => (raw === shown ? raw.slice(from, to) : to > from ? raw : ""))
    .join("");
}

/** Replace copied tokens of `el` by their raw text (`_raw`) where the displayed text differs. */
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

/** Copy `text` to the clipboard. @returns {Promise<boolean>} whether it succeeded */
export async function put(text) {
  if (
    await navigator.clipboard?.writeText(text).then(
      () => true,
      () => false,
    )
  )
    return true;
  // insecure pages have no clipboard API
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

/** Return a button that copies the result of `text()` and confirms it. @param {() => string|Promise<string>} text
 *  @param {string} of  name of the text */
export function button(text, of, className = "wb-tool") {
  const copyButton = kit.h("button", { type: "button", className, title: `Copy ${of}, as plain text` }, "copy text");
  let over = null;
  kit.set(copyButton, { "aria-live": "polite" });
  copyButton.addEventListener("click", async () => {
    const found = await text(), done = found !== "" && (await put(found));
    kit.write(copyButton, done ? "copied" : found === "" ? "no text yet" : "not copied");
    clearTimeout(over);
    over = setTimeout(() => kit.write(copyButton, "copy text"), SAID_MS);
  });
  return copyButton;
}
