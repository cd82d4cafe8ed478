/** A recorded run as one HTML file: creation and playback. */

/** Fill the template. Nothing in a trace can end its script element: see `embed`. Pure.
 *  @param {{template: string, style: string, module: string}} sources  texts of the page's files
 *  @param {{trace: object, definitions: object, lexicon?: object|null}} recording */
export function html(sources, recording) {
  const parts = { STYLE: sources.style.replaceAll("</", "<\\/"), SOURCES: embed(sources), RECORDING: embed(recording) };
  return sources.template.replace(/%(STYLE|SOURCES|RECORDING)%/g, (_, name) => parts[name]);
}

/** Return JSON that is safe in a script element: no tag, comment or JavaScript line can start or end in it. Pure. */
export function embed(value) {
  return JSON.stringify(value).replace(
    /[<>&\u2028\u2029]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Return a host without backend; follow the reader's colour scheme. */
export function standaloneHost(sources) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const applyTheme = () => document.body.classList.toggle("dark", dark.matches);
  applyTheme();
  dark.addEventListener("change", applyTheme);
  return { theme: () => document.body.classList.toggle("dark"), sources: async () => sources };
}
