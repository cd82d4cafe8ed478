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
export function fits(asked, now) {
  return others(asked, now).length === 0;
}

/** Names of the settings that an address gives and that are otherwise in a run. Pure.
 *  @param {{choice: object, params: object}} asked  of `link.fromQuery`  @param {object} now  of `inForce` */
export function others({ choice, params }, now) {
  if (!now) return Object.keys({ ...choice, ...params });
  const differs = (name) => name in choice && choice[name] !== now[name];
  const ids = choice.prompt_tokens?.join();
  const prompt = ids === undefined ? differs("prompt") : ids !== now.prompt_tokens.join();
  const drafter = now.drafter && differs("drafter"); // a method without a draft model records none
  return [
    ...["target", "method", "seed", "max_new_tokens"].filter(differs),
    ...(prompt ? ["prompt"] : []),
    ...(drafter ? ["drafter"] : []),
    ...Object.keys(params).filter((name) => name in now.params && now.params[name] !== params[name]),
  ];
}

/** Whether an address asks for the run that the tab showed last. Pure.
 *  @param {any} asked  of `link.fromQuery`  @param {any} earlier  of `last`  @param {boolean} again  of `reloaded` */
export function isAsked(asked, earlier, again) {
  if (asked.run) return asked.run === earlier.run;
  return !asked.recorded && (again || (!asked.starts && fits(asked, inForce(earlier))));
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
