/** The boards on the methods page: each method's promise beside its evidence, each paper's claim beside what was measured
 *  here. Both are generated; this only shows them, what failed as plainly as what held. */

const SIGNS = { shown: "✓", broken: "✕", unproven: "?", "no promise": "–", "reproduced in size": "✓", "reproduced in direction": "↗", "not reproduced": "✕", "not measurable here": "–", "not measured yet": "?" };
const three = (v) => (Math.abs(v) >= 100 ? v.toFixed(0) : v.toPrecision(3));

/** A goodness-of-fit test in words. Pure. */
export function lawWords(law) {
  const apart = law.verdict === "measured" ? `, total variation ${law.total_variation.toFixed(3)}` : "";
  return `${law.name}: χ² ${law.statistic.toFixed(1)} (${law.freedom} degrees), p = ${law.p_value.toPrecision(2)}${law.tests > 1 ? `, the worst of ${law.tests} settings` : ""}, ${law.runs} runs${apart}`;
}

/** The paper's figure. Pure. */
export function paperFigure({ low, high, neutral }) {
  if (low === null || high === null) return `more than ${neutral}, no figure given`;
  return low === high ? `${low}` : `${low}–${high}`;
}

/** The measured figure with its interval. Pure. */
export function hereFigure(measured) {
  return measured ? `${three(measured.value)} (${three(measured.low)}–${three(measured.high)}, n = ${measured.n})` : "–";
}

/** How many rows of each kind there are, in words. Pure. */
export function tally(rows, key) {
  const counts = new Map();
  for (const row of rows) counts.set(row[key], (counts.get(row[key]) ?? 0) + 1);
  return [...counts].map(([word, n]) => `${n} ${word}`).join(", ");
}

/** Put both boards into the page. @param {{m: object, host: object, main: HTMLElement}} page @param {HTMLElement} body @param {HTMLElement} contents */
export async function add(page, body, contents) {
  const { m, host, main } = page, { h } = m.kit;
  const found = await m.pagehead.ask(main, { kit: m.kit, host }, "boards");
  if (!found) return;
  const anchors = [["exactness", "Exactness"], ["claims", "Claims"]].map(([id, word]) => h("a", { href: m.pagehead.place(id) }, word));
  contents.append(...anchors);
  body.append(exactness(found.exactness, m.kit), claims(found.claims, m.kit));
  for (const row of found.exactness) mark(body, row, h);
}

/** The standing of a method beside its promise on its card. */
function mark(body, row, h) {
  const promise = [...body.querySelectorAll(".wb-method")].find((x) => x.dataset.method === row.method)?.querySelector(".wb-promised");
  promise?.after(" ", standing(row.standing, h));
}

function standing(word, h) {
  const made = h("span", { className: "wb-standing" }, `${SIGNS[word] ?? ""} ${word}`);
  made.dataset.standing = word;
  return made;
}

function board(kit, id, title, about, head, rows) {
  const { h } = kit;
  const scroll = h("div", { className: "wb-scroll", tabIndex: 0 }, h("table", { className: "wb-board" }, h("thead", {}, h("tr", {}, ...head.map((word) => h("th", { scope: "col" }, word)))), h("tbody", {}, ...rows)));
  for (const row of rows) [...row.children].forEach((cell, i) => (cell.dataset.head = head[i])); // a phone shows them one below the other
  kit.set(scroll, { role: "region", "aria-label": title });
  return h("section", { className: "wb-card", id }, h("h2", {}, title), h("p", { className: "wb-about" }, about), scroll);
}

function exactness(rows, kit) {
  const { h } = kit, cell = (...given) => h("td", {}, ...given);
  const line = (row) => h("tr", {},
    h("th", { scope: "row" }, row.title, h("small", {}, row.promise)), cell(standing(row.standing, h)),
    cell(row.greedy ? `${row.greedy.equal} of ${row.greedy.tried} texts equal` : "–", row.greedy ? h("small", {}, `${row.greedy.prompts} prompts and parameter corners on ${row.target}, ${row.greedy.families} model families`) : ""),
    cell(...(row.laws.length ? row.laws.map((law) => h("small", {}, lawWords(law))) : [row.lacks || "–"])),
    cell(row.date ? `${row.date}, ${row.commit}` : "–", h("small", {}, h("code", {}, row.command))));
  const about = `What each method promises, and the evidence: greedy text compared with Hugging Face's generate token for token in float64, sampled tokens compared with the target's exact joint law. ${tally(rows, "standing")}. A method without evidence is unproven.`;
  return board(kit, "exactness", "Exactness board", about, ["method, promise", "standing", "greedy", "sampling", "made, and how to make it again"], rows.map(line));
}

function claims(rows, kit) {
  const { h } = kit, cell = (...given) => h("td", {}, ...given);
  const line = (row) => h("tr", {},
    h("th", { scope: "row" }, row.method, h("small", {}, row.quantity)), cell(standing(row.verdict, h)),
    cell(paperFigure(row), h("small", {}, row.setting), h("small", {}, row.source)),
    cell(hereFigure(row.measured), row.measured ? h("small", {}, row.measured.setting) : "", row.lacks ? h("small", {}, `lacks ${row.lacks}`) : "", row.date ? h("small", {}, `${row.date}, ${row.commit}; ${row.machine}`) : ""),
    cell(h("code", {}, row.command), row.timed ? h("small", {}, "timed: on an idle machine") : ""));
  const about = `What each paper claims, beside what is measured here, with small models on the machine named. The verdict is computed: in size within a quarter of the paper's range, in direction if the whole 95 % interval lies on the paper's side. ${tally(rows, "verdict")}.`;
  return board(kit, "claims", "Claims board", about, ["method, quantity", "verdict", "the paper", "here", "measure it"], rows.map(line));
}

export default { add };
