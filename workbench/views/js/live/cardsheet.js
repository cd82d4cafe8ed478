/** Bring the node card into view when a token is chosen: a sheet at the foot of a narrow page, otherwise scrolling. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

/** Height of the header and of the scrubber, which stay in place while the page scrolls, in pixels. */
const HEADER = 60, FOOTER = 56;

/** Return how far to scroll down so that the card is in view and the chosen token stays in view; 0: not at all. Pure.
 *  @param {{top: number, bottom: number}} card  @param {{top: number}} token  both relative to the window
 *  @param {number} height  of the window, in pixels */
export function distance(card, token, height) {
  const missing = card.bottom - (height - FOOTER);
  if (card.top < height / 2 || missing <= 0) return 0;
  return Math.max(0, Math.min(missing, card.top - HEADER, token.top - HEADER - 8));
}

/** Add the sheet's close button to the card. @param {Record<string, any>} parts */
export function build(parts) {
  parts.cardClose = h("button", { type: "button", className: "wb-tool wb-sheetclose" }, "×");
  kit.set(parts.cardClose, { "aria-label": "Close the node card" });
  parts.cardCard.firstChild.append(parts.cardClose);
  parts.cardClose.addEventListener("click", () => close(parts));
  parts.cardCard.addEventListener("keydown", (event) => event.key === "Escape" && close(parts));
}

/** Show the card of the token that was chosen with a pointer. @param {Element} token */
export function show(page, token) {
  const { cardCard } = page.parts, narrow = kit.isNarrow();
  if (page.embed) return;
  if (narrow) cardCard.classList.add("is-sheet");
  const place = token.getBoundingClientRect(), card = cardCard.getBoundingClientRect();
  const by = narrow ? aboveSheet(place, card) : distance(card, place, innerHeight);
  const still = kit.prefersStill();
  if (by) scrollBy({ top: by, behavior: still ? "auto" : "smooth" });
}

/** Return how far to scroll so that the chosen token stands above the sheet; 0: it does. Pure.
 *  @param {{top: number, bottom: number}} token  @param {{top: number}} sheet */
export function aboveSheet(token, sheet) {
  return token.top >= HEADER && token.bottom <= sheet.top - 8 ? 0 : token.top - 2 * HEADER;
}

/** Return the card to its place in the page. */
export function close(parts) {
  parts.cardCard.classList.remove("is-sheet");
}

/** Return to the tokens, where a branch begins: close the sheet, and scroll up to the tokens if they are above the
 *  window. */
export function showTokens(page) {
  const { ribbonCard } = page.parts, by = ribbonCard.getBoundingClientRect().top - HEADER;
  close(page.parts);
  if (by < 0 && !page.embed) scrollBy({ top: by - 8, behavior: "instant" });
}
