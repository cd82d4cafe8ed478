/** Reader of trace files in the browser: JSON, or JSON Lines as the command line and the Export menu write it. */

export const MAX_BYTES = 64 * 1024 * 1024;
/** First schema whose traces hold everything that is drawn. Later schemas added images, which text runs lack, and the
 *  rule of each node, which the card can do without. */
const WHOLE = 1;
const MAX_ROUNDS = 20000, MAX_NODES = 512;
const COLUMNS = ["tokens", "parents", "depth", "position", "text", "p", "q", "accept", "u", "status", "source"];
const STATUSES = ["accepted", "rejected", "discarded"], KINDS = ["accepted", "corrected", "bonus", "plain"];

/** Error of a trace file, with a remedy. */
export class TraceError extends Error {
  constructor(message, remedy) {
    super(message);
    this.remedy = remedy;
  }
}

/** Read a trace from the text of a file. Pure.
 *  @param {string} text  @param {number} schema  newest schema that this workbench reads
 *  @returns {{trace: {header: object, rounds: object[], footer: object|null, attribution: object|null}, notes:
 *    string[]}}
 *  @throws {TraceError} */
export function read(text, schema) {
  const { header, rounds, footer, attribution } = parse(text);
  if (header === null || typeof header !== "object")
    throw new TraceError("The file has no header.", "Choose a trace that the workbench exported.");
  const written = header.schema ?? 0, notes = [];
  if (written > schema)
    throw new TraceError(
      `The trace has schema ${written}; this workbench reads up to ${schema}.`,
      "Update the workbench to open it.",
    );
  if (written < Math.min(schema, WHOLE))
    notes.push(`The trace was written by an older schema (${written || "none"}); missing fields are not shown.`);
  if (!rounds.length) throw new TraceError("The trace has no rounds.", "Export a run after its first round.");
  if (rounds.length > MAX_ROUNDS)
    throw new TraceError(`The trace has ${rounds.length} rounds; at most ${MAX_ROUNDS} can be shown.`, "Shorten the file.");
  const readable = [];
  for (const [i, round] of rounds.entries()) {
    const problem = roundProblem(round, i);
    if (problem) {
      if (!readable.length)
        throw new TraceError(`Round ${i + 1} of the trace cannot be read: ${problem}.`, "Export the run again.");
      notes.push(`The trace is truncated: round ${i + 1} of ${rounds.length} cannot be read (${problem}).`);
      break;
    }
    readable.push({
      ...DEFAULTS,
      ...round,
      nodes: { rule: round.nodes.tokens.map(() => null), inputs: {}, ...round.nodes },
    });
  }
  if (!footer && readable.length === rounds.length)
    notes.push("The trace is truncated: it has no footer, so the run had not ended when it was written.");
  const strings = (list) => (Array.isArray(list) && list.every((t) => typeof t === "string") ? list : null);
  const known = {
    target: "unknown",
    method: readable[0].method ?? "",
    params: {},
    promise: "",
    seed: 0,
    max_new_tokens: 0,
    dtype: "",
    device: "",
    drafter: null,
    simulation: false,
    ...header,
    prompt: String(header.prompt ?? ""),
    prompt_text: strings(header.prompt_text) ?? [String(header.prompt ?? "")],
    prompt_tokens: Array.isArray(header.prompt_tokens) ? header.prompt_tokens : [],
    pictures: Array.isArray(header.pictures) ? header.pictures : [],
    rules: Object.fromEntries(Object.entries(header.rules ?? {}).filter(([, rule]) => isRule(rule))),
  };
  if (!known.pictures.every(isDrawableImage))
    throw new TraceError("An image of the trace cannot be read.", "Export the run again.");
  const trace = { header: known, rounds: readable, footer: footer ?? null, attribution: attribution ?? null };
  return { trace, notes };
}

const DEFAULTS = {
  top_p: [],
  top_q: [],
  ranking: [],
  entropy: [],
  phases: [],
  changes: [],
  notes: [],
  signals: {},
  vision: {},
  params: {},
  started_s: 0,
  seconds: 0,
  draft_s: 0,
  verify_s: 0,
  overhead_s: 0,
  waited_s: 0,
  shared: {},
  draft_forwards: 0,
  target_forwards: 1,
  bonus: null,
  bonus_kind: null,
  revoked: [],
  placed: [],
  probes: [],
  grown: null,
};

