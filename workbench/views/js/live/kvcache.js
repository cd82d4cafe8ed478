/** KV cache of the target in one round: entries committed before it, entries that its forward pass writes for the last
 *  token and the draft tree, and those that verification keeps. Pure.
 *
 *  The newest token of the text has no entry yet: the next forward pass writes it. That pass therefore reads it as the
 *  root of the draft tree; the token that the target adds at the end of a round gets its entry in the next round.
 *
 *  @typedef {{id: number, kind: string, text: string, at: number, kept: number|null}} Entry
 *    `id`: node, −1: root; `at`: cache position that the forward pass writes; `kept`: cache position after
 *    verification, null: dropped; `kind`: "root", a status, or "probe" (`id` is then null)
 *  @typedef {{why: string, before: number|null, entries: Entry[], after: number, dropped: number, earlier: number,
 *    own: {kind: string, text: string}|null, stream: {sinks: number, gone: number, recent: number}|null}} Cache
 *    `why`: reason why the cache is not shown, empty if it is; `before`, `after`: number of positions, `before` null:
 *    not recorded; `earlier`: positions of earlier rounds that this round drops; `own`: the target's own token;
 *    `stream`: of a streaming cache, after the round: first positions kept, positions dropped so far, newest kept */

import { ownToken } from "../shared/store.js";
import { tentativeTokens } from "../shared/tentative.js";
import { ROOT, TARGET } from "./treemodel.js";

/** Signal of a streaming cache: number of its entries after the round. */
const ENTRIES = "KV cache entries";
const UNKNOWN =
  "The trace does not record the KV cache of this round: its decoder drafts no tree and can write at any position.";

/** Return the KV cache of a round.
 *  @param {any} round  @param {any[]} before  the rounds before it
 *  @param {{root?: string, words?: string[], textOf?: (round: any, emitted: any) => string}} [texts]  text of the root,
 *    of each node, and of the target's own token
 *  @returns {Cache} */
export function of(round, before, { root = "", words = round.nodes.text, textOf = (_, e) => e.text } = {}) {
  const none = { why: UNKNOWN, before: null, entries: [], after: 0, dropped: 0, earlier: 0, own: null, stream: null };
  const at = rootPosition(round);
  if (at === null) return none;
  if (round.signals?.[ENTRIES] !== undefined)
    return streaming(round, before.at(-1), at, { ...none, why: "" }, root, textOf);
  const { nodes } = round, last = lastPosition(round, before, at), own = at + round.path.length + 1;
  // a token that is taken back loses its entry, and the token before it gets one in the next round
  const takesBack = isTentative([...before, round]) && last < own;
  const after = takesBack ? last : Math.min(last, own - 1) + 1;
  const place = new Map(round.path.map((node, i) => [node, at + 1 + i]));
  const kept = (position) => (position !== undefined && position < after ? position : null);
  const entries = [
    { id: ROOT, kind: "root", text: root, at, kept: kept(at) },
    ...nodes.parents.map((_, i) => ({
      id: i, kind: nodes.status[i], text: words[i], at: at + 1 + i, kept: kept(place.get(i)),
    })),
    ...(round.probes ?? []).map((probe, i) => ({
      id: null, kind: "probe", text: probe.text ?? "", at: at + 1 + nodes.parents.length + i, kept: null,
    })),
  ];
  return {
    ...none,
    why: "",
    before: at,
    entries,
    after,
    dropped: entries.filter((e) => e.kept === null).length,
    earlier: Math.max(0, at - after),
    own: ownOf(round, last === own, textOf),
  };
}

/** Return the position in the text of the round's root, the last token before it; null if it is not recorded. */
function rootPosition({ nodes, emitted, bonus_kind, signals, placed, revoked }) {
  if (nodes.parents.length) return nodes.position[0] - nodes.depth[0];
  const isPlain = bonus_kind === "plain" || signals?.[ENTRIES] !== undefined;
  return isPlain && emitted.length === 1 && !placed?.length && !revoked?.length ? emitted[0].position - 1 : null;
}

/** Return the position of the text's last token after the round, tentative tokens included. */
function lastPosition(round, before, at) {
  const rounds = [...before, round];
  const last = tentativeTokens(rounds).at(-1) ?? rounds.findLast((r) => r.emitted.length)?.emitted.at(-1);
  return last?.position ?? rootPosition(rounds[0]) ?? at; // nothing but the prompt, whose last token is the first root
}

const isTentative = (rounds) => rounds.some((r) => r.placed?.length || r.revoked?.length);

function ownOf(round, isPresent, textOf) {
  const own = isPresent ? (ownToken(round) ?? (round.placed ?? []).at(-1)) : null;
  return own ? { kind: round.bonus_kind ?? "plain", text: textOf(round, own) } : null;
}

