/** Of what became final in a round, what the round itself wrote: a verifier that judges whole steps lets go of tokens
 *  of earlier rounds too, which have no node. */

/** The token that the target added in a round; undefined where it is not final, or there is none. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function ownToken({ emitted, bonus_kind, placed }) {
  return !bonus_kind && placed?.length ? undefined : emitted.findLast((e) => e.node === null);
}

/** Tokens of the round itself. Pure.
 *  @param {{emitted: any[], bonus_kind?: string|null, placed?: object[]}} round */
export function ofRound(round) {
  const own = ownToken(round);
  return round.emitted.filter((e) => e.node !== null || e === own);
}
