/** Thumbnail of a run: one bar per round; its height is the number of tokens, accepted drafts at the bottom. */

import * as kit from "../shared/kit.js";

const WIDTH = 320, HEIGHT = 34, LEAST = 4, WIDEST = 12, GAP = 1;

/** Return the bars of a thumbnail. Pure. @param {[number, number][]} lengths  accepted drafts and tokens per round
 *  @returns {{x: number, width: number, accepted: number, all: number}[]} in pixels, up from the bottom */
export function bars(lengths, width = WIDTH, height = HEIGHT) {
  const high = Math.max(LEAST, ...lengths.map(([, tokens]) => tokens));
  const step = Math.min(WIDEST, width / Math.max(1, lengths.length));
  return lengths.map(([accepted, tokens], i) => ({
    x: i * step,
    width: Math.max(1, step - GAP),
    accepted: (height * Math.min(accepted, tokens)) / high,
    all: (height * tokens) / high,
  }));
}

/** Describe the thumbnail. Pure. @param {[number, number][]} lengths */
export function summary(lengths) {
  const accepted = lengths.map(([n]) => n), most = Math.max(0, ...accepted);
  return `Accepted drafts in the first ${lengths.length} rounds: 0 in ${accepted.filter((n) => n === 0).length}, at most ${most}`;
}

/** Draw a thumbnail. @param {[number, number][]} lengths */
export function draw(lengths) {
  const svg = kit.s("svg", { class: "wb-thumb", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "xMinYMax meet" });
  kit.set(svg, { role: "img", "aria-label": summary(lengths) });
  for (const { x, width, accepted, all } of bars(lengths)) {
    const rest = kit.s("rect", { class: "wb-thumbrest", x, width, y: HEIGHT - all, height: all - accepted });
    svg.append(rest, kit.s("rect", { class: "wb-thumbaccepted", x, width, y: HEIGHT - accepted, height: accepted }));
  }
  const title = kit.s("title");
  kit.write(title, summary(lengths));
  svg.prepend(title);
  return svg;
}