/** Return the cache of a round of a streaming decoder, which keeps the first positions and the newest ones. */
function streaming(round, previous, at, cache, root, textOf) {
  const after = round.signals[ENTRIES], gone = at + 1 - after, sinks = gone ? (round.params?.sinks ?? 0) : after;
  const before = previous?.signals?.[ENTRIES] ?? (gone ? null : at);
  return {
    ...cache,
    before,
    entries: [{ id: ROOT, kind: "root", text: root, at: before ?? at, kept: after - 1 }],
    after,
    earlier: before === null ? 0 : Math.max(0, before + 1 - after),
    own: { kind: "plain", text: textOf(round, round.emitted.at(-1)) },
    stream: gone ? { sinks, gone, recent: after - sinks } : null,
  };
}

/** Return the cell that a key selects: an entry of the tree, or the target's own token.
 *  @param {Cache} cache  @param {number|string|null} id  the selected cell  @returns {number|string|null} null: the key
 *    has no meaning here */
export function neighbour(cache, id, key) {
  const ids = [...cache.entries.flatMap((e) => (e.id === null ? [] : [e.id])), ...(cache.own ? [TARGET] : [])];
  const at = ids.indexOf(id ?? ROOT), to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: ids.length - 1 }[key];
  return to === undefined ? null : (ids[Math.max(0, Math.min(ids.length - 1, to))] ?? null);
}

// -- Words ---------------------------------------------------------------------------------------------------------

const places = (n) => `${n.toLocaleString("en")} ${n === 1 ? "position" : "positions"}`;

/** Describe the three states in one line. @param {Cache} cache  @returns {string} */
export function countWords({ before, entries, after, dropped, earlier }) {
  const written = entries.length, full = before === null ? "" : ` (${(before + written).toLocaleString("en")} in all)`;
  const lost = dropped + earlier;
  const fromEarlier = earlier ? ` (${earlier.toLocaleString("en")} from earlier rounds)` : "";
  const droppedText = lost ? `, ${lost.toLocaleString("en")} dropped${fromEarlier}` : "";
  return [
    before === null ? "earlier positions were not recorded" : `${places(before)} before`,
    `${written.toLocaleString("en")} written${full}`,
    `${places(after)} kept${droppedText}`,
  ].join(" → ");
}

/** Format bytes with three digits or more. @param {number} n */
export function bytes(n) {
  const [unit, size] = n >= 1e9 ? ["GB", 1e9] : n >= 1e6 ? ["MB", 1e6] : n >= 1e3 ? ["kB", 1e3] : ["bytes", 1];
  return `${(n / size).toFixed(size === 1 || n / size >= 100 ? 0 : n / size >= 10 ? 1 : 2)} ${unit}`;
}

/** Describe the memory: per position with its factors, and before, with all written, and after.
 *  @param {Cache} cache  @param {any} layout  `kv_cache` of the target, see `memory.kv_cache_layout`
 *  @param {string} [dtype]  dtype of the weights, as in the trace's header  @returns {string} empty: unknown */
export function memoryWords({ before, entries, after }, layout, dtype = "") {
  const one = layout?.bytes_per_position?.[dtype];
  if (!one) return "";
  const { layers, kv_heads: heads, head_dim: size } = layout, each = one / (2 * layers * heads * size);
  const states = [...(before === null ? [] : [before, before + entries.length]), after].map((n) => bytes(n * one));
  return `${bytes(one)} per position (keys and values × ${layers} layers × ${heads} KV heads × ${size} dimensions × ${each} bytes): ${states.join(" → ")}`;
}

/** Say which positions a streaming cache, or a model with sliding windows, keeps; empty for a full cache.
 *  @param {Cache} cache  @param {any} layout */
export function keepingWords({ stream }, layout) {
  const sliding = layout?.sliding;
  return [
    stream
      ? `Streaming cache: keeps the first ${places(stream.sinks)} (sinks) and the newest ${stream.recent.toLocaleString("en")}; ${stream.gone.toLocaleString("en")} in between dropped so far.`
      : "",
    sliding
      ? `${sliding.layers} of ${layout.layers} layers attend only to the last ${places(sliding.window)}; this cache keeps older positions of these layers, too.`
      : "",
  ]
    .filter(Boolean)
    .join(" ");
}

/** Describe an entry for screen readers and tooltips.
 *  @param {Entry} entry  @param {(text: string) => string} visible */
export function entryWords({ kind, text, at, kept }, visible, isAwaited = false) {
  const names = {
    root: "last token of the text", probe: "probe position, never accepted", discarded: "discarded, never tested",
  };
  const name = names[kind] ?? kind;
  const fate = isAwaited ? "not verified yet" : kept === null ? "dropped" : kept === at ? "kept" : `kept, moved to position ${kept}`;
  return `${text ? `“${visible(text)}”, ` : ""}${isAwaited ? "drafted" : name}, written at position ${at}: ${fate}`;
}
