/** Counts and look-ups of the Vision tab in a trace. Pure. The counts are defined as in `workbench/trace/metrics.py`;
 *  a test compares both. */

/** A token needs the image if blanking the image lowers the target's probability of the token by at least this. */
export const GROUNDED = 0.2;
/** Definition of "needs the image", for the page. */
export const NEEDS = `picture words need the image: the target's probability of the token falls by ${GROUNDED} or more when the image is blanked. This can hold for “on” or “,”; it does not depend on the kind of word.`;
/** Kind of a word that the lexicon lacks; `UNLISTED` is its name on the page. */
export const OTHER = "other";
export const UNLISTED = "not listed";
/** A word depends on a patch whose weight is at least this share of the word's largest weight. */
const MIN_WEIGHT_SHARE = 0.5;
const MOST_WORDS = 8;

/** Return every emitted token in order. @returns {{index: number, round: number, k: number, text: string, kind: string,
 *  p:
 *  number}[]} */
export function tokens(rounds) {
  const out = [];
  for (const r of rounds)
    r.emitted.forEach((e, k) => out.push({ index: out.length, round: r.index, k, text: e.text, kind: e.kind, p: e.p }));
  return out;
}

/** Return for each emitted token whether it needs the image; null before the attribution was computed. */
export function grounded(trace) {
  const blind = trace.attribution?.p_blind;
  return Array.isArray(blind)
    ? tokens(trace.rounds)
        .slice(0, blind.length)
        .map((t, i) => t.p - blind[i] >= GROUNDED)
    : null;
}

/** Return for each emitted token the kind of its word. @param {Record<string, string>} lexicon  word → kind */
export function wordKinds(rounds, lexicon) {
  return words(rounds).kinds.map((word) => (word === null ? OTHER : (lexicon[word.toLowerCase()] ?? OTHER)));
}

/** Match tokens to words: for each token the first word that it contains a part of, or null. */
function words(rounds) {
  const list = tokens(rounds), text = list.map((t) => t.text).join(""), found = [...text.matchAll(/[\p{L}\p{N}]+/gu)];
  let at = 0, first = 0;
  const of = list.map((t) => {
    const start = at, end = (at += t.text.length); // a token without text belongs to the surrounding word
    while (first < found.length && found[first].index + found[first][0].length <= start) first += 1;
    const word = found[first];
    return word && word.index < end ? word : null;
  });
  return { kinds: of.map((word) => word?.[0] ?? null), of };
}

/** Return the whole word of a token. */
export function wordOf(rounds, index) {
  return words(rounds).kinds[index] ?? tokens(rounds)[index]?.text ?? "";
}

/** Count the positions with a tested draft, and those with an accepted one, among the chosen tokens.
 *  @param {boolean[]} chosen  one entry per token; tokens after its end are left out  @returns {[number, number]} */
export function acceptanceWhere(rounds, chosen) {
  let tested = 0, accepted = 0;
  for (const t of tokens(rounds)) {
    if (!chosen[t.index] || t.kind === "bonus" || t.kind === "plain") continue;
    tested += 1;
    accepted += t.kind === "accepted" ? 1 : 0;
  }
  return [tested, accepted];
}

/** Return [tested, accepted] of tokens that need the image and of the others; null before the attribution. */
export function split(trace) {
  const of = grounded(trace);
  return of === null
    ? null
    : {
        grounded: acceptanceWhere(trace.rounds, of),
        language: acceptanceWhere(
          trace.rounds,
          of.map((g) => !g),
        ),
      };
}

/** Return the headline of one run: accepted drafts among picture words, those that need the image, and among other
 *  words; null before the attribution.
 *  @returns {{picture: {share: string, counts: string}, other: {share: string, counts: string}}|null} */
export function headline(trace) {
  const parts = split(trace);
  const of = ([tested, accepted]) => ({
    share: tested ? `${Math.round((100 * accepted) / tested)} %` : "—",
    counts: tested ? `${accepted}/${tested} tested` : "none tested",
  });
  return parts && { picture: of(parts.grounded), other: of(parts.language) };
}

/** Return the index of the last token that has visible text and is no marker; −1 if there is none. */
export function lastWord(rounds) {
  return words(rounds).kinds.findLastIndex((word) => word !== null);
}

/** Return kind of word → [tested, accepted], without kinds that do not occur. */
export function byKind(rounds, lexicon) {
  const kinds = wordKinds(rounds, lexicon);
  return Object.fromEntries(
    [...new Set(kinds)].sort().map((kind) => [
      kind,
      acceptanceWhere(
        rounds,
        kinds.map((k) => k === kind),
      ),
    ]),
  );
}

// -- Vision data per round -------------------------------------------------------------------------------------------

