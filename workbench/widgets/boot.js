// Script that Jupyter loads with every widget. A model shared by all widgets has the sources of the module and the
// stylesheet, so they are sent once, and each page imports them once. `workbench/views/js/notebook/widget.js` draws.
const pages = (globalThis.workbenchModules ??= new Map());

async function load(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

function addStylesheet(version, text) {
  const id = `wb-style-${version}`;
  if (document.getElementById(id)) return;
  document.head.append(Object.assign(document.createElement("style"), { id, textContent: text }));
}

/** Route messages directly to a drawn, and therefore loaded, model. anywidget itself drops all messages to a model that
 *  took longer than two seconds to load, which happens on a busy machine. */
async function receiveAtOnce(model) {
  const own = await model.widget_manager.get_model(model.get("_own")),
    base = Object.getPrototypeOf(own.constructor.prototype);
  if (base?._handle_comm_msg) own.comm?.on_msg?.((message) => base._handle_comm_msg.call(own, message));
}

/** Hide the snapshot below a widget, which is for readers without widgets. @returns {() => void} shows it again */
function hideSnapshot(own) {
  const rule = Object.assign(document.createElement("style"), { textContent: `.wb-still-${own} { display: none }` });
  document.head.append(rule);
  return () => rule.remove();
}

export default {
  async render({ model, el }) {
    await receiveAtOnce(model).catch(() => {}); // other widget managers lack `_handle_comm_msg`
    const shared = await model.widget_manager.get_model(model.get("_sources").replace("IPY_MODEL_", ""));
    const version = shared.get("version");
    addStylesheet(version, shared.get("style"));
    if (!pages.has(version)) pages.set(version, load(shared.get("module")));
    try {
      const { mount } = await pages.get(version);
      const end = await mount(el, { model, shared }), show = hideSnapshot(model.get("_own"));
      return () => (show(), end?.());
    } catch (problem) {
      pages.delete(version);
      throw problem;
    }
  },
};