function parse(text) {
  try {
    const whole = JSON.parse(text);
    if (whole && Array.isArray(whole.rounds))
      return {
        header: whole.header ?? null,
        rounds: whole.rounds,
        footer: whole.footer ?? null,
        attribution: whole.attribution ?? null,
      };
  } catch { /* not one JSON object: try JSON Lines */ }
  const found = { header: null, rounds: [], footer: null, attribution: null },
    lines = text.split("\n").filter((line) => line.trim());
  for (const [i, line] of lines.entries()) {
    let event;
    try {
      event = JSON.parse(line);
    } catch {
      if (i === lines.length - 1 && found.header) break; // the last line is cut: use the lines before it
      throw new TraceError(`Line ${i + 1} of the file is not JSON.`, "Choose a trace as JSON or JSON Lines.");
    }
    if (event?.event === "header") found.header = event;
    else if (event?.event === "round") found.rounds.push(event);
    else if (event?.event === "footer" || event?.event === "attribution") found[event.event] = event;
  }
  return found;
}

/** Return whether a URL is a PNG data URL and nothing else: drawing it fetches nothing, and it has no quote that could
 *  end an attribute of an exported page. Pure. */
export function isPngUrl(url) {
  return typeof url === "string" && /^data:image\/png;base64,[A-Za-z0-9+/=]*$/.test(url);
}

/** Return whether an image can be drawn without fetching anything: its URL is a PNG data URL. */
function isDrawableImage(p) {
  return (
    isPngUrl(p?.url) &&
    ["width", "height", "rows", "cols", "start", "end"].every((name) => Number.isInteger(p[name]) && p[name] >= 0)
  );
}

/** Return whether all fields of a rule are text. */
function isRule(rule) {
  const texts = (some) =>
    some && typeof some === "object" && Object.values(some).every((text) => typeof text === "string");
  return (
    texts(rule && { ...rule, places: "", because: "", leviathan: "" }) && texts(rule.places) && texts(rule.because)
  );
}

/** Return whether the columns that older schemas lack are absent, or as long as the tree and of the right type. */
function hasValidTests({ tokens, rule = [], inputs = {} }) {
  const whole = (column, kind) =>
    Array.isArray(column) && column.length === tokens.length && column.every((v) => v === null || typeof v === kind);
  return (
    (!rule.length || whole(rule, "string")) &&
    inputs !== null &&
    typeof inputs === "object" &&
    Object.values(inputs).every((column) => whole(column, "number"))
  );
}

/** Return whether a round's tentative tokens (placed after the text, or revoked) are valid; older schemas have none. */
function hasValidTentative({ placed = [], revoked = [] }) {
  const isToken = (t) => Number.isInteger(t?.position) && typeof t.text === "string" && typeof t.p === "number";
  return Array.isArray(placed) && placed.every(isToken) && Array.isArray(revoked) && revoked.every(Number.isInteger);
}

/** Return whether the probe tokens of a draft of n nodes are valid: each follows an earlier node or probe; older
 *  schemas have none. */
function hasValidProbes({ probes = [] }, n) {
  return (
    Array.isArray(probes) &&
    probes.every(
      (t, i) =>
        typeof t?.text === "string" &&
        typeof t.source === "string" &&
        Number.isInteger(t.position) &&
        Number.isInteger(t.parent) &&
        t.parent >= -1 &&
        t.parent < n + i,
    )
  );
}

/** Return why a round cannot be drawn; empty if it can. */
function roundProblem(round, index) {
  const { nodes, emitted, path } = round ?? {};
  if (!nodes || !Array.isArray(emitted) || !Array.isArray(path)) return "nodes, path or emitted is missing";
  if (round.index !== index) return `its index is ${round.index} instead of ${index}`;
  const n = nodes.tokens?.length;
  if (COLUMNS.some((name) => !Array.isArray(nodes[name]) || nodes[name].length !== n))
    return "the columns of its nodes differ in length";
  if (!hasValidTests(nodes)) return "the columns of its nodes differ in length";
  if (n > MAX_NODES) return `it has ${n} nodes, at most ${MAX_NODES} can be shown`;
  if (nodes.parents.some((parent, i) => !Number.isInteger(parent) || parent < -1 || parent >= i))
    return "a node comes before its parent";
  if (nodes.status.some((status) => !STATUSES.includes(status))) return "a node has an unknown status";
  if (nodes.text.some((t) => typeof t !== "string") || nodes.p.some((p) => typeof p !== "number"))
    return "a node has no text or no probability";
  if (path.some((i) => !Number.isInteger(i) || i < 0 || i >= n)) return "its path has a node that is not in the tree";
  if (
    [round.vision?.pictures, round.vision?.target_pictures].some(
      (some) => some && !(Array.isArray(some) && some.every(isDrawableImage)),
    )
  )
    return "its vision data cannot be read";
  if (emitted.some((e) => typeof e?.text !== "string" || !KINDS.includes(e.kind))) return "a token is incomplete";
  if (!hasValidProbes(round, n)) return "a probe position is incomplete, or comes before its parent";
  if (!hasValidTentative(round)) return "a tentative or revoked token is invalid";
  return "";
}
