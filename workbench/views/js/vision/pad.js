/** Sketch pad: pen, stamps of shapes, undo and clear, all usable from the keyboard. The sketch is a list of items in
 *  units of the image's side; undo removes the last item. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

/** Colours and shapes that the bundled vision model was trained on; the hex values are inside its training shades. */
export const COLOURS = {
  red: "#e02020",
  orange: "#f58a0a",
  yellow: "#f7d417",
  green: "#1f9d3f",
  blue: "#2158d8",
  purple: "#7a28b8",
  pink: "#f58ac0",
  black: "#161616",
};
export const SHAPES = ["circle", "square", "triangle", "star", "heart", "cross"];
export const SIZES = { small: 0.19, large: 0.37 };
const PENS = { thin: 0.024, thick: 0.05 };
const PIXELS = 384;
const PLACES = [
  ["top left", "top", "top right"],
  ["left", "middle", "right"],
  ["bottom left", "bottom", "bottom right"],
];

/** Return the corners of a shape about the origin, −1 to 1. Pure. @returns {[number, number][]} */
export function corners(shape) {
  const ring = (n, at) => Array.from({ length: n }, (_, i) => at((2 * Math.PI * i) / n, i));
  if (shape === "square") return [[-1, -1], [1, -1], [1, 1], [-1, 1]];
  if (shape === "triangle") return [[0, -1], [1, 0.9], [-1, 0.9]];
  if (shape === "star")
    return ring(10, (t, i) => [
      (i % 2 ? 0.42 : 1) * Math.cos(t - Math.PI / 2),
      (i % 2 ? 0.42 : 1) * Math.sin(t - Math.PI / 2),
    ]);
  if (shape === "cross")
    return [
      [-0.34, -1],
      [0.34, -1],
      [0.34, -0.34],
      [1, -0.34],
      [1, 0.34],
      [0.34, 0.34],
      [0.34, 1],
      [-0.34, 1],
      [-0.34, 0.34],
      [-1, 0.34],
      [-1, -0.34],
      [-0.34, -0.34],
    ];
  if (shape === "heart")
    return ring(40, (t) => [
      Math.sin(t) ** 3,
      -(13 * Math.cos(t) - 5 * Math.cos(2 * t) - 2 * Math.cos(3 * t) - Math.cos(4 * t) + 2.5) / 14.5,
    ]);
  return ring(40, (t) => [Math.cos(t), Math.sin(t)]);
}

/** Name the place of a point, in the vocabulary of the captions. Pure. */
export function where(x, y) {
  const third = (v) => Math.min(2, Math.max(0, Math.floor(3 * v)));
  return PLACES[third(y)][third(x)];
}

/** Describe the sketch: its alternative text. Pure. */
export function describe(items) {
  const stamps = items.filter((i) => i.shape).map((i) => `${i.size} ${i.colour} ${i.shape} at the ${where(i.x, i.y)}`),
    strokes = items.length - stamps.length;
  const drawn = [...stamps, ...(strokes ? [`${strokes} pen stroke${strokes === 1 ? "" : "s"}`] : [])];
  return drawn.length ? `A sketch: ${drawn.join(", ")}.` : "An empty sketch.";
}

/** Draw the items onto a canvas. */
export function paint(canvas, items) {
  const pen = canvas.getContext("2d"), side = canvas.width;
  pen.fillStyle = "white"; // paper white in both themes
  pen.fillRect(0, 0, side, side);
  Object.assign(pen, { lineCap: "round", lineJoin: "round" });
  for (const item of items) {
    pen.fillStyle = pen.strokeStyle = COLOURS[item.colour];
    pen.beginPath();
    if (item.shape) {
      const radius = (SIZES[item.size] / 2) * side;
      corners(item.shape).forEach(([x, y], i) =>
        pen[i ? "lineTo" : "moveTo"](item.x * side + x * radius, item.y * side + y * radius),
      );
      pen.fill();
    } else {
      pen.lineWidth = PENS[item.width] * side;
      item.points.forEach(([x, y], i) => pen[i ? "lineTo" : "moveTo"](x * side, y * side));
      if (item.points.length === 1) pen.lineTo(item.points[0][0] * side + 0.01, item.points[0][1] * side);
      pen.stroke();
    }
  }
}

