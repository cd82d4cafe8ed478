// What Jupyter loads with every widget. The texts of the modules and of the style are in one model that all widgets share:
// they cross once, and each page imports them once, from memory. Then `workbench/views/js/widget.js` draws.
const pages = (globalThis.workbenchModules ??= new Map());

async function load(texts) {
  const urls = Object.entries(texts).map(([name, text]) => [name, URL.createObjectURL(new Blob([text], { type: "text/javascript" }))]);
  try {
    return Object.fromEntries(await Promise.all(urls.map(async ([name, url]) => [name, await import(url)])));
  } finally {
    for (const [, url] of urls) URL.revokeObjectURL(url);
  }
}

function dress(version, text) {
  const id = `wb-style-${version}`;
  if (document.getElementById(id)) return;
  document.head.append(Object.assign(document.createElement("style"), { id, textContent: text }));
}

export default {
  async render({ model, el }) {
    const shared = await model.widget_manager.get_model(model.get("_sources").replace("IPY_MODEL_", ""));
    const version = shared.get("version");
    dress(version, shared.get("style"));
    if (!pages.has(version)) pages.set(version, load(shared.get("modules")));
    try {
      const modules = await pages.get(version);
      return await modules.widget.mount(el, { model, modules, shared });
    } catch (problem) {
      pages.delete(version);
      throw problem;
    }
  },
};
