/** Draft models with a vocabulary other than the target's: only translating methods can use them. No DOM. */

const TRANSLATING = "any-drafter";

/** Return whether a method drafts with a separate model. Pure. @param {{needs?: string[]} | undefined} method */
export function usesDraftModel(method) {
  return Boolean(method?.needs?.some((need) => need === "drafter" || need === TRANSLATING));
}

/** Return the draft models that a method can use: with a different vocabulary only if it translates. Pure.
 *  @param {{drafters: any[], methods: any[]}} catalogue  @param {string | null} method */
export function usable(catalogue, method) {
  const translates = catalogue.methods.some((m) => m.name === method && m.needs?.includes(TRANSLATING));
  if (!translates) return catalogue.drafters;
  return catalogue.drafters.map((e) => (e.stranger ? { ...e, available: true, reason: "" } : e));
}
