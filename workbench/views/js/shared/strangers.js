/** Draft models of another vocabulary than the target's: only a method that translates can draft with one. No DOM. */

const TRANSLATES = "any-drafter";

/** Whether a method drafts with a separate model. Pure. @param {{needs?: string[]} | undefined} method */
export function drafts(method) {
  return Boolean(method?.needs?.some((need) => need === "drafter" || need === TRANSLATES));
}

/** The draft models of a catalogue, as they can be chosen with a method: strangers where it translates. Pure.
 *  @param {{drafters: any[], methods: any[]}} catalogue  @param {string | null} method */
export function drafters(catalogue, method) {
  const translates = catalogue.methods.some((m) => m.name === method && m.needs?.includes(TRANSLATES));
  if (!translates) return catalogue.drafters;
  return catalogue.drafters.map((e) => (e.stranger ? { ...e, available: true, reason: "" } : e));
}
