/** Relations between two runs: corresponding places and differences. Pure.
 *
 *  A place is {round, token}: a round, and one of the tokens that the round emitted. */

/** Return all tokens of a run in order. @returns {{round: number, token: number, text: string, kind: string}[]} */
export function tokens(rounds) {
  return rounds.flatMap((r, round) => r.emitted.map((e, token) => ({ round, token, text: e.text, kind: e.kind })));
}

/** Return the index of a place among all tokens of its run; that of the round's first token if no token is named; −1 if
 *  the place does not exist. */
export function position(rounds, { round, token = null }) {
  const before = rounds.slice(0, round).reduce((n, r) => n + r.emitted.length, 0),
    own = rounds[round]?.emitted.length ?? 0;
  return rounds[round] && (own || token === null) ? before + Math.min(token ?? 0, Math.max(0, own - 1)) : -1;
}

/** Return when a round's tokens were emitted, in seconds after the prefill. */
export function moment(rounds, round) {
  return rounds[round].started_s + rounds[round].seconds - rounds[0].started_s;
}

/** Return the corresponding place of the other run.
 *  @param {"token"|"round"|"time"} by  the same place of the text, the same round, or the same time on the clock
 *  @returns {{round: number, token: number|null, over: boolean}|null}  `over`: the other run had ended; null: it has no
 *    rounds */
export function counterpart(by, at, from, to) {
  if (!to.length || !from[at.round]) return null;
  const last = to.length - 1;
  if (by === "round") return { round: Math.min(at.round, last), token: null, over: at.round > last };
  if (by === "time") {
    const now = moment(from, at.round), round = to.findIndex((_, i) => moment(to, i) >= now - 1e-9);
    return { round: round < 0 ? last : round, token: null, over: round < 0 };
  }
  const all = tokens(to), i = position(from, at), found = all[Math.min(i, all.length - 1)];
  return found
    ? { round: found.round, token: found.token, over: i >= all.length }
    : { round: last, token: null, over: true };
}

const MOST = 1500; // maximum number of tokens per text that are aligned

/** Find the tokens of two texts that are not in their longest common subsequence.
 *  @returns {{a: Set<number>, b: Set<number>, first: number|null, whole: boolean}}  `first`: index of the first
 *    difference, null if there is none; `whole`: false if the texts are too long to align, so that everything after
 *    the first difference counts as different */
export function differences(a, b) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  if (head === a.length && head === b.length) return { a: new Set(), b: new Set(), first: null, whole: true };
  const rest = [a.slice(head), b.slice(head)], whole = rest.every((list) => list.length <= MOST);
  const [left, right] = whole ? unmatched(...rest) : rest.map((list) => list.map((_, i) => i));
  return { a: new Set(left.map((i) => i + head)), b: new Set(right.map((i) => i + head)), first: head, whole };
}

function unmatched(a, b) {
  const width = b.length + 1, best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let k = b.length - 1; k >= 0; k -= 1)
      best[i * width + k] =
        a[i] === b[k]
          ? best[(i + 1) * width + k + 1] + 1
          : Math.max(best[(i + 1) * width + k], best[i * width + k + 1]);
  }
  const left = [], right = [];
  let i = 0, k = 0;
  while (i < a.length || k < b.length) {
    if (i < a.length && k < b.length && a[i] === b[k]) (i += 1), (k += 1);
    else if (k === b.length || (i < a.length && best[(i + 1) * width + k] >= best[i * width + k + 1])) left.push(i++);
    else right.push(k++);
  }
  return [left, right];
}

/** Compare the settings of two runs; those that differ come first. A setting that only one recording has is `lacking`
 *  and does not differ: older recordings lack later settings, and methods have different ones.
 *  @returns {{name: string, values: string[], differs: boolean, lacking: boolean}[]} */
export function settings(a, b) {
  const flat = ({ target, drafter, method, seed, max_new_tokens, prompt, dtype, device, hardware, params }) => ({
    target,
    drafter,
    method,
    ...params,
    seed,
    "max new tokens": max_new_tokens,
    prompt,
    "number format": dtype,
    device,
    machine: hardware,
  });
  const [one, other] = [flat(a), flat(b)], names = [...new Set([...Object.keys(one), ...Object.keys(other)])];
  const isMissing = (value) => value === undefined || value === "";
  const words = (value) => (value === undefined || value === null || value === "" ? "–" : `${value}`);
  const rows = names
    .map((name) => ({
      name: name.replaceAll("_", " "),
      values: [words(one[name]), words(other[name])],
      lacking: isMissing(one[name]) !== isMissing(other[name]),
    }))
    .map((row) => ({ ...row, differs: !row.lacking && row.values[0] !== row.values[1] }));
  return [...rows.filter((row) => row.differs), ...rows.filter((row) => !row.differs)];
}

const SHARES = new Set(["acceptance_rate", "draft_utilisation", "overhead_share"]),
  COUNTS = new Set(["tokens", "rounds"]);

/** Format a figure. @param {number|null} value */
export function figure(name, value) {
  if (value === null || value === undefined) return "–";
  if (SHARES.has(name)) return `${(100 * value).toFixed(1)} %`;
  return COUNTS.has(name) ? `${value}` : value.toFixed(2);
}

/** Format a difference: in percentage points for shares, otherwise absolute and as a ratio. */
export function difference(name, a, b) {
  if (a === null || b === null || a === undefined || b === undefined) return "–";
  if (a === b) return "equal";
  const sign = b > a ? "+" : "−", by = Math.abs(b - a);
  if (SHARES.has(name)) return `${sign}${(100 * by).toFixed(1)} percentage points`;
  return `${sign}${COUNTS.has(name) ? by : by.toFixed(2)}${a > 0 ? ` (${(b / a).toFixed(2)} ×)` : ""}`;
}

/** Parse the selection in an address. @returns {{side: number, round: number, token: number|null, by: string}} */
export function fromQuery(search) {
  const query = new URLSearchParams(search),
    number = (name) => (/^\d{1,7}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
  return {
    side: query.get("side") === "2" ? 1 : 0,
    round: Math.max(0, (number("round") ?? 1) - 1),
    token: number("token"),
    by: ["token", "round", "time"].includes(query.get("by")) ? query.get("by") : "token",
  };
}

/** Return the query of the selection. */
export function toQuery({ side, round, token, by }) {
  const query = new URLSearchParams({ round: `${round + 1}` });
  if (token !== null) query.set("token", token);
  if (side) query.set("side", "2");
  if (by !== "token") query.set("by", by);
  return query.toString();
}
