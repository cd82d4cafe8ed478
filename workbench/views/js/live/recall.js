/** What a tab shows when it is loaded: the run that it showed last, or what its address asks for. The address goes
 *  first: after a link, a run of other settings is left where it is. */

const ENDED = ["finished", "cancelled", "error"];

/** Whether the page was loaded anew in its place, as by a reload or a step back; false after a link. Pure.
 *  @param {any[]} entries  of the browser's navigation timing */
export function reloaded(entries = performance.getEntriesByType("navigation")) {
  return ["reload", "back_forward"].includes(entries[0]?.type);
}

/** The header of a run with the method and the parameters of its last round; null while its models load. Pure.
 *  @param {{header: object|null, rounds?: object[]}} record */
export function inForce({ header, rounds }) {
  if (!header) return null;
  const last = rounds?.at(-1);
  return { ...header, method: last?.method ?? header.method, params: { ...header.params, ...last?.params } };
}

/** Whether nothing that an address names is otherwise in a run. Pure.
 *  @param {{choice: object, params: object}} asked  of `link.fromQuery`  @param {object} now  of `inForce` */
export function fits({ choice, params }, now) {
  if (!now) return Object.keys({ ...choice, ...params }).length === 0;
  const same = (name) => !(name in choice) || choice[name] === now[name];
  const ids = choice.prompt_tokens?.join();
  const prompt = ids === undefined ? same("prompt") : ids === now.prompt_tokens.join();
  // A method without a draft model records none, while its form still holds one.
  return prompt && ["target", "method", "seed", "max_new_tokens"].every(same) && (!now.drafter || same("drafter"))
    && Object.entries(params).every(([name, value]) => !(name in now.params) || now.params[name] === value);
}

/** The run that this tab showed last, with all its rounds; null where the backend knows it no more. */
export async function last({ call, remember }) {
  const id = remember?.getItem("wb-run");
  if (!id || !call) return null;
  const answer = await call("fetch_trace", { run: id, from: 0 }).catch(() => null);
  if (answer && !answer.error && (answer.header || !ENDED.includes(answer.state))) return answer;
  remember.removeItem("wb-run");
  return null;
}
