/** State of a drafter (stored n-grams and the like): size and limit, hits, top entries, the entry of the latest draft;
 *  buttons that reset it, save it, or load a file into the current or the next run. */

import { ask } from "../shared/alerts.js";
import * as exports from "../shared/exports.js";
import * as kit from "../shared/kit.js";
import { h, visible, write } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as store from "../shared/store.js";

/** Build the card and add its elements to `parts`. */
export function build(parts) {
  const part = (name, tag, properties = {}, ...children) => (parts[name] = h(tag, properties, ...children));
  const tool = (name, text, title) => part(name, "button", { type: "button", className: "wb-tool", title }, text);
  const body = part(
    "memory",
    "div",
    { className: "wb-memory", hidden: true },
    part("memorySize", "p", { className: "wb-memorysize" }),
    part("memoryMeter", "meter", { min: 0, max: 1, hidden: true }),
    part("memoryMade", "p", { className: "wb-memorymade" }),
    h(
      "div",
      { className: "wb-memorytable", tabIndex: 0, role: "region", ariaLabel: "Top entries of the drafter's state" },
      h(
        "table",
        {},
        h("thead", {}, part("memoryHead", "tr")),
        part("memoryTop", "tbody"),
      ),
    ),
    h(
      "div",
      { className: "wb-memorydo" },
      tool("memoryReset", "Reset", "Delete all entries except the ones from this run's text"),
      tool("memorySave", "Save", "Save the state as a file"),
      tool("memoryLoad", "Load …", "Load a saved state into the run in progress, or else into the next run"),
      part("memoryFile", "input", { type: "file", accept: ".safetensors", hidden: true }),
      part("memoryNote", "span", { className: "wb-memorynote" }),
    ),
  );
  parts.memoryFile.setAttribute("aria-label", "File of a drafter's state");
  kit.set(parts.memoryNote, { role: "status" });
  const card = panel.card(parts, "remembers", "State of the drafter", null, body);
  parts.memoryToggle = panel.toggle("show", "State of the drafter: show", (on) => {
    body.hidden = !on;
    write(parts.memoryToggle, on ? "hide" : "show");
    kit.emit(card, "wb:remember");
  });
  card.firstChild.append(parts.memoryToggle);
  card.hidden = true;
  return card;
}

/** Describe size, limit and hits in one sentence. Pure. @param {any} seen  an answer of `memory` */
export function size(seen) {
  if (!seen.kind) return seen.why;
  const count = (n) => n.toLocaleString("en"), bytes = (n) => (n < 1e5 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);
  const room = seen.saves
    ? `${count(seen.entries)} of at most ${count(seen.bound)} ${seen.unit}, ${bytes(seen.n_bytes)} of ${bytes(seen.most_bytes)}`
    : `${count(seen.entries)} ${seen.unit}, ${bytes(seen.n_bytes)}, read only`;
  const hits = seen.asked
    ? `${count(seen.hits)} of ${count(seen.asked)} look-ups had a hit; ${count(seen.kept)} tokens drafted from the state were accepted`
    : "no look-ups yet";
  const shared = seen.shared ? " The state is shared by all runs of this app in which “warm” is on." : "";
  return `${seen.title}: ${room}; ${hits}.${shared}`;
}

/** Describe the entry that produced the latest draft. Pure. */
export function latestDraft({ made: latest }) {
  if (!latest) return "The latest draft used no entry of the state.";
  return `Round ${latest.round + 1}: after “${visible(latest.before)}”, the entry “${visible(latest.after)}” was drafted.`;
}

/** Return whether the backend can answer for a run: it is live and has an id. Pure. */
export function known(run) {
  return Boolean(run && run.from === "live" && run.id);
}

/** Wire the buttons. */
export function listen(page) {
  const { parts } = page;
  parts.remembersCard.addEventListener("wb:remember", () => refresh(page));
  parts.memoryReset.addEventListener("click", () => act(page, "reset", {}, "State deleted, except entries from this run's text."));
  parts.memorySave.addEventListener("click", () => save(page));
  parts.memoryLoad.addEventListener("click", () => parts.memoryFile.click());
  parts.memoryFile.addEventListener("change", () =>
    load(page, parts.memoryFile.files[0]).finally(() => (parts.memoryFile.value = "")),
  );
}

