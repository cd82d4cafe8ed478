/** Helpers of all drawings: elements that are created once and then updated. */

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element with properties and children. */
export function h(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Return an SVG element with attributes. */
export function s(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  return element;
}

/** Set attributes that differ. */
export function set(element, attributes) {
  for (const name in attributes) {
    const value = `${attributes[name]}`;
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
}

/** Set the text if it differs. Text is never parsed as HTML. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Adjust the children of `parent` to `n`: create missing ones, hide spare ones. */
export function fit(parent, n, make) {
  while (parent.childElementCount < n) parent.append(make());
  let i = 0;
  for (const child of parent.children) set(child, { display: i++ >= n ? "none" : "inline" });
}

/** Make the number of children of `parent` equal to `n`: create missing ones, remove spare ones.
 *  @param {(i: number) => Element} make  creates the child with an index */
export function resize(parent, n, make) {
  while (parent.childElementCount > n) parent.lastChild.remove();
  while (parent.childElementCount < n) parent.append(make(parent.childElementCount));
}

/** Return a group with one SVG element per tag. */
export function group(...tags) {
  const g = s("g");
  g.append(...tags.map((tag) => s(tag)));
  return g;
}

const sizes = new WeakMap();
const watcher = typeof ResizeObserver === "undefined" ? null : new ResizeObserver((entries) => {
  for (const { target } of entries) {
    sizes.set(target, { width: target.clientWidth, height: target.clientHeight });
    emit(target, "wb:redraw");
  }
});

/** Return the inner size of `el`, cached by an observer: reading it would force a layout at every drawing. */
export function size(el) {
  if (!sizes.has(el)) {
    sizes.set(el, { width: el.clientWidth, height: el.clientHeight });
    watcher?.observe(el);
  }
  return sizes.get(el);
}

const near = new WeakMap();
const lookout = typeof IntersectionObserver === "undefined" ? null : new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    near.set(target, isIntersecting);
    if (isIntersecting) emit(target, "wb:redraw");
  }
}, { rootMargin: "25%" });

/** Return whether `el` is visible, or nearly. When it becomes visible, a redraw is requested. */
export function inSight(el) {
  if (lookout && !near.has(el)) {
    near.set(el, true);
    lookout.observe(el);
  }
  return near.get(el) ?? true;
}

/** Return the frame of a drawing: one svg in `el`, built once with `build(svg)`, then resized and relabelled.
 *  @returns {object} what `build` returned, with `svg` */
export function frame(el, { width, height, label, role = "img" }, build) {
  if (!el._frame) {
    const svg = s("svg", { role });
    el._frame = { ...build(svg), svg };
    el.append(svg);
  }
  set(el._frame.svg, { width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  return el._frame;
}

/** Run `work` at most once per frame. */
export function paced(work) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      work();
    });
  };
}

/** Return whether the page is in one column, as the stylesheets have it for pages up to this width. */
export function isNarrow() {
  return matchMedia("(max-width: 900px)").matches;
}

/** Return whether the reader prefers less motion. */
export function prefersStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Dispatch a bubbling event. */
export function emit(el, name, detail) {
  el.dispatchEvent(new CustomEvent(name, { bubbles: true, detail }));
}

/** Make spaces, line breaks and tabs visible. Pure. */
export function visible(text) {
  return (
    text
      .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
      .replaceAll("\n", "⏎")
      .replaceAll("\t", "⇥") || "·"
  );
}
