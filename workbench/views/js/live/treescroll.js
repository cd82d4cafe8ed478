/** Visible part of a draft tree: initial position, fixed path, and panning with the mouse. */

/** After drawing: restore the position of a known round; show the end of the path of a new one; keep the selection
 *  visible. */
export function restoreScroll(el, view, placed, scale, size, data) {
  const fresh = view.settled !== data.round,
    wide = placed.width * scale > size.width + 1,
    tall = placed.height * scale > size.height + 1;
  Object.assign(view, { settled: data.round, scale, size });
  const chosen = view.seen === data.node && !fresh ? null : placed.items.find((n) => n.id === data.node);
  view.seen = data.node;
  if (fresh || chosen) {
    let { left, top } = fresh ? (view.pans.get(data.round) ?? { left: 0, top: 0 }) : view;
    if (fresh && wide && !view.pans.has(data.round))
      left = Math.max(0, (placed.items.filter((n) => n.top).at(-1).hit.x + placed.column + 6) * scale - size.width);
    if (chosen) {
      const { x, y, w, h } = chosen.hit;
      left = wide ? Math.max((x + w + 6) * scale - size.width, Math.min(left, (x - 6) * scale)) : 0;
      if (!chosen.top)
        top = tall ? Math.max((y + h + 6) * scale - size.height, Math.min(top, (y - placed.still - 4) * scale)) : 0;
    }
    [left, top] = [Math.max(0, Math.round(left)), Math.max(0, Math.round(top))];
    if (left !== view.left || top !== view.top) {
      el.scrollTo({ left, top, behavior: "instant" });
      Object.assign(view, { left: el.scrollLeft, top: el.scrollTop }); // the browser may have limited them
    }
  }
  keepPathVisible(el, view);
}

/** Store the scroll position of the round. */
export function storeScroll(el, view) {
  Object.assign(view, { left: el.scrollLeft, top: el.scrollTop });
  if (view.round) view.pans.set(view.round, { left: view.left, top: view.top });
  keepPathVisible(el, view);
}

/** Keep the accepted path visible while the rest is scrolled. */
function keepPathVisible(el, view) {
  const state = el._frame, y = view.top / (view.scale ?? 1);
  if (!state) return;
  state.still.setAttribute("transform", `translate(0 ${Math.round(10 * y) / 10})`);
  state.ground.setAttribute("visibility", y > 0 ? "visible" : "hidden");
}

/** Pan with the mouse outside nodes; touch scrolls as usual. */
export function drag(el) {
  let from = null;
  el.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0 && !event.target.closest(".wb-node") && event.target !== el)
      from = { x: event.clientX + el.scrollLeft, y: event.clientY + el.scrollTop };
  });
  el.addEventListener(
    "pointermove",
    (event) =>
      from &&
      event.buttons &&
      el.scrollTo({ left: from.x - event.clientX, top: from.y - event.clientY, behavior: "instant" }),
  );
  addEventListener("pointerup", () => (from = null));
}
