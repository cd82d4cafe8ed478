/** Page of the verifier bench: header, address, files. Everything is computed in the browser, without the app. */

import * as bench from "./bench.js";
import * as exports from "../shared/exports.js";
import * as states from "./state.js";

const FILE = "verifier-bench", WAIT_MS = 250;

/** Mount the page in `el`. @param {any} el  @param {{host: any}} given */
export function mount(el, { host }) {
  let waiting = null;
  return bench.open(el, {
    ...states.fromQuery(host.address.read()),
    host,
    change: (state) => {
      clearTimeout(waiting); // browsers allow about 100 address changes per 30 s; dragging makes more
      waiting = setTimeout(() => host.address.write(states.toQuery(state)), WAIT_MS);
    },
    tools: ({ badge, exporter }) => [
      badge("copy", "copy link", "Copy a link to this p, q, drafts and rule"),
      exporter("Save the bench"),
    ],
    query: (page) => states.toQuery(page.state),
    exports: (page) => ({
      title: "The bench",
      nothing: "",
      data: page.figures,
      items: [
        {
          kind: "json",
          text: "JSON",
          about: "the distributions, acceptance rates and sampled output",
          act: exports.file(() => `${FILE}.json`, "application/json", (found) => JSON.stringify(found, null, 1)),
        },
        {
          kind: "csv",
          text: "CSV",
          about: "acceptance rate of every rule by k",
          act: exports.file(() => `${FILE}.csv`, "text/csv", (found) => csv(found.acceptance)),
        },
      ],
      stage: page.parts.stage,
      note: () => `COMPUTED · p and q: ${page.state.from} · Speculative Decoding Workbench`,
      name: (_, ending, part) => `${FILE}_${exports.clean(part)}.${ending}`,
    }),
  });
}

/** Return the acceptance rates as CSV: one row per line of the chart. Pure. @param {Record<string, number[]>} curves */
export function csv(curves) {
  const rows = Object.entries(curves).map(([id, values]) => [...id.split("/"), ...values.map((v) => v.toFixed(6))]);
  const head = ["rule", "drafts", ...Object.values(curves)[0].map((_, i) => `k${i + 1}`)];
  return [head, ...rows].map((row) => `${row.join(",")}\n`).join("");
}
