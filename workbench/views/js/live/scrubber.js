/** Timeline: play, step, a slider over the rounds, speed, and a button to the newest round. */

import * as kit from "../shared/kit.js";

const SPEEDS = [["1", "1×"], ["0.25", "0.25×"], ["0.1", "0.1×"], ["0.02", "0.02×"]];

/** Build the timeline into `parts`; the slider counts rounds from 1. @param {Element[]} above  elements above it at the
 *  foot of the page */
export function build(parts, ...above) {
  const button = (name, text, title) => {
    parts[name] = kit.h("button", { type: "button", className: "wb-tool", title }, text);
    parts[name].setAttribute("aria-label", title);
    return parts[name];
  };
  parts.speed = kit.h(
    "select",
    { title: "Playback speed, relative to the recorded times" },
    ...SPEEDS.map(([value, text]) => kit.h("option", { value }, text)),
  );
  parts.speed.value = "0.1";
  parts.speed.setAttribute("aria-label", "Playback speed, relative to the recorded times");
  parts.slider = kit.h("input", { type: "range", min: 1, max: 1, value: 1, step: 1 });
  parts.slider.setAttribute("aria-label", "Round shown");
  parts.where = kit.h("span", { className: "wb-where" }, "round –");
  parts.jumpWords = kit.h("span", {}, "jump to live");
  parts.jump = kit.h("button", { type: "button", className: "wb-badge" }, kit.h("i"), parts.jumpWords);
  parts.scrub = kit.h(
    "div",
    { className: "wb-scrub" },
    ...above,
    button("play", "▶", "Play at the recorded speed"),
    button("back", "[", "Previous round"),
    parts.where,
    button("forth", "]", "Next round"),
    parts.speed,
    parts.slider,
    parts.jump,
  );
  kit.set(parts.scrub, { role: "group", "aria-label": "Timeline" });
  return parts.scrub;
}

/** Draw the place in the run. */
export function render(parts, view) {
  const n = view.rounds.length, at = view.shown?.round ?? 0;
  parts.slider.max = Math.max(1, n);
  parts.slider.disabled = n === 0;
  if (document.activeElement !== parts.slider || view.follow || view.playing) parts.slider.value = at + 1;
  kit.set(parts.slider, { "aria-valuetext": n ? `round ${at + 1} of ${n}` : "no rounds yet" });
  parts.slider.style.setProperty("--fill", `${n > 1 ? (100 * at) / (n - 1) : n ? 100 : 0}%`);
  kit.write(parts.where, n ? `round ${at + 1} of ${n}` : "round –");
  kit.write(parts.play, view.playing ? "❚❚" : "▶");
  kit.write(parts.jumpWords, view.active ? "jump to live" : "jump to the end");
  parts.jump.hidden = (view.follow && !view.scrolledBack) || n === 0;
}
