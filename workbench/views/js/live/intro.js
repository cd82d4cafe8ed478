/** Introduction: one sentence on speculative decoding, and its three steps with the data of the selected round. */

import * as kit from "../shared/kit.js";
import { h, visible, write } from "../shared/kit.js";
import { ownToken } from "../shared/store.js";
import * as ribbon from "../shared/ribbon.js";

/** Name of the preference: the introduction is shown until the reader closes it. */
export const PREFERENCE = "wb-intro";
const STEPS = ["Draft", "Verify", "Keep"];
const MOST_WORDS = 6;

const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
const ms = (seconds) => `${(1e3 * seconds).toFixed(1)} ms`;

/** Return the texts of the three steps for a round. Pure.
 *  @param {any} round  null: none yet  @param {{tested: number, line: object[]}|null} arriving  of a round whose
 *    results appear one by one
 *  @returns {{active: number, steps: {tokens: [string, string][], text: string}[]}}  `active`: index of the step in
 *    progress, -1 if the round is complete; tokens as [text, status] */
export function steps(round, arriving = null) {
  if (!round) return { active: -1, steps: STEPS.map((_, i) => ({ tokens: [], text: EMPTY[i] })) };
  const { nodes } = ribbon.legible(round), tested = round.nodes.status.filter((s) => s !== "discarded").length;
  const n = nodes.text.length, own = ownToken(round), first = line(round);
  const kept = [...round.path.map((i) => [visible(nodes.text[i]), "accepted"]), ...(own ? [[ribbon.tokenText(round, own), own.kind]] : [])];
  const verified = n ? `all ${n} drafts` : "one token";
  return {
    active: arriving ? (arriving.tested ? 1 : 0) : -1,
    steps: [
      {
        tokens: first.map((i) => [visible(nodes.text[i]), "drafted"]),
        text: n ? `${plural(n, "token")} in ${plural(round.draft_forwards, "cheap step")}, ${ms(round.draft_s)}` : "no draft in this round",
      },
      {
        tokens: arriving ? [] : first.filter((i) => round.nodes.status[i] !== "discarded").map((i) => [visible(nodes.text[i]), round.nodes.status[i]]),
        text: `${plural(round.target_forwards, "target pass", "target passes")} for ${verified}, ${ms(round.verify_s)}`,
      },
      {
        tokens: arriving ? [] : /** @type {[string, string][]} */ (kept),
        text: arriving
          ? `${tested} to test`
          : `${round.path.length ? `${round.path.length} accepted` : "none accepted"}${own ? ` + 1 ${own.kind === "plain" ? "from the target" : own.kind}` : ""}`,
      },
    ],
  };
}

const EMPTY = [
  "A cheap drafter guesses the next tokens.",
  "The target model checks all of them in one pass.",
  "Right guesses stay; the first wrong one is corrected.",
];

/** Return the nodes of the drafted path to show: the accepted one, or the most probable one, and what follows it. */
function line({ nodes, path }) {
  const out = [...path];
  for (let parent = out.at(-1) ?? -1; out.length < MOST_WORDS; parent = out.at(-1)) {
    const next = nodes.parents.indexOf(parent);
    if (next < 0) break;
    out.push(next);
  }
  return out.slice(0, MOST_WORDS);
}

/** Build the card. */
export function build(parts) {
  parts.introSteps = h(
    "ol",
    { className: "wb-introsteps" },
    ...STEPS.map((name, i) => {
      const item = h("li", {}, h("b", {}, `${i + 1} ${name}`));
      Object.assign(item, { _tokens: h("span", { className: "wb-introtokens" }), _text: h("small") });
      item.append(item._tokens, item._text);
      return item;
    }),
  );
  parts.intro = h(
    "section",
    { className: "wb-card wb-welcome", hidden: true },
    h("h2", {}, "A cheap drafter guesses, the target model checks, and you get the same text sooner."),
    h(
      "p",
      {},
      "One pass of a large model takes nearly as long for ten tokens as for one, so checking guesses is cheap. ",
      (parts.introTour = h("button", { type: "button", className: "wb-link" }, "New here? Two-minute tour")),
    ),
    parts.introSteps,
    (parts.introClose = h("button", { type: "button", className: "wb-tool wb-welcomeclose", title: "Hide the introduction" }, "×")),
  );
  kit.set(parts.introClose, { "aria-label": "Hide the introduction" });
  kit.set(parts.intro, { "aria-label": "Introduction" });
  return parts.intro;
}

/** Draw the three steps of a round. @param {any} parts
 *  @param {{open: boolean, round: any, arriving: any}} data  `round`: the one on display, or null */
export function render(parts, { open, round, arriving }) {
  parts.intro.hidden = !open;
  if (!open) return;
  const { active, steps: all } = steps(round, arriving);
  all.forEach(({ tokens, text }, i) => {
    const item = parts.introSteps.children[i];
    kit.set(item, { "aria-current": i === active ? "step" : "false" });
    kit.resize(item._tokens, tokens.length, () => h("span"));
    tokens.forEach(([word, status], k) => {
      const el = item._tokens.children[k], name = `is-${status}`;
      write(el, word);
      if (el.className !== name) el.className = name;
    });
    write(item._text, text);
  });
}
