/** Words of the draft tree: how wide they are, what is cut, what stands at a tested edge. */

/** Spaces and breaks made visible, cut to `chars`. Pure. */
export function label(text, chars = 14) {
  const seen = [...visible(text)];
  return seen.length > chars ? `${seen.slice(0, chars - 1).join("")}…` : seen.join("");
}

/** Spaces and breaks made visible. Pure. */
export function visible(text) {
  return text.replace(/^ /, "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "·";
}

const letters =
  typeof Intl.Segmenter === "undefined" ? null : new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** As much of a text as fits into `room` pixels, whole characters, with a mark where it was cut. Pure.
 *  @param {(text: string) => number} width  of a text, in pixels  @returns {string} empty where not even the mark
 *    fits */
export function cut(text, room, width) {
  if (width(text) <= room) return text;
  if (width("…") > room) return "";
  const parts = letters ? [...letters.segment(text)].map((s) => s.segment) : [...text];
  let low = 0, high = parts.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (width(`${parts.slice(0, middle).join("")}…`) <= room) low = middle;
    else high = middle - 1;
  }
  return `${parts.slice(0, low).join("")}…`;
}

/** How wide texts are in the fonts of a drawing: measured once each, by the browser.
 *  @param {Element[]} samples  texts in the drawing whose fonts are meant: of words, of small words
 *  @returns {(text: string, small?: boolean) => number} pixels */
export function measurer(samples) {
  const context = document.createElement("canvas").getContext("2d"), widths = [new Map(), new Map()];
  const fonts = samples.map((sample) => {
    const style = getComputedStyle(sample);
    return `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  });
  return (text, small = false) => {
    const known = widths[Number(small)];
    if (!known.has(text)) {
      context.font = fonts[Number(small)];
      known.set(text, context.measureText(text).width);
    }
    return known.get(text);
  };
}

// -- The test of an edge -------------------------------------------------------------------------------------------

/** What was drawn against what was asked, at the edge of a tested node, the fullest wording first. Empty where nothing
 *  was tested. A trace that names no rule says what its uniform, or the lack of one, tells. Pure. @param {object}
 *  node */
export function test(node) {
  const { kind, u, accept, rule, inputs, p } = node, kept = kind === "accepted";
  if (!node.tested) return [];
  const threshold = inputs?.threshold ?? null;
  if (u !== null && accept !== null) return pairs(u, u < accept ? "<" : "≥", accept, rule);
  if (threshold !== null && p !== null) return pairs(p, p > threshold ? ">" : "≤", threshold, rule);
  if (rule === "greedy") return kept ? ["= likeliest", "= top", "="] : ["≠ likeliest", "≠ top", "≠"];
  if (rule) return [rule];
  return p === null ? [] : [`p ${decimals(p, 2)}`];
}

function pairs(a, sign, b, rule) {
  const digits = [2, 3, 4].find((n) => decimals(a, n) !== decimals(b, n)) ?? 4,
    [left, right] = [decimals(a, digits), decimals(b, digits)];
  return [...(rule ? [`${left} ${sign} ${right} ${rule}`] : []), `${left} ${sign} ${right}`, `${left}${sign}${right}`];
}

/** A probability as short as can be: ".43"; "0" and "1" only where it is that. Pure. */
export function decimals(v, digits) {
  return v === 0 || v === 1 ? `${v}` : v.toFixed(digits).replace(/^0\./, ".");
}

/** A node in words, for a screen reader and for those who point at it. Pure. @param {boolean} awaited  not judged
 *  yet */
export function sentence(node, folded = 0, awaited = false) {
  if (node.kind === "root")
    return [`“${visible(node.text)}”`, "committed", foldedWords(folded)].filter(Boolean).join(", ");
  const figure = (name, v) => (v === null || v === undefined ? "" : `${name} ${v.toFixed(2)}`);
  if (awaited)
    return [`“${visible(node.text)}”`, "drafted, not judged yet", figure("q", node.q), node.grown, foldedWords(folded)]
      .filter(Boolean)
      .join(", ");
  const [said] = test({ ...node, rule: node.rule === "greedy" ? node.rule : null }),
    why =
      said && node.u !== null
        ? `u ${said}`
        : said && node.inputs?.threshold !== undefined && node.u === null && node.inputs.threshold !== null
          ? `p ${said}`
          : said;
  const verdict = node.kind === "discarded" ? "discarded: never tested" : node.kind;
  return [
    `“${visible(node.text)}”`,
    why ? `${verdict}: ${why}` : verdict,
    node.rule && node.rule !== said ? `rule: ${node.rule}` : "",
    figure("p", node.p),
    figure("q", node.q),
    node.source ? `drafted by ${node.source}` : "",
    node.grown,
    foldedWords(folded),
  ]
    .filter(Boolean)
    .join(", ");
}

const foldedWords = (n) => (n ? `${n} folded under it` : "");
