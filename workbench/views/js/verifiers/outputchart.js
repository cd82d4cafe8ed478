/** Sampled output compared with p: an outline for p, a bar for the counted share. */

import * as kit from "../shared/kit.js";
import { visible } from "../shared/kit.js";

/** Draw into `el`. @param {any} el  @param {{p: number[], counts: number[], rounds: number, words: string[], summary:
 *  string}} data */
export function render(el, data) {
  const { p, counts, rounds, words, summary } = data;
  const width = Math.max(240, kit.size(el).width || 360), high = 150, room = width / words.length;
  const { tokens } = kit.frame(el, { width, height: high, label: summary }, (svg) => ({
    tokens: svg.appendChild(kit.s("g")),
  }));
  const shares = counts.map((x) => (rounds ? x / rounds : 0)), top = Math.max(...p, ...shares, 0.1);
  const y = (v) => high - 22 - (v / top) * (high - 44), wide = Math.min(46, room * 0.6);
  kit.fit(tokens, words.length, () => kit.group("rect", "rect", "text", "text"));
  words.forEach((word, i) => {
    const [outline, bar, name, value] = tokens.children[i].children, x = room * (i + 0.5);
    kit.set(bar, { class: "wb-came", x: x - wide / 2, y: y(p[i]), width: wide, height: y(0) - y(p[i]) });
    kit.set(outline, { class: "wb-got", x: x - wide / 2 + 5, y: y(shares[i]), width: wide - 10, height: y(0) - y(shares[i]) });
    kit.set(name, { x, y: high - 6, "text-anchor": "middle", class: "wb-code" });
    kit.set(value, { x, y: y(Math.max(p[i], shares[i])) - 5, "text-anchor": "middle", class: "wb-mute" });
    const letters = Math.max(3, Math.floor(room / 7.6)), shown = visible(word);
    kit.write(name, shown.length > letters ? `${shown.slice(0, letters - 1)}…` : shown);
    kit.write(value, rounds ? shares[i].toFixed(3) : "");
  });
}
