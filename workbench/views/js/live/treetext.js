/** Text of the draft tree: width, cutting, and the test under a node. */

/** Make spaces and line breaks visible; cut to `chars`. Pure. */
export function label(text, chars = 14) {
  const seen = [...visible(text)];
  return seen.length > chars ? `${seen.slice(0, chars - 1).join("")}…` : seen.join("");
}

/** Make spaces and line breaks visible. Pure. */
export function visible(text) {
  return text.replace(/^ /, "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "·";
}

const letters =
  typeof Intl.Segmenter === "undefined" ? null : new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Cut a text to `room` pixels at whole characters, with an ellipsis. Pure.
 *  @param {(text: string) => number} width  of a text, in pixels  @returns {string} empty if not even the ellipsis
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

/** Return a function that measures text in the fonts of a drawing; each text is measured once.
 *  @param {Element[]} samples  elements of the drawing with the fonts to use: labels, small labels
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

/** Return the comparison that decided a tested node, longest wording first; empty if the node was not tested. In a
 *  trace that names no rule it follows from u and the threshold. Pure. @param {object} node */
export function test(node) {
  const { kind, u, accept, rule, inputs, p } = node, accepted = kind === "accepted";
  if (!node.tested) return [];
  const threshold = inputs?.threshold ?? null;
  if (u !== null && accept !== null) return pairs(u, u < accept ? "<" : "≥", accept, rule);
  if (threshold !== null && p !== null) return pairs(p, p > threshold ? ">" : "≤", threshold, rule);
  if (rule === "greedy") return accepted ? ["= most likely", "= top", "="] : ["≠ most likely", "≠ top", "≠"];
  if (rule) return [rule];
  return p === null ? [] : [`p ${decimals(p, 2)}`];
}

function pairs(a, sign, b, rule) {
  const digits = [2, 3, 4].find((n) => decimals(a, n) !== decimals(b, n)) ?? 4,
    [left, right] = [decimals(a, digits), decimals(b, digits)];
  return [...(rule ? [`${left} ${sign} ${right} ${rule}`] : []), `${left} ${sign} ${right}`, `${left}${sign}${right}`];
}

/** Format a probability as short as possible: ".43"; "0" and "1" only for exact values. Pure. */
export function decimals(v, digits) {
  return v === 0 || v === 1 ? `${v}` : v.toFixed(digits).replace(/^0\./, ".");
}

/** Describe a node for screen readers and tooltips. Pure. @param {boolean} awaited  not verified yet */
export function sentence(node, folded = 0, awaited = false) {
  if (node.kind === "root")
    return [`“${visible(node.text)}”`, "committed", foldedWords(folded)].filter(Boolean).join(", ");
  const figure = (name, v) => (v === null || v === undefined ? "" : `${name} ${v.toFixed(2)}`);
  if (awaited)
    return [`“${visible(node.text)}”`, "drafted, not verified yet", figure("q", node.q), node.grown, foldedWords(folded)]
      .filter(Boolean)
      .join(", ");
  const [testText] = test({ ...node, rule: node.rule === "greedy" ? node.rule : null }),
    why =
      testText && node.u !== null
        ? `u ${testText}`
        : testText && node.inputs?.threshold !== undefined && node.u === null && node.inputs.threshold !== null
          ? `p ${testText}`
          : testText;
  const verdict = node.kind === "discarded" ? "discarded: never tested" : node.kind;
  return [
    `“${visible(node.text)}”`,
    why ? `${verdict}: ${why}` : verdict,
    node.rule && node.rule !== testText ? `rule: ${node.rule}` : "",
    figure("p", node.p),
    figure("q", node.q),
    node.source ? `drafted by ${node.source}` : "",
    node.grown,
    foldedWords(folded),
  ]
    .filter(Boolean)
    .join(", ");
}

const foldedWords = (n) => (n ? `${n} folded after it` : "");