/** Return the vision data of target and drafter in a round: the latest record up to it. `pictures`: the target's
 *  images; `shown`: the drafter's; `since`: the round of the record, -1 if there is none. */
export function visionData(header, rounds, upTo) {
  const seen = { pictures: header?.pictures ?? [], shown: header?.pictures ?? [], since: -1 };
  for (const { index, vision } of rounds.slice(0, upTo + 1)) {
    if (!vision || !Object.keys(vision).length) continue;
    const { pictures, sees: visionTokensText, target_pictures: forTarget, ...changes } = vision;
    Object.assign(seen, changes, { since: index });
    if (!pictures?.length) continue;
    seen.shown = pictures;
    if (visionTokensText !== "drafter") seen.pictures = pictures;
    // both got a new image, then the drafter another one
    else if (forTarget?.length) seen.pictures = forTarget;
  }
  return seen;
}

/** Return the rounds before which an image changed: {index, text}. */
export function pictureMarks(rounds) {
  return rounds
    .filter((r) => r.vision?.pictures?.length)
    .map((r) => ({
      index: r.index,
      text: r.vision.sees === "drafter" && !r.vision.target_pictures?.length ? "drafter's image" : "image changed",
    }));
}

/** Return the vision tokens of one image among all: [start, end) in the order of the prompt. */
export function span(pictures, i) {
  const size = (p) => p.end - p.start, start = pictures.slice(0, i).reduce((sum, p) => sum + size(p), 0);
  return [start, start + (pictures[i] ? size(pictures[i]) : 0)];
}

/** Return how the drafter takes the image: "none", "all", "kept", "pooled", "queries" or "unknown". */
export function mode(seen) {
  if (seen.since < 0) return "unknown";
  if (!seen.n_drafter) return "none";
  if (seen.weights?.length) return "queries";
  if (seen.blocks?.length) return "pooled";
  if (seen.kept && seen.kept.length < seen.n_target) return "kept";
  return "all";
}

/** Describe the drafter's vision tokens. */
export function visionTokensText(seen) {
  const n = seen.n_drafter, of = seen.n_target, s = (k, word) => `${k} ${word}${k === 1 ? "" : "s"}`;
  const texts = {
    unknown: () => "not recorded",
    none: () => "no vision tokens",
    all: () => `all ${n}`,
    kept: () => `${seen.kept.length} patches kept, ${of - seen.kept.length} dropped`,
    pooled: () => `${s(n, "block")} of ${of} patches`,
    queries: () => `${s(n, "query").replace("querys", "queries")} over ${of} patches`,
  };
  return texts[mode(seen)]();
}

const WAYS = {
  prune: "pruned: a random subset of the patches is kept",
  pool: "pooled: each vision token is the mean of a block of patches",
  conv: "convolved: each vision token is a learned convolution of a block of patches",
  resample: "resampled: each vision token is a learned query's weighted sum of projected patches",
  latent: "latents: each vision token is a learned query's weighted sum of the target's hidden states",
};

/** Describe how the drafter's compressor reduces the number of vision tokens; empty if it has none. Pure. */
export function compressorText(compressor) {
  return WAYS[compressor] ?? compressor ?? "";
}

/** Return the gate's chosen entry and its weight, or null. @returns {{name: string, weight: number}|null} */
export function gateChoice(seen) {
  const all = Object.entries(seen.gate ?? {});
  return all.length
    ? all.map(([name, weight]) => ({ name, weight })).reduce((a, b) => (b.weight > a.weight ? b : a))
    : null;
}

// -- Attention of words to patches ------------------------------------------------------------------------------------

/** Return the maps of target or drafter, as [token][vision token] of 0–255, or null. */
export function maps(attribution, model, measure) {
  const found = attribution?.[model]?.[measure];
  return Array.isArray(found) && found.length ? found : null;
}

/** Return the weights of a token over the patches of one image, scaled to a maximum of 1; null if it has none. */
export function patchWeights(all, index, within) {
  const [start, end] = within;
  const row = all?.[index]?.slice(start, end);
  return row?.length ? row.map((w) => w / 255) : null;
}

/** Return for each token its weight on a patch, as a share of its largest weight. */
export function weightsOnPatch(all, patch) {
  return (all ?? []).map((row) => (row[patch] ?? 0) / 255);
}

/** Return the words with the largest weights on a patch. @returns {{index: number, text: string, weight: number}[]} */
export function wordsOnPatch(rounds, all, patch) {
  const { of } = words(rounds), weights = weightsOnPatch(all, patch), found = new Map();
  of.forEach((word, index) => {
    if (word === null || !(weights[index] >= MIN_WEIGHT_SHARE)) return;
    const known = found.get(word);
    if (!known || known.weight < weights[index])
      found.set(word, { index: known?.index ?? index, text: word[0], weight: weights[index] });
  });
  return [...found.values()].sort((a, b) => b.weight - a.weight).slice(0, MOST_WORDS);
}

