/** One round, draft by draft: the tested distribution, the random number, and the residual if none is accepted. */

import * as kit from "../shared/kit.js";
import { h, visible } from "../shared/kit.js";

const WIDE = 152, TALL = 46;

/** Draw into `el`. @param {any} el  @param {{round: any, words: string[]}} data  `round`: see `rounds.js` */
export function render(el, data) {
  const { round, words } = data;
  const list = (el._list ??= el.appendChild(h("ol", { className: "wb-tests" })));
  const name = (token) => `“${visible(words[token])}”`;
  const rows = round.tests.map((test) => ({
    title: `draft ${test.draft + 1}, against ${test.against === round.tests[0].against ? "p" : "the residual"}`,
    distributions: [test.against, test.by],
    at: test.token,
    texts: [
      `${name(test.token)}: ${test.against[test.token].toFixed(3)} / ${test.by[test.token].toFixed(3)}`,
      `u = ${test.u.toFixed(3)} ${test.passed ? "<" : "≥"} ${test.accept.toFixed(3)}`,
    ],
    mark: test.passed ? "accepted" : "rejected",
  }));
  if (round.acceptedDraft === null)
    rows.push({
      title: "none accepted: residual",
      distributions: [round.residual, null],
      at: round.token,
      texts: [`${name(round.token)} is sampled`, round.drafts.includes(round.token) ? "equals a draft, which counts as accepted" : "from the residual"],
      mark: round.drafts.includes(round.token) ? "accepted" : "corrected",
    });
  else
    rows.push({
      title: "residual distribution (used only if no draft is accepted)", distributions: [round.residual, null], at: -1, texts: ["", ""], mark: "",
    });
  while (list.childElementCount < rows.length) list.append(row());
  [...list.children].forEach((item, i) => {
    item.hidden = i >= rows.length;
    if (!item.hidden) fill(item, rows[i], words);
  });
}

function row() {
  return h("li", {}, h("small"), h("div"), h("span", {}, h("code"), h("code"), h("b")));
}

function fill(item, { title, distributions, at, texts, mark }, words) {
  const [head, picture, text] = item.children, n = words.length, room = WIDE / n, wide = Math.min(11, room * 0.4);
  kit.write(head, title);
  const { bars } = kit.frame(
    picture,
    { width: WIDE, height: TALL + 4, label: distributions.map((probs, j) => (probs ? `${j ? "draft distribution" : "target or residual distribution"}: ${probs.map((x, i) => `${visible(words[i])} ${x.toFixed(3)}`).join(", ")}` : "")).join("; ") },
    (svg) => ({ bars: svg.appendChild(kit.s("g")) }),
  );
  kit.fit(bars, 2 * n, () => kit.s("rect"));
  distributions.forEach((probs, side) => words.forEach((_, i) => {
    const v = Math.min(1, probs?.[i] ?? 0);
    kit.set(bars.children[2 * i + side], {
      class: `wb-small is-${side ? "q" : "p"}${i === at ? " is-at" : ""}`,
      x: room * (i + 0.5) + (side ? 1 : -wide), y: TALL - v * (TALL - 4), width: wide - 1,
      height: probs ? v * (TALL - 4) + 1 : 0,
    });
  }));
  texts.forEach((words, i) => kit.write(text.children[i], words));
  kit.write(text.lastChild, mark);
  text.lastChild.className = `is-${mark}`;
}
