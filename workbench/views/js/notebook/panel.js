/** The app's controls for a method's parameters in a notebook, synchronised with the model's `values`. */

import * as controls from "../shared/controls.js";
import * as form from "../shared/form.js";
import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

const SEND_MS = 120;

/** Return the values after a change of method: its defaults; sampling parameters stay. Pure.
 *  @param {object[]} methods  @param {object[]} sampling  descriptions from the registry */
export function switched(methods, sampling, name, values) {
  const own = methods.find((x) => x.name === name)?.params ?? [];
  return {
    method: name,
    ...Object.fromEntries(
      [...own, ...sampling].map((p) => [
        p.name,
        sampling.includes(p) && values[p.name] !== undefined ? values[p.name] : p.default,
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
    own, first, h("details", { className: "wb-moresampling" }, h("summary", {}, "More sampling settings"), rest), note));
  let values = { ...model.get("values") }, timer = null;
  const sendValues = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = null;
      model.set("values", { ...values });
      model.save_changes();
    }, SEND_MS);
  };
  const draw = () => {
    const known = methods.find((x) => x.name === values.method),
      barred = controls.unsound(known, values),
      data = (params) => ({ params, values: values, inForce: values, barred });
    controls.select(method, controls.options(methods), values.method);
    controls.badge(promise, controls.promised(known, values));
    kit.write(teaches, controls.explanation(known, values));
    form.render(own, data(known?.params ?? []));
    form.render(first, data(sampling.slice(0, 1)));
    form.render(rest, data(sampling.slice(1)));
  };
  method.addEventListener("change", () => {
    values = switched(methods, sampling, method.value, values);
    sendValues();
    draw();
  });
  root.addEventListener("wb:param", ({ detail }) => {
    values = { ...values, [detail.name]: detail.value };
    kit.write(note, detail.note);
    note.classList.toggle("is-empty", !detail.note);
    sendValues();
    draw();
  });
  on("change:values", () => {
    if (timer) return; // do not overwrite a change in progress
    values = { ...model.get("values") };
    draw();
  });
  ends.push(() => clearTimeout(timer));
  draw();
}
