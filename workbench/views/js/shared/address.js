/** Addresses of runs: `/r/NAME` shows one run, `/r/ONE+OTHER` two side by side. For a view an address is a query with
 *  the run's name in `recorded`, as for a recording of the gallery. Pure. */

const KEPT = /^\d{8}-\d{6}-[0-9a-f]{8}$/;
const RUN = /\/r\/([^/]+)$/;

/** Return whether a name has the form of a kept run's id. */
export function isKept(name) {
  return KEPT.test(name ?? "");
}

/** Return the address of the page of tabs. @param {string} pathname */
export function home(pathname) {
  return pathname.replace(RUN, "/");
}

/** Return an address as a query. @param {{pathname: string, search: string}} at */
export function read({ pathname, search }) {
  const runs = names(pathname), query = new URLSearchParams(search);
  if (!runs.length) return search;
  query.delete("recorded");
  if (runs.length > 1) query.set("tab", "pair");
  for (const name of runs) query.append("recorded", name);
  return `?${query}`;
}

/** Return the address of a query: path and search. A kept run has its own path, and so have two runs side by side.
 *  @param {string} base  address of the page of tabs, with a trailing slash */
export function write(base, query) {
  const rest = new URLSearchParams(query),
    runs = rest.getAll("recorded"),
    two = rest.get("tab") === "pair" && runs.length === 2;
  if (!two && !isKept(runs[0])) return `${base}${query ? `?${query}` : ""}`;
  rest.delete("recorded");
  if (two) rest.delete("tab");
  return `${run(base.slice(0, -1), ...(two ? runs : runs.slice(0, 1)))}${rest.size ? `?${rest}` : ""}`;
}

/** Longest query of an address, in characters: proxies refuse longer ones, and beyond 64,000 Gradio's own requests,
 *  which include the page's address, fail without a message. */
export const LONGEST = 6000;

/** Remove the longest values from a query that is too long for an address. @param {string} query */
export function brief(query) {
  if (query.length <= LONGEST) return query;
  const shortened = new URLSearchParams(query);
  while (shortened.toString().length > LONGEST) {
    const [longest] = [...shortened].reduce((a, b) => (b[1].length > a[1].length ? b : a));
    shortened.delete(longest);
  }
  return shortened.toString();
}

/** Return the note on a link that is too long to hold the prompt; empty if it holds the whole query. @param {string}
 *  query */
export function lacking(query) {
  return query.length > LONGEST ? " The link does not contain the prompt, which is too long for an address." : "";
}

/** Return the query with which a tab shows a run. */
export function named(tab, name) {
  return new URLSearchParams({ tab, recorded: name }).toString();
}

/** Return the address of one run, or of two side by side. @param {string} base  without a trailing slash  @param
 *  {string[]} names */
export function run(base, ...names) {
  return `${base}/r/${names.map(encodeURIComponent).join("+")}`;
}

/** Return the names in an address of runs. @param {string} pathname @returns {string[]} */
export function names(pathname) {
  return (RUN.exec(pathname)?.[1] ?? "").split("+").filter(Boolean).map(decode);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not valid UTF-8: no run has that name
  }
}
