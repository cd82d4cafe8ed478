/** Finished charts by Plotly, loaded from this app when one is drawn first. What moves is drawn by hand elsewhere. */

let library = null;

/** Plotly, loaded from this app when it is needed first. */
function load(url) {
  library ??= new Promise((done, failed) => {
    if (window.Plotly) return done(window.Plotly);
    const script = Object.assign(document.createElement("script"), { src: url, onload: () => done(window.Plotly), onerror: failed });
    document.head.append(script);
  });
  return library;
}

/** Draw or change a chart in `el`. @param {(css: (name: string) => string) => {data: object[], layout: object, label: string}} make */
export function plot(page, el, make) {
  const style = getComputedStyle(page.el), css = (name) => style.getPropertyValue(name).trim(), wide = page.m.kit.size(el).width;
  const made = make(css), key = JSON.stringify([made, css("--wb-ink"), wide]);
  el.setAttribute("role", "img");
  el.setAttribute("aria-label", made.label);
  if (el.hidden || !wide || el._key === key) return;
  el._key = key;
  const layout = { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { family: style.fontFamily, size: 12.5, color: css("--wb-ink") }, hoverlabel: { bgcolor: css("--wb-ink"), font: { color: css("--wb-bg") } }, width: wide, uirevision: "kept", ...made.layout };
  load(`${page.host.base}/workbench/${page.plotly}`).then((plotly) => el._key === key && plotly.react(el, made.data, layout, { displayModeBar: false, responsive: false }), () => page.m.kit.write(el, "The chart could not be loaded: see its table."));
}

export default { plot };