/** Name the place of a patch: "row 3, column 4". */
export function place(patch, cols) {
  return `row ${Math.floor(patch / cols) + 1}, column ${(patch % cols) + 1}`;
}

// -- Figures ----------------------------------------------------------------------------------------------------------

/** Format bytes. */
export function bytes(n) {
  return n === null || n === undefined
    ? "–"
    : n >= 1e6
      ? `${(n / 1e6).toFixed(1)} MB`
      : n >= 1e3
        ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB`
        : `${n} B`;
}

/** Format seconds as milliseconds. */
export function ms(s) {
  return s === null || s === undefined ? "–" : `${(1e3 * s).toFixed(s < 0.1 ? 1 : 0)} ms`;
}

/** Return the key figures of a run, compared with a second run or null.
 *  @param {{trace: object, figures: object, seen: object, name: string}} run  @param {object|null} beside  the same
 *  @param {object} speed  the speed-up, of `speedup.figure`  @param {Record<string, [string, string]>} definitions */
export function items(run, beside, speed, definitions) {
  const formula = (name) => definitions[name]?.[1] ?? "",
    dash = "—",
    percent = ([tested, accepted]) => (tested ? `${Math.round((100 * accepted) / tested)} %` : dash),
    counts = ([tested, accepted]) => (tested ? `${accepted}/${tested}` : "");
  const other = beside ? `vs ${beside.name}` : "";
  const { figures, seen } = run,
    parts = split(run.trace),
    theirs = beside ? split(beside.trace) : null,
    versus = (of) =>
      [parts && counts(of(parts)), theirs && `vs ${percent(of(theirs))} ${counts(of(theirs))}`]
        .filter(Boolean)
        .join(" ")
        .trim();
  const counted = (of, side) =>
    side ? `${of(side)[1]} of ${of(side)[0]} tested` : "available after the run has ended";
  const both = (of) =>
    [counted(of, parts), theirs ? `second run: ${counted(of, theirs)}` : ""].filter(Boolean).join("; ");
  const share = (id, label, of, name) => ({
    id,
    value: parts ? percent(of(parts)) : dash,
    unit: versus(of),
    label,
    formula: formula(name),
    worked: both(of),
  });
  return [
    { id: "speedup", ...speed, formula: formula("speedup_vs_autoregressive") },
    {
      id: "tau",
      value: figures.tau === null ? dash : figures.tau.toFixed(2),
      unit: beside && beside.figures.tau !== null ? `vs ${beside.figures.tau.toFixed(2)}` : "",
      label: "τ, tokens per round",
      formula: formula("tau"),
      worked: [figures.rounds ? `${figures.tokens} tokens / ${figures.rounds} rounds` : "", other]
        .filter(Boolean)
        .join("; "),
    },
    share("grounded", "accepted, needs the image", (x) => x.grounded, "grounded_acceptance"),
    share("language", "accepted, does not need the image", (x) => x.language, "language_acceptance"),
    {
      id: "tokens",
      value: seen.since < 0 ? dash : `${seen.n_drafter}`,
      unit: seen.since < 0 ? "" : `of ${seen.n_target}`,
      label: "vision tokens of the drafter",
      formula: "vision tokens in the drafter's KV cache / vision tokens in the target's KV cache",
      worked:
        seen.since < 0
          ? ""
          : `KV cache: ${bytes(seen.drafter_bytes)} drafter, ${bytes(seen.target_bytes)} target`,
    },
    {
      id: "prefill",
      value: seen.since < 0 || seen.drafter_prefill_s === null ? dash : ms(seen.drafter_prefill_s).replace(" ms", ""),
      unit: seen.since < 0 ? "" : `ms, target ${ms(seen.target_prefill_s).replace(" ms", "")}`,
      label: "drafter prefill",
      formula: "wall time of the drafter's prefill (prompt and vision tokens), and of the target's",
      worked: "",
    },
  ];
}

/** Return the rows of the chart "acceptance by kind of word": counts of both runs for each kind that occurs. */
export function kindRows(run, beside, lexicon) {
  const mine = byKind(run.rounds, lexicon), theirs = beside ? byKind(beside.rounds, lexicon) : {};
  const kinds = [...new Set([...Object.keys(mine), ...Object.keys(theirs)])].filter(
    (k) => (mine[k]?.[0] ?? 0) + (theirs[k]?.[0] ?? 0) > 0,
  );
  return kinds
    .sort((a, b) => Number(a === OTHER) - Number(b === OTHER) || a.localeCompare(b))
    .map((kind) => ({ kind, mine: mine[kind] ?? [0, 0], theirs: beside ? (theirs[kind] ?? [0, 0]) : null }));
}
