/** The state of the drafter: its size against its bound, its hits, its top entries, which entry made the latest draft;
 *  and buttons that empty it, save it, and load a file, into the run in progress or else into the next one. */

import { ask } from "./backend.js";
import * as exports from "../shared/exports.js";
import * as kit from "../shared/kit.js";
import { h, write } from "../shared/kit.js";
import * as panel from "../shared/panel.js";
import * as store from "../shared/store.js";
import { visible } from "../shared/visible.js";

/** The card. Adds its parts to `parts`. */
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
      tool("memoryReset", "Reset", "Forget all but the text of this run"),
      tool("memorySave", "Save", "Save it as a file"),
      tool("memoryLoad", "Load …", "Load a file that was saved: into this run, or else into the next one"),
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
    kit.tell(card, "wb:remember");
  });
  card.firstChild.append(parts.memoryToggle);
  card.hidden = true;
  return card;
}

/** Size against bound and hits, in one sentence. Pure. @param {any} seen  an answer of `memory` */
export function size(seen) {
  if (!seen.kind) return seen.why;
  const count = (n) => n.toLocaleString("en"), bytes = (n) => (n < 1e5 ? `${(n / 1e3).toFixed(1)} kB` : `${(n / 1e6).toFixed(1)} MB`);
  const room = seen.saves
    ? `${count(seen.entries)} of at most ${count(seen.bound)} ${seen.unit}, ${bytes(seen.n_bytes)} of ${bytes(seen.most_bytes)}`
    : `${count(seen.entries)} ${seen.unit}, ${bytes(seen.n_bytes)}, read only`;
  const hits = seen.asked
    ? `${count(seen.hits)} of ${count(seen.asked)} look-ups found something; ${count(seen.kept)} drafted tokens became text`
    : "nothing was looked up yet";
  const whose = seen.shared ? " Shared with all runs here that chose warm." : "";
  return `${seen.title}: ${room}; ${hits}.${whose}`;
}

/** Which entry made the latest draft, in words. Pure. */
export function made({ made: latest }) {
  if (!latest) return "No entry made the latest draft.";
  return `Round ${latest.round + 1}: the entry behind “${visible(latest.before)}” drafted “${visible(latest.after)}”.`;
}

/** What of a run can be asked for: nothing of a recording, or before it has an id. Pure. */
export function known(run) {
  return Boolean(run && run.from === "live" && run.id);
}

/** Wire the buttons. */
export function listen(page) {
  const { parts } = page;
  parts.remembersCard.addEventListener("wb:remember", () => look(page));
  parts.memoryReset.addEventListener("click", () => act(page, "reset", {}, "Emptied; the text of the run stays."));
  parts.memorySave.addEventListener("click", () => save(page));
  parts.memoryLoad.addEventListener("click", () => parts.memoryFile.click());
  parts.memoryFile.addEventListener("change", () =>
    load(page, parts.memoryFile.files[0]).finally(() => (parts.memoryFile.value = "")),
  );
}

/** Called every second: what is open and goes on is looked at again; an ended run once more. */
export function tick(page) {
  const { parts, run } = page;
  parts.remembersCard.hidden = !page.host.call || Boolean(page.catalogue?.barred?.memory) || !known(run);
  const over = run && store.isOver(run), key = `${run?.id} ${over}`;
  if (!parts.memory.hidden && !parts.remembersCard.hidden && (!over || page.remembered !== key)) {
    if (kit.inSight(parts.remembersCard) || over) look(page);
    if (over) page.remembered = key;
  }
  if (over) parts.memoryReset.disabled = true;
  else parts.memoryReset.disabled = !page.memory?.saves;
}

/** Look at it; a run without a first round yet is not asked. */
async function look(page) {
  const { run, parts } = page;
  if (parts.memory.hidden || !known(run) || page.looking || !run.rounds.length) return;
  page.looking = true;
  const answer = await page.host.call("memory", { run: run.id, action: "look" }).catch(() => null);
  page.looking = false;
  if (answer && !answer.error && run === page.run) render(page, answer);
  else if (answer?.error && run === page.run) write(parts.memorySize, answer.error.message);
}

async function act(page, action, more, said) {
  const answer = await ask(page, "memory", { run: page.run.id, action, ...more });
  if (!answer) return;
  write(page.parts.memoryNote, said);
  render(page, answer);
}

async function save(page) {
  const answer = await ask(page, "memory", { run: page.run.id, action: "save" });
  if (!answer) return;
  const bytes = Uint8Array.from(atob(answer.data), (c) => c.charCodeAt(0));
  const name = exports.fileName({ ...page.run.header, method: answer.kind }, "safetensors");
  write(page.parts.memoryNote, `Saved ${exports.save(name, /** @type {any} */ (bytes), "application/octet-stream")}`);
}

/** A file goes into the run in progress, or waits for the next one. */
export async function load(page, file) {
  if (!file) return;
  const most = page.catalogue.file_bytes; // a command line loads larger ones
  if (file.size > most)
    return write(page.parts.memoryNote, `Not loaded: the file is larger than ${(most / 2 ** 20).toFixed(2)} MiB.`);
  const data = base64(new Uint8Array(await file.arrayBuffer()));
  if (store.isActive(page.run) && known(page.run)) return act(page, "load", { data }, `Loaded ${file.name}.`);
  page.begins = data;
  write(page.parts.memoryNote, `The next run begins with ${file.name}.`);
}

/** Bytes in base64. Pure. @param {Uint8Array} bytes */
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
  parts.memoryMeter.setAttribute("aria-label", "Size against bound");
  parts.memoryMade.hidden = !seen.kind;
  if (seen.kind) write(parts.memoryMade, made(seen));
  const top = seen.top ?? [], named = top.some((entry) => !entry.after);
  parts.memoryHead.replaceChildren(
    ...(named ? ["text"] : ["behind", "comes"]).map((word) => h("th", { scope: "col" }, word)),
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
