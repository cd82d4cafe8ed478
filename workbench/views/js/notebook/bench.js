/** The verifier bench in a notebook, synchronised with the model's `state` in both directions. */

import * as bench from "../verifiers/bench.js";
import * as states from "../verifiers/state.js";

const SEND_MS = 120;
const NAMES = ["words", "p", "q", "tp", "tq", "k", "way", "rule", "seed", "rounds"];

/** Return the part of a state that Python has. Pure. @param {states.State} state */
export function toPython(state) {
  return Object.fromEntries(NAMES.map((name) => [name, state[name]]));
}

/** Draw a widget's bench into `root`, and synchronise its state. */
export async function mount(root, { model, on, ends, theme }) {
  const now = () => JSON.stringify(toPython(page.state));
  let telling = null;
  const sendState = () => {
    clearTimeout(telling);
    telling = setTimeout(() => {
      telling = null;
      model.set("state", toPython(page.state));
      model.save_changes();
    }, SEND_MS);
  };
  const fromModel = () => ({ ...states.example(), from: "Python", note: "", ...structuredClone(model.get("state")) });
  const page = await bench.open(root, { host: { theme }, state: fromModel(), change: sendState });
  on("change:state", () => {
    if (telling || JSON.stringify(toPython(fromModel())) === now()) return; // do not overwrite a change in progress
    Object.assign(page.state, fromModel());
    page.draw();
  });
  ends.push(() => clearTimeout(telling), page.end);
}
