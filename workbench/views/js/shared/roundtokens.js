/** Tokens that a round itself emitted. A verifier of whole steps also commits tokens of earlier rounds, which have no
 *  node. */

/** Return the token that the target added in a round; undefined if it is tentative or missing. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function ownToken({ emitted, bonus_kind, placed }) {
  return !bonus_kind && placed?.length ? undefined : emitted.findLast((e) => e.node === null);
}

/** Return the tokens of the round itself. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function roundTokens(round) {
  const own = ownToken(round);
  return round.emitted.filter((e) => e.node !== null || e === own);
}