/** Build the pad into `el`. Emits `wb:sketch` {url, alt} when the sketch is used. */
export function build(el) {
  const state = { items: [], tool: "circle", colour: "red", size: "large", width: "thick", x: 0.5, y: 0.5, line: null };
  const canvas = h("canvas", { width: PIXELS, height: PIXELS, className: "wb-pad", tabIndex: 0 }),
    status = h("p", { className: "wb-padsaid" });
  kit.set(canvas, { role: "application", "aria-roledescription": "sketch pad" });
  status.setAttribute("aria-live", "polite");
  const choice = (name, values, swatch) => {
    const group = h("div", { className: "wb-chips" }, ...values.map((value) => {
      const button = h(
        "button",
        { type: "button", onclick: () => set({ [name]: value }) },
        swatch ? h("i", { className: "wb-swatch" }) : "",
        value,
      );
      if (swatch) button.firstChild.style.background = COLOURS[value];
      button.dataset.value = value;
      return button;
    }));
    kit.set(group, {
      role: "group",
      "aria-label": { tool: "Tool", colour: "Colour", size: "Size of a stamp", width: "Width of the pen" }[name],
    });
    group.dataset.pad = name;
    return group;
  };
  const groups = {
    tool: choice("tool", ["pen", ...SHAPES]),
    colour: choice("colour", Object.keys(COLOURS), true),
    size: choice("size", Object.keys(SIZES)),
    width: choice("width", Object.keys(PENS)),
  };
  const button = (text, act, className = "wb-tool") => h("button", { type: "button", className, onclick: act }, text);
  const undo = button("undo", () => change(() => state.items.pop())),
    clear = button("clear", () => change(() => (state.items = [])));
  const use = button(
    "Use this sketch",
    () => kit.emit(el, "wb:sketch", { url: canvas.toDataURL("image/png"), alt: describe(state.items) }),
    "wb-go",
  );
  el.append(
    h(
      "div",
      { className: "wb-padrow" },
      canvas,
      h(
        "div",
        { className: "wb-padtools" },
        groups.tool,
        groups.colour,
        groups.size,
        groups.width,
        h("div", { className: "wb-padbuttons" }, undo, clear),
        h(
          "p",
          { className: "wb-detail" },
          "Click to stamp, drag to draw with the pen. Keys: arrows move the cross, Enter stamps or starts and ends a stroke, U undoes.",
        ),
        status,
      ),
    ),
    use,
  );

  function set(change) {
    Object.assign(state, change);
    show();
  }
  function change(work) {
    work();
    status.textContent = describe(state.items);
    show();
  }
  function show(cross = document.activeElement === canvas && canvas.matches(":focus-visible")) {
    paint(canvas, state.line ? [...state.items, state.line] : state.items);
    if (cross) mark(canvas, state);
    for (const [name, group] of Object.entries(groups))
      for (const b of group.children) b.setAttribute("aria-pressed", String(b.dataset.value === state[name]));
    groups.size.hidden = state.tool === "pen";
    groups.width.hidden = state.tool !== "pen";
    undo.disabled = clear.disabled = use.disabled = !state.items.length;
    kit.set(canvas, { "aria-label": `Sketch pad. ${describe(state.items)}` });
  }
  const stamp = (x, y) =>
    change(() => state.items.push({ shape: state.tool, colour: state.colour, size: state.size, x, y }));
  const begin = (x, y) => (state.line = { colour: state.colour, width: state.width, points: [[x, y]] });
  const end = () => state.line && change(() => (state.items.push(state.line), (state.line = null)));
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (state.tool !== "pen") return stamp(...at(event));
    canvas.setPointerCapture(event.pointerId);
    begin(...at(event));
    show(false);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!state.line || event.buttons !== 1) return;
    state.line.points.push(at(event));
    show(false);
  });
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 0.125 : 0.0625,
      moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves) {
      Object.assign(state, {
        x: Math.min(1, Math.max(0, state.x + moves[0])),
        y: Math.min(1, Math.max(0, state.y + moves[1])),
      });
      state.line?.points.push([state.x, state.y]);
      status.textContent = where(state.x, state.y);
      show(true);
    } else if (event.key === "Enter" || event.key === " ") {
      if (state.tool !== "pen") stamp(state.x, state.y);
      else if (state.line) end();
      else begin(state.x, state.y), show(true);
    } else if (event.key.toLowerCase() === "u" && state.items.length) change(() => state.items.pop());
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  canvas.addEventListener("focus", () => show());
  canvas.addEventListener("blur", () => (end(), show(false)));
  show(false);
  return { items: () => state.items };
}

/** Draw the cross that the keys move. */
function mark(canvas, { x, y }) {
  const pen = canvas.getContext("2d"), side = canvas.width, r = side / 24;
  for (const [style, width] of [["white", 5], ["black", 2]]) {
    Object.assign(pen, { strokeStyle: style, lineWidth: width });
    pen.beginPath();
    pen.moveTo(x * side - r, y * side);
    pen.lineTo(x * side + r, y * side);
    pen.moveTo(x * side, y * side - r);
    pen.lineTo(x * side, y * side + r);
    pen.stroke();
  }
}
