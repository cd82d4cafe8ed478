/** Kept runs on this machine, above the recordings: search, open, link, compare, tag, note, delete. */

import * as addresses from "../shared/address.js";
import { h } from "../shared/kit.js";
import * as pagehead from "../shared/pagehead.js";

const PIN_KEY = "wb-kept-pin";

/** Draw the section; nothing where the app keeps no runs.
 *  @param {Element} main  of the page  @param {{host: any, place: Element, drawn: () => void, changed: () => unknown,
 *    card: (entry: any, more: any) => Element}} given  `place`: element for the section; `drawn`: called after cards
 *    were added; `changed`: called after a run was deleted or its tags were changed  @returns {Promise<any>} the answer
 *    of the first search */
export async function mount(main, { host, place, drawn, changed, card }) {
  const ask = (name, request) => pagehead.ask(main, { host }, name, request);
  const list = h("div", { className: "wb-gallery" }),
    found = h("p", { className: "wb-keptfound" }),
    more = h("button", { type: "button", className: "wb-button" }, "Show more");
  const search = h("input", {
    type: "search",
    placeholder: "words  #tag  tau>=2",
    value: new URLSearchParams(location.search).get("search") ?? "",
  });
  const pins = pinning(list, host);
  let shown = 0, requests = 0;
  const again = (isDeleted = true) => {
    changed();
    return isDeleted ? show(0) : null;
  };
  found.setAttribute("role", "status");
  const show = async (first) => {
    const turn = (requests += 1), answer = await ask("kept", { search: search.value, first });
    if (!answer || turn !== requests) return answer; // a newer search is under way
    if (first === 0) list.replaceChildren();
    list.append(...answer.runs?.map((run) => keptRun(run, ask, card, again, host, pins)) ?? []);
    pins.draw();
    drawn();
    shown = first + Math.min(answer.page ?? 0, (answer.total ?? 0) - first);
    more.hidden = shown >= answer.total;
    found.textContent = [words(answer.total, search.value), ...answer.problems ?? []].join(" · ");
    return answer;
  };
  const answer = await show(0);
  if (!answer?.allowed) return answer;
  const label = h("label", { className: "wb-keptsearch" }, h("span", {}, "Search"), search);
  let typing = null;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => show(0), 250);
  });
  more.addEventListener("click", () => show(shown));
  const section = h(
    "section",
    { id: "kept", className: "wb-kept" },
    h("h2", {}, "Kept on this machine"),
    label,
    found,
    list,
    more,
  );
  place.append(section);
  drawn();
  if (location.hash === "#kept") section.scrollIntoView();
  return answer;
}

/** Return the number of runs found as text. Pure. */
export function words(total, search) {
  if (total) return total === 1 ? "One run" : `${total} runs`;
  return search.trim()
    ? "No kept run matches the search."
    : "No kept runs yet. Keep a run with export ▾ → Keep, or with workbench generate --keep.";
}

/** Allow one pinned run; the other runs then have a link that compares them with it. */
function pinning(list, host) {
  let pinned = host.remember?.getItem(PIN_KEY) ?? null;
  const draw = () => {
    for (const box of list.querySelectorAll(".wb-keptpin")) {
      const [button, link] = box.children, id = box.dataset.run, mine = id === pinned;
      button.setAttribute("aria-pressed", String(mine));
      button.textContent = mine ? "Pinned" : "Pin";
      link.hidden = !pinned || mine;
      if (!link.hidden)
        Object.assign(link, { href: addresses.run(host.base, pinned, id), textContent: `Compare with ${pinned}` });
    }
  };
  const toggle = (id) => {
    pinned = pinned === id ? null : id;
    if (pinned) host.remember?.setItem(PIN_KEY, pinned);
    else host.remember?.removeItem(PIN_KEY);
    draw();
  };
  const deleteRun = (id) => pinned === id && toggle(id);
  return { draw, toggle, forget: deleteRun };
}

function keptRun(run, ask, card, again, host, pins) {
  const tags = h("input", { value: run.tags.join(", "), placeholder: "none" }),
    note = h("input", { value: run.note, placeholder: "none" }),
    status = h("small", {});
  status.setAttribute("role", "status");
  const mark = async () => {
    const answer = await ask("mark", { id: run.id, tags: tags.value, note: note.value });
    if (answer) tags.value = answer.tags.join(", ");
    if (answer) again(false);
    status.textContent = answer ? "saved" : "not saved";
  };
  for (const field of [tags, note]) field.addEventListener("change", mark);
  const remove = h("button", { type: "button", className: "wb-button" }, "Delete");
  remove.setAttribute("aria-label", `Delete ${run.id}`);
  remove.addEventListener("click", async () => {
    if (!remove.dataset.sure) {
      remove.dataset.sure = "true";
      remove.textContent = "Delete permanently?";
      setTimeout(() => {
        delete remove.dataset.sure;
        remove.textContent = "Delete";
      }, 4000);
    } else if (await ask("forget", { id: run.id })) {
      pins.forget(run.id);
      await again();
    }
  });
  const form = h(
    "div",
    { className: "wb-keptmarks" },
    h("label", {}, h("span", {}, "tags"), tags),
    h("label", {}, h("span", {}, "note"), note),
    status,
  );
  const address = addresses.run(host.base, run.id),
    pin = h(
      "button",
      {
        type: "button",
        className: "wb-button",
        title: "Compare this run with another one",
        onclick: () => pins.toggle(run.id),
      },
      "Pin",
    );
  pin.setAttribute("aria-label", `Pin ${run.id}`);
  const beside = h("span", { className: "wb-keptpin" }, pin, h("a", { className: "wb-button", hidden: true }));
  beside.dataset.run = run.id;
  return card(run, { badge: "KEPT", href: address, form, actions: [pagehead.copyButton(address), beside, remove] });
}
