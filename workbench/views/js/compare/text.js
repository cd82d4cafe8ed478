/** Comparison of the lanes' texts with plain decoding's. */

import * as controls from "../shared/controls.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

const NEAR = 0.05;

/** Return the verdict on a lane's text. Pure.
 *  @param {object} lane  with `exact` from `workbench.bench.text_comparison.text_exactness`
 *  @param {string[]} prompts  names of the prompts
 *  @returns {{mark: string, text: string, why: string}} */
export function verdict(lane, prompts) {
  const { exact } = lane;
  if (!exact) return { mark: "–", text: lane.error ? "not measured" : "no comparison: plain decoding, the reference, was not measured", why: "" };
  if (exact.kind === "reference")
    return {
      mark: "",
      text: "the reference",
      why: exact.runs > 1 ? `identical text in ${exact.identical} of ${exact.runs} repeats` : "",
    };
  if (exact.kind === "identical")
    return { mark: "✓", text: `identical text in ${exact.identical} of ${exact.runs} runs`, why: "token for token" };
  const first = exact.first ? place(exact.first, prompts) : "";
  if (exact.kind === "distribution") {
    if (exact.promise === "exact" || exact.promise === "simulation")
      return {
        mark: "≈",
        text: "same distribution, not same text",
        why: exact.evidence || `promised by the method; test it with: workbench check ${lane.method}`,
      };
    return {
      mark: "≠",
      text: `${exact.promise}: not the target's distribution`,
      // comparing sampled texts shows nothing: the texts of exact lanes differ as early
      why: exact.evidence || "for its total variation distance and gain in acceptance, see each run in the Live view",
    };
  }
  const margin = exact.first?.margin;
  const reading =
    exact.promise === "approximate"
      ? `${exact.promise}: its text may differ from plain decoding's`
      : margin !== null && margin !== undefined && Math.abs(margin) < NEAR
        ? "a near tie of two tokens, decided by rounding, which depends on the shapes of the kernels; workbench doctor distinguishes rounding from a bug"
        : "the method is lossless, so the texts should agree; workbench doctor distinguishes rounding from a bug";
  return {
    mark: "✕",
    text: `identical text in ${exact.identical} of ${exact.runs} runs`,
    why: [first, reading].filter(Boolean).join(" · "),
  };
}

/** Describe the first difference of two texts, with the target's margin. Pure. */
export function place(first, prompts) {
  const quote = (side) => (side ? `“${visible(side.text)}”` : "the end");
  const margin =
    first.margin === null
      ? ""
      : `: the target's logits of the two tokens differ by ${first.margin.toFixed(Math.abs(first.margin) < 0.1 ? 4 : 2)} nats`;
  const p = (side) => (side?.p === undefined ? "" : ` (p ${side.p.toFixed(3)})`);
  const prompt = prompts[first.prompt] ?? `prompt ${first.prompt + 1}`;
  return `first difference at token ${first.at + 1} of ${prompt}: plain decoding has ${quote(first.plain)}${p(first.plain)}, this lane ${quote(first.other)}${p(first.other)}${margin}`;
}

function visible(text) {
  return text === "" ? "·" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

/** Draw the panel: one row per lane. */
export function exact(page) {
  const { parts, comparison } = page, names = comparison.prompts.map((p) => p.name);
  const note = (parts.exact._note ??= parts.exact.appendChild(
    h("div", { className: "wb-verdictnote" }, h("small"), " ", h("a", { href: `${page.host.base}/methods` }, "exactness board")),
  ));
  while (parts.exact.childElementCount > comparison.lanes.length + 1) note.previousSibling.remove();
  while (parts.exact.childElementCount < comparison.lanes.length + 1)
    note.before(h("div", { className: "wb-verdict" }, h("b"), h("span", {}, h("span"), h("small"))));
  comparison.lanes.forEach((lane, i) => {
    const row = parts.exact.children[i], result = verdict(lane, names);
    row.hidden = lane.plain && comparison.settings.greedy === false;
    row.dataset.lane = lane.name;
    row.dataset.kind = lane.exact?.kind ?? "none";
    kit.write(row.firstChild, lane.name);
    kit.write(row.lastChild.firstChild, `${result.mark} ${result.text}`.trim());
    kit.write(row.lastChild.lastChild, result.why);
  });
  kit.write(
    note.firstChild,
    comparison.settings.greedy
      ? "Greedy: an exact method's text equals plain decoding's, token for token. Test results of all methods:"
      : "Sampling: an exact method has the target's distribution, but the same seed gives another text. Test results of all methods:",
  );
  kit.write(
    parts.exactNote,
    [comparison.settings.greedy ? "greedy" : `temperature ${comparison.settings.sampling.temperature}`, comparison.settings.dtype]
      .filter(Boolean)
      .join(", "),
  );
}

/** Draw both texts as one, with the differences marked. */
export function texts(page) {
  const { parts, comparison, prompt } = page, others = comparison.lanes.filter((lane) => lane.differences?.[prompt]);
  parts.textsCard.hidden = !others.length;
  if (!others.length) return;
  const lane = others.find((each) => each.name === page.shown) ?? others[0];
  controls.select(parts.lane, others.map((each) => ({ value: each.name, text: each.name })), lane.name);
  const pieces = lane.differences[prompt], same = pieces.every(([kind]) => kind === "same");
  while (parts.texts.childElementCount > pieces.length) parts.texts.lastChild.remove();
  pieces.forEach(([kind, text], i) => {
    const tag = { same: "SPAN", plain: "DEL", lane: "INS" }[kind];
    let piece = parts.texts.children[i];
    if (piece?.tagName !== tag) {
      const fresh = h(tag.toLowerCase());
      if (piece) piece.replaceWith(fresh);
      else parts.texts.append(fresh);
      piece = fresh;
    }
    kit.write(piece, text);
  });
  kit.write(
    parts.textsNote,
    `${comparison.prompts[prompt].name} · ${same ? "no difference" : `${pieces.filter(([kind]) => kind !== "same").length} differing pieces`}`,
  );
}
