/** The app's controls for a method's parameters in a notebook, synchronised with the model's `values`. */

import * as controls from "../shared/controls.js";
import * as form from "../shared/form.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

const TELL_MS = 120;

/** Return the values after a change of method: its defaults; sampling parameters stay. Pure.
 *  @param {object[]} methods  @param {object[]} sampling  descriptions from the registry */
export function switched(methods, sampling, name, held) {
  const own = methods.find((x) => x.name === name)?.params ?? [];
  return {
    method: name,
    ...Object.fromEntries(
      [...own, ...sampling].map((p) => [
        p.name,
        sampling.includes(p) && held[p.name] !== undefined ? held[p.name] : p.default,
      ]),
    ),
  };
}

/** Draw a widget's panel into `root`. */
export function mount(root, { model, on, ends }) {
  const methods = model.get("_methods"), sampling = model.get("_sampling");
  const uid = Math.random().toString(36).slice(2, 7), method = h("select", { id: `${uid}-method` });
  const promise = h("small", { className: "wb-promise" }), teaches = h("p", { className: "wb-teaches" });
  const own = h("div", { className: "wb-form" }),
    first = h("div", { className: "wb-form" }),
    rest = h("div", { className: "wb-form" });
  const note = h("p", { className: "wb-note is-empty" });
  note.setAttribute("role", "status");
  root.append(h("div", { className: "wb-side wb-paramside" },
    h("div", { className: "wb-pick" }, h("label", { htmlFor: method.id }, "Method"), method, promise, teaches),
    own, first, h("details", { className: "wb-moresampling" }, h("summary", {}, "More sampling"), rest), note));
  let held = { ...model.get("values") }, telling = null;
  const tell = () => {
    clearTimeout(telling);
    telling = setTimeout(() => {
      telling = null;
      model.set("values", { ...held });
      model.save_changes();
    }, TELL_MS);
  };
  const draw = () => {
    const known = methods.find((x) => x.name === held.method),
      barred = controls.unsound(known, held),
      data = (params) => ({ params, values: held, inForce: held, barred });
    controls.select(method, controls.options(methods), held.method);
    controls.badge(promise, controls.promised(known, held));
    kit.write(teaches, controls.taught(known, held));
    form.render(own, data(known?.params ?? []));
    form.render(first, data(sampling.slice(0, 1)));
    form.render(rest, data(sampling.slice(1)));
  };
  method.addEventListener("change", () => {
    held = switched(methods, sampling, method.value, held);
    tell();
    draw();
  });
  root.addEventListener("wb:param", ({ detail }) => {
    held = { ...held, [detail.name]: detail.value };
    kit.write(note, detail.note);
    note.classList.toggle("is-empty", !detail.note);
    tell();
    draw();
  });
  on("change:values", () => {
    if (telling) return; // do not overwrite a change in progress
    held = { ...model.get("values") };
    draw();
  });
  ends.push(() => clearTimeout(telling));
  draw();
}
