/** Addresses of runs: `/r/NAME` shows one run, `/r/ONE+OTHER` two side by side. To a view an address is a query, in
 *  which a run goes by `recorded`, as a recording of the gallery does. Pure. */

const KEPT = /^\d{8}-\d{6}-[0-9a-f]{8}$/;
const RUN = /\/r\/([^/]+)$/;

/** Whether a name has the form of a kept run's id. */
export function isKept(name) {
  return KEPT.test(name ?? "");
}

/** Where the page of tabs is, from any of its addresses. @param {string} pathname */
export function home(pathname) {
  return pathname.replace(RUN, "/");
}

/** What an address asks for, as a query. @param {{pathname: string, search: string}} at */
export function read({ pathname, search }) {
  const runs = names(pathname), query = new URLSearchParams(search);
  if (!runs.length) return search;
  query.delete("recorded");
  if (runs.length > 1) query.set("tab", "pair");
  for (const name of runs) query.append("recorded", name);
  return `?${query}`;
}

/** The address of a query: path and search. A kept run has a path of its own, and so have two runs side by side. @param
 *  {string} base  of the page of tabs, with a slash at its end */
export function write(base, query) {
  const rest = new URLSearchParams(query),
    runs = rest.getAll("recorded"),
    two = rest.get("tab") === "pair" && runs.length === 2;
  if (!two && !isKept(runs[0])) return `${base}${query ? `?${query}` : ""}`;
  rest.delete("recorded");
  if (two) rest.delete("tab");
  return `${run(base.slice(0, -1), ...(two ? runs : runs.slice(0, 1)))}${rest.size ? `?${rest}` : ""}`;
}

/** The longest query of an address, in characters: proxies refuse longer ones, and beyond 64,000 Gradio's own requests,
 *  which carry the page's address with them, fail without a word. */
export const LONGEST = 6000;

/** A query without its longest values, where it is too long for an address; else as it is. @param {string} query */
export function brief(query) {
  if (query.length <= LONGEST) return query;
  const kept = new URLSearchParams(query);
  while (kept.toString().length > LONGEST) {
    const [longest] = [...kept].reduce((a, b) => (b[1].length > a[1].length ? b : a));
    kept.delete(longest);
  }
  return kept.toString();
}

/** What a link lacks of a query, in words to stand behind others; empty for one that it holds whole. @param {string}
 *  query */
export function lacking(query) {
  return query.length > LONGEST ? " It is without the prompt, which is too long for an address." : "";
}

/** The query under which a tab shows a run. */
export function named(tab, name) {
  return new URLSearchParams({ tab, recorded: name }).toString();
}

/** The address of one run, or of two side by side. @param {string} base  without a slash at its end  @param {string[]}
 *  names */
export function run(base, ...names) {
  return `${base}/r/${names.map(encodeURIComponent).join("+")}`;
}

/** The names in an address of runs. @param {string} pathname @returns {string[]} */
export function names(pathname) {
  return (RUN.exec(pathname)?.[1] ?? "").split("+").filter(Boolean).map(decode);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // no text in UTF-8: no run has that name
  }
}
