/** Messages to the user: calls of the backend with their errors, and the boxes that show messages. */

import * as kit from "./kit.js";
import { h } from "./kit.js";

const MOST_NAMED = 6;
const NO_ANSWER = { message: "The app did not answer.", remedy: "Check that the app is still running, then reload the page." };

/** Call the backend. @returns {Promise<any>} its answer; `{error}` if it refused or did not answer */
export async function call({ call: send }, name, request = {}) {
  try {
    return await send(name, request);
  } catch {
    return { error: NO_ANSWER };
  }
}

/** Call the backend; show an error on the page and return null. @returns {Promise<any>} */
export async function ask(page, name, request = {}) {
  const answer = await call(page.host, name, request);
  if (!answer?.error) return answer;
  fail(page, answer.error);
  return null;
}

/** Show an error until the next run or measurement, once. */
export function fail(page, error) {
  if (!page.errors.some((each) => each.message === error.message)) page.errors.push({ ...error, kind: "error" });
  page.draw();
}

/** Return the note on the parts of an address that were ignored. Pure. @param {string[]} problems */
export function ignored(problems) {
  return { kind: "note", message: "Ignored parts of the link:", remedy: problems.join(" · ") };
}

/** Group messages that differ only in numbers: the last text, the count and the rounds. Pure.
 *  @param {{kind: string, message: string, remedy?: string, rounds?: number[], times?: number}[]} list
 *  @returns {{kind: string, message: string, remedy: string, times: number, rounds: number[]}[]} */
export function grouped(list) {
  const groups = new Map();
  for (const { kind, message, remedy = "", rounds = [], times = Math.max(1, rounds.length) } of list) {
    const key = `${kind} ${message.replace(/\d+([.,]\d+)*/g, "#")}`, known = groups.get(key);
    groups.set(key, {
      kind,
      message,
      remedy: remedy || (known?.remedy ?? ""),
      times: times + (known?.times ?? 0),
      rounds: [...(known?.rounds ?? []), ...rounds].sort((a, b) => a - b),
    });
  }
  return [...groups.values()];
}

/** Name the rounds of a message; empty if it has none. Pure. */
export function where(rounds) {
  const named = [...new Set(rounds)], more = named.length - MOST_NAMED;
  if (!named.length) return "";
  return `(round${named.length > 1 ? "s" : ""} ${named.slice(0, MOST_NAMED).join(", ")}${more > 0 ? ` and ${more} more` : ""})`;
}

/** Show messages in `el`, one box each; repeated messages share one box with a count. */
export function render(el, list) {
  const shown = grouped(list);
  kit.resize(el, shown.length, () => h("div", {}, h("b"), " ", h("span")));
  shown.forEach((alert, i) => {
    el.children[i].className = `wb-alert is-${alert.kind}`;
    kit.write(el.children[i].firstChild, `${alert.times > 1 ? `${alert.times} × ` : ""}${alert.message}`);
    kit.write(el.children[i].lastChild, [alert.remedy, where(alert.rounds)].filter(Boolean).join(" "));
  });
}
