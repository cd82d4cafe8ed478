import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import * as controller from "./controller.js";

class Element extends EventTarget {
  dataset = {};
  textContent = "";
  parts = [];
  contains(other) {
    return other === this || this.parts.includes(other);
  }
  closest(selector) {
    return this.tag && selector.split(", ").includes(this.tag) ? this : null;
  }
}
const stubs = { ResizeObserver: class { observe() {} disconnect() {} }, document: new Element() };
Object.assign(stubs, { MutationObserver: stubs.ResizeObserver, requestAnimationFrame: (work) => work() });
Object.assign(stubs.document, { body: {} });
Object.assign(stubs, { addEventListener: () => {}, navigator: {} });
const earlier = {};

before(() => {
  for (const name in stubs) {
    earlier[name] = globalThis[name];
    globalThis[name] = stubs[name];
  }
});
after(() => Object.assign(globalThis, earlier));

/** A key pressed in an element, as the page's listener gets it. */
function key(name, target, more = {}) {
  const event = Object.assign(new Event("keydown", { cancelable: true }), { key: name, ...more });
  Object.defineProperty(event, "target", { value: target });
  return event;
}

async function opened(view = {}, host = {}) {
  const el = new Element(), stage = new Element(), button = new Element(), field = new Element(), log = [];
  Object.assign(button, { tag: "button" });
  Object.assign(field, { tag: "input" });
  stage.parts = [button, field];
  const page = await controller.open(el, {
    parts: { stage, live: new Element() },
    host,
    state: { log },
    main: "run",
    draw: () => log.push("draw"),
    press: (_, name) => log.push(name),
    keys: (_, event) => (event.key === "Tab" ? null : () => log.push(`key ${event.key}`)),
    ...view,
  });
  log.length = 0;
  return { page, el, stage, button, field, log };
}

test("a page is drawn when asked, not while its tab is closed", async () => {
  let open = true;
  const { page, el, log } = await opened({}, { isOpen: () => open });
  page.draw();
  el.dispatchEvent(new Event("wb:redraw"));
  assert.deepEqual(log, ["draw", "draw"]);
  open = false;
  page.draw();
  assert.equal(log.length, 2);
  assert.equal(el.dataset.ready, "true");
});

test("keys act in the stage, not while a control is edited; a button keeps Space and Enter", async () => {
  const { el, stage, button, field, log } = await opened();
  const press = (name, target, more) => {
    const event = key(name, target, more);
    el.dispatchEvent(event);
    return event.defaultPrevented;
  };
  assert.ok(press("ArrowLeft", stage) && press("ArrowRight", button));
  assert.ok(!press(" ", button) && !press("x", field) && !press("x", el) && !press("x", stage, { altKey: true }));
  assert.ok(!press("Tab", stage), "a key without a meaning is left to the browser");
  assert.deepEqual(log, ["key ArrowLeft", "key ArrowRight"]);
  assert.ok(press("Enter", field, { ctrlKey: true }), "Ctrl+Enter presses the main button from everywhere");
  assert.equal(log.at(-1), "run");
});

test("the end of a page stops its timers, keys and messages", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  let send = null;
  const view = { tick: ({ log }) => log.push("tick"), onMessage: ({ log }, text) => log.push(text) };
  const { page, el, stage, log } = await opened(view, { listen: (listener) => (send = listener) });
  t.mock.timers.tick(1000);
  send("message");
  assert.deepEqual(log, ["tick", "message"]);
  page.end();
  t.mock.timers.tick(5000);
  send("late");
  el.dispatchEvent(key("ArrowLeft", stage));
  assert.deepEqual(log, ["tick", "message"]);
});

test("a link is shown where it cannot be copied, with what it does not contain", async () => {
  const host = { address: { url: (query) => `http://app/?${query}` } };
  const { page } = await opened({ query: () => "method=x" }, host);
  Object.assign(stubs.document, { createElement: () => ({ select() {}, remove() {} }), execCommand: () => false });
  stubs.document.body.append = () => {};
  await controller.copyLink(page, page.query(), " Without the image.");
  assert.equal(page.note, "http://app/?method=x Without the image.");
  assert.equal(page.parts.live.textContent, "The link is shown under the buttons");
});