/** Called every second: refresh the open card of a run in progress; refresh once more after its end. */
export function tick(page) {
  const { parts, run } = page;
  parts.remembersCard.hidden = !page.host.call || Boolean(page.catalogue?.barred?.memory) || !known(run);
  const over = run && store.isOver(run), key = `${run?.id} ${over}`;
  if (!parts.memory.hidden && !parts.remembersCard.hidden && (!over || page.remembered !== key)) {
    if (kit.inSight(parts.remembersCard) || over) refresh(page);
    if (over) page.remembered = key;
  }
  if (over) parts.memoryReset.disabled = true;
  else parts.memoryReset.disabled = !page.memory?.saves;
}

/** Fetch and show the state; skip a run without a first round. */
async function refresh(page) {
  const { run, parts } = page;
  if (parts.memory.hidden || !known(run) || page.looking || !run.rounds.length) return;
  page.looking = true;
  const answer = await page.host.call("memory", { run: run.id, action: "look" }).catch(() => null);
  page.looking = false;
  if (answer && !answer.error && run === page.run) render(page, answer);
  else if (answer?.error && run === page.run) write(parts.memorySize, answer.error.message);
}

async function act(page, action, more, message) {
  const answer = await ask(page, "memory", { run: page.run.id, action, ...more });
  if (!answer) return;
  write(page.parts.memoryNote, message);
  render(page, answer);
}

async function save(page) {
  const answer = await ask(page, "memory", { run: page.run.id, action: "save" });
  if (!answer) return;
  const bytes = exports.bytes(answer.data);
  const name = exports.fileName({ ...page.run.header, method: answer.kind }, "safetensors");
  write(page.parts.memoryNote, `Saved ${exports.save(name, bytes, "application/octet-stream")}`);
}

/** Load a file into the run in progress, or into the next run if none is running. */
export async function load(page, file) {
  if (!file) return;
  const most = page.catalogue.file_bytes; // the command line has no such limit
  if (file.size > most)
    return write(page.parts.memoryNote, `Not loaded: the file is larger than ${(most / 2 ** 20).toFixed(2)} MiB.`);
  const data = base64(new Uint8Array(await file.arrayBuffer()));
  if (store.isActive(page.run) && known(page.run)) return act(page, "load", { data }, `Loaded ${file.name}.`);
  page.begins = data;
  write(page.parts.memoryNote, `The next run starts with ${file.name}.`);
}

/** Encode bytes as base64. Pure. @param {Uint8Array} bytes */
export function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 32_768) text += String.fromCharCode(...bytes.subarray(i, i + 32_768));
  return btoa(text);
}

function render(page, seen) {
  const { parts } = page;
  page.memory = seen;
  write(parts.memorySize, size(seen));
  parts.memoryMeter.hidden = !seen.kind || !seen.saves;
  if (seen.kind) Object.assign(parts.memoryMeter, { max: seen.bound, value: seen.entries });
  parts.memoryMeter.setAttribute("aria-label", "Size of the drafter's state, relative to its limit");
  parts.memoryMade.hidden = !seen.kind;
  if (seen.kind) write(parts.memoryMade, latestDraft(seen));
  const top = seen.top ?? [], named = top.some((entry) => !entry.after);
  parts.memoryHead.replaceChildren(
    ...(named ? ["text"] : ["after", "drafts"]).map((word) => h("th", { scope: "col" }, word)),
    h("th", { scope: "col" }, seen.counted ?? ""),
  );
  parts.memoryTop.replaceChildren(
    ...top.map(({ before, after, count }) =>
      h("tr", {}, h("td", {}, visible(before)), ...(named ? [] : [h("td", {}, visible(after))]), h("td", {}, `${count}`)),
    ),
  );
  parts.memoryTop.parentElement.hidden = !top.length;
  parts.memorySave.disabled = !seen.saves;
  parts.memoryLoad.disabled = Boolean(seen.kind) && !seen.saves;
}
