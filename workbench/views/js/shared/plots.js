/** Plotly charts of finished data; Plotly is loaded from this app on first use. Moving drawings do not use it. */

import * as kit from "./kit.js";

let library = null;

/** Load Plotly from this app on first use. */
function load(url) {
  library ??= new Promise((done, failed) => {
    if (window.Plotly) return done(window.Plotly);
    const script = Object.assign(document.createElement("script"), {
      src: url,
      onload: () => done(window.Plotly),
      onerror: failed,
    });
    document.head.append(script);
  });
  return library;
}

const LETTER = 6.2, SAMPLE = 46;

/** Break a name at spaces into lines of at most `letters` letters. */
export function broken(name, letters) {
  const lines = [];
  for (const word of `${name}`.split(" ")) {
    if (lines.length && lines.at(-1).length + 1 + word.length <= letters) lines.push(`${lines.pop()} ${word}`);
    else lines.push(word);
  }
  return lines.join("<br>");
}

/** Break names to fit beside their legend samples: Plotly moves a wider legend over the axis and cuts it. */
function named(data, layout, wide) {
  const letters = Math.floor((wide - (layout.margin?.l ?? 0) - (layout.margin?.r ?? 0) - SAMPLE) / LETTER);
  return data.map((trace) => (trace.name ? { ...trace, name: broken(trace.name, letters) } : trace));
}

/** Draw or update a chart in `el`. @param {(css: (name: string) => string) => {data: object[], layout: object, label:
 *  string}} make */
export function plot(page, el, make) {
  const style = getComputedStyle(page.el),
    css = (name) => style.getPropertyValue(name).trim(),
    wide = kit.size(el).width;
  const chart = make(css), key = JSON.stringify([chart, css("--wb-ink"), wide]);
  el.setAttribute("role", "img");
  el.setAttribute("aria-label", chart.label);
  if (el._key === key) return;
  if (el.hidden) return; // its table is shown
  if (!wide) {
    // its card is hidden, and would come back with old numbers
    if (el._key) window.Plotly?.purge(el);
    el._key = null;
    return;
  }
  el._key = key;
  const layout = {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { family: style.fontFamily, size: 12.5, color: css("--wb-ink") },
    hoverlabel: { bgcolor: css("--wb-ink"), font: { color: css("--wb-bg") } },
    width: wide,
    uirevision: "kept",
    ...chart.layout,
  };
  load(`${page.host.base}/workbench/${page.plotly}`).then(
    (plotly) =>
      el._key === key &&
      plotly.react(el, named(chart.data, layout, wide), layout, { displayModeBar: false, responsive: false }),
    () => kit.write(el, "The chart could not be loaded. Use the table instead."),
  );
}
