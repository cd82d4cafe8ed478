/** First run of a loaded tab: the run that the tab showed last, or the one that its address names. The address wins: a
 *  link never shows a run with other settings. */

const ENDED = ["finished", "cancelled", "error"];

/** Return whether the page was loaded by a reload or a step in the history; false after a link. Pure.
 *  @param {any[]} entries  of the browser's navigation timing */
export function reloaded(entries = performance.getEntriesByType("navigation")) {
  return ["reload", "back_forward"].includes(entries[0]?.type);
}

/** Return the header of a run with method and parameters of its last round; null while its models load. Pure.
 *  @param {{header: object|null, rounds?: object[]}} record */
export function currentHeader({ header, rounds }) {
  if (!header) return null;
  const last = rounds?.at(-1);
  return { ...header, method: last?.method ?? header.method, params: { ...header.params, ...last?.params } };
}

/** Return whether a run has all the settings that an address gives. Pure.
 *  @param {{choice: object, params: object}} wanted  of `link.fromQuery`  @param {object} now  of `inForce` */
export function fits(wanted, now) {
  return others(wanted, now).length === 0;
}

/** Return the names of the address's settings that differ from a run's. Pure.
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

/** Return whether an address names the run that the tab showed last. Pure.
 *  @param {any} wanted  of `link.fromQuery`  @param {any} earlier  of `last`  @param {boolean} again  of `reloaded` */
export function namesRun(wanted, earlier, again) {
  if (wanted.run) return wanted.run === earlier.run;
  return !wanted.recorded && (again || (!wanted.starts && fits(wanted, currentHeader(earlier))));
}

/** Fetch the run that this tab showed last, with all its rounds; null if the backend no longer has it. */
export async function last({ call, remember }) {
  const id = remember?.getItem("wb-run");
  if (!id || !call) return null;
  const answer = await call("fetch_trace", { run: id, from: 0 }).catch(() => null);
  if (answer && !answer.error && (answer.header || !ENDED.includes(answer.state))) return answer;
  remember.removeItem("wb-run");
  return null;
}

/** Remember the run that this tab shows, and its prompt as it was typed: a target's chat template changes it. */
export function note({ remember }, run) {
  remember?.setItem("wb-run", run.id);
  remember?.setItem("wb-run-prompt", JSON.stringify([run.id, run.asked ?? null]));
}

/** Return the prompt of a run as it was typed in this tab; null if it is not known. */
export function typedPrompt({ remember }, id) {
  try {
    const [run, prompt] = JSON.parse(remember?.getItem("wb-run-prompt") ?? "[]");
    return run === id && typeof prompt === "string" ? prompt : null;
  } catch {
    return null;
  }
}
