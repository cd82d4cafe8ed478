/** Selection: hovering previews, a pin stays, otherwise the newest round is selected. Plain data, no DOM. */

import { ownToken } from "../shared/store.js";

export function newSelection() {
  return { hover: null, pin: null };
}

/** Return the most informative node of a round: the first rejected one, else the last accepted one, else the target's
 *  token. */
export function informativeNode(round) {
  const refused = round.nodes.status.indexOf("rejected");
  return refused >= 0 ? refused : (round.path.at(-1) ?? "target");
}

/** Complete a selection that names a round and maybe a token or a node. */
export function complete(pick, rounds) {
  const round = rounds[pick.round];
  if (!round) return null;
  let { node = null, token = null } = pick;
  if (token !== null && round.emitted[token]) node = round.emitted[token].node ?? "target";
  if (node === null) node = informativeNode(round);
  if (token === null) {
    const i = round.emitted.indexOf(node === "target" ? ownToken(round) : round.emitted.find((e) => e.node === node));
    token = i < 0 ? null : i;
  }
  return { round: pick.round, node, token };
}

/** Return the current selection, or null while there is no round. */
export function shown(selection, rounds) {
  const wanted = selection.hover ?? selection.pin;
  return (
    (wanted && complete(wanted, rounds)) ?? (rounds.length ? complete({ round: rounds.length - 1 }, rounds) : null)
  );
}

/** Return whether the newest round is followed. */
export function follows(selection) {
  return selection.pin === null;
}

/** Return the token one step before or after the selection; crosses rounds, skips rounds without tokens. */
export function stepToken(at, rounds, direction) {
  if (at === null) return null;
  let { round } = at;
  let token = (at.token ?? (direction > 0 ? -1 : rounds[round].emitted.length)) + direction;
  while (rounds[round] && (token < 0 || token >= rounds[round].emitted.length)) {
    round += direction;
    if (!rounds[round]) return at;
    token = direction > 0 ? 0 : rounds[round].emitted.length - 1;
  }
  return complete({ round, token }, rounds);
}

/** Return the round one step before or after, limited to the run. */
export function stepRound(at, rounds, direction) {
  if (!rounds.length) return null;
  const round = Math.max(0, Math.min(rounds.length - 1, (at?.round ?? rounds.length - 1) + direction));
  return complete({ round }, rounds);
}
