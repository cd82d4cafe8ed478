/** Form controls generated from parameter descriptions of the registry: sliders, switches and selects. */

/** Return the control of a parameter. Pure.
 *  @param {{name: string, kind: string, default: any, ge: number|null, le: number|null, choices: any[]|null, doc:
 *    string}} param */
export function field(param, value = param.default) {
  const { name, kind, choices, doc } = param;
  const title = name.replaceAll("_", " ").replace(/^./, (c) => c.toUpperCase());
  if (choices?.length) return { name, title, doc, control: "choice", choices, value };
  if (kind === "bool") return { name, title, doc, control: "switch", value: Boolean(value) };
  const min = param.ge ?? null, max = param.le ?? null;
  return {
    name,
    title,
    doc,
    control: min !== null && max !== null && !isCoarse(kind, min, max, param.default) ? "slider" : "number",
    kind,
    min,
    max,
    step: isCoarse(kind, min, max, param.default) && kind !== "int" ? 10 ** Math.floor(Math.log10(param.default)) : step(kind, min, max),
    value,
  };
}

/** Return whether a slider is useless: thousands of steps, or the default value is within the first one. Pure. */
function isCoarse(kind, min, max, usual) {
  return kind === "int" ? max - min > 5000 : usual > min && usual - min < (max - min) / 100;
}

/** Return a step that divides the range into about a hundred; 1 for integers. Pure. */
export function step(kind, min, max) {
  if (kind === "int") return 1;
  if (min === null || max === null) return "any";
  const raw = (max - min) / 100;
  const power = 10 ** Math.floor(Math.log10(raw)), lead = raw / power;
  return Number((power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10)).toPrecision(1));
}

/** Return the step of a slider at `value`: its own if the value is on a step, else "any", because a browser would move
 *  the slider to the nearest step, away from its field. Pure. */
export function stepAt(value, min, step) {
  const n = (value - min) / Number(step);
  return Math.abs(n - Math.round(n)) < 1e-6 ? String(step) : "any";
}

/** Return the nearest value on a slider's steps. Pure. */
export function snap(value, min, step) {
  const there = min + Math.round((value - min) / Number(step)) * Number(step);
  return Number(there.toFixed(9));
}

const allowed = (kind, min, max) =>
  `${kind === "int" ? "allowed: whole numbers from" : "allowed:"} ${format(min) ?? "−∞"} to ${format(max) ?? "∞"}`;
const format = (bound) => bound?.toLocaleString("en", { maximumFractionDigits: 9 });

/** Clamp a value to its range, with a note if it changed. Pure.
 *  @returns {{value: number, note: string}} */
export function clamp(param, value) {
  const { min, max } = field(param);
  let clamped = Number.isFinite(value) ? value : Number(param.default ?? min ?? 0);
  if (param.kind === "int") clamped = Math.round(clamped);
  if (min !== null) clamped = Math.max(min, clamped);
  if (max !== null) clamped = Math.min(max, clamped);
  return {
    value: clamped,
    note: clamped === value ? "" : `${param.name} set to ${clamped}: ${allowed(param.kind, min, max)}`,
  };
}

/** Return the value of an integer field: clamped; the default if the field is empty. Pure. */
export function whole(spec, text) {
  return clamp(spec, String(text).trim() === "" ? NaN : Number(text)).value;
}

/** Return the default values of numbers by name. Pure. @param {Record<string, {default: number}>} numbers */
export function usual(numbers) {
  return Object.fromEntries(Object.entries(numbers).map(([name, spec]) => [name, spec.default]));
}

/** Set the catalogue's limits on number fields. @param {Record<string, any>} inputs  by name */
export function limit(inputs, numbers) {
  for (const [name, spec] of Object.entries(numbers))
    if (inputs[name]) Object.assign(inputs[name], { min: String(spec.ge), max: String(spec.le) });
}

/** Return why a parameter has no effect with these values; empty if it has one. Pure.
 *  @param {string} when  as "policy = confidence or planned" or "temperature > 0"; empty: always
 *  @param {Record<string, any>} values  all parameters in force */
export function idle(when, values) {
  const [, name, sign, wanted] = /^(\w+) (=|>) (.+)$/.exec(when ?? "") ?? [];
  if (!name || values[name] === undefined) return "";
  const holds =
    sign === ">" ? Number(values[name]) > Number(wanted) : wanted.split(" or ").includes(String(values[name]));
  return holds ? "" : `has an effect only if ${name.replaceAll("_", " ")} ${sign === ">" ? "is above" : "is"} ${wanted}`;
}

const MANY = 3;

/** Return the parameters to fold away: the parameters of policies, tree builders and verifiers that are not chosen, if
 *  there are more than `MANY`, to keep the form short. Pure.
 *  @param {{name: string, when?: string}[]} params  @param {Record<string, any>} values  all parameters in force
 *  @returns {Set<string>} their names */
export function folded(params, values) {
  const found = params.filter(({ when }) => when?.includes(" = ") && idle(when, values)).map(({ name }) => name);
  return new Set(found.length > MANY ? found : []);
}

/** Return the values to send: the form's values, and defaults for the rest. Pure. */
export function values(params, current) {
  return Object.fromEntries(params.map((p) => [p.name, current[p.name] ?? p.default]));
}

/** Draw into `el`. Rows are keyed by name, so that a row keeps its element and the focus. Emits `wb:param` {name,
 *  value, note}. A parameter without effect is disabled and shows the reason; many such are folded away.
 *  @param {{params: object[], values: object, inForce: object, barred?: Record<string, Record<string, string>>}} data
 *    `inForce`: all values, of other forms too; `barred`: by parameter, disabled choices with their reasons */
export function render(el, data) {
  const rows = (el._rows ??= new Map());
  const wanted = new Set(data.params.map((p) => p.name));
  for (const [name, row] of rows) {
    if (!wanted.has(name) || row.shape !== shape(data.params.find((p) => p.name === name))) {
      row.element.remove();
      rows.delete(name);
    }
  }
  const away = folded(data.params, data.inForce ?? {}), list = drawer(el, away.size);
  const next = new Map([[el, 0], [list, 0]]);
  for (const param of data.params) {
    if (!rows.has(param.name)) rows.set(param.name, build(el, param));
    const row = rows.get(param.name), home = away.has(param.name) ? list : el, at = next.get(home) ?? 0;
    row.param = param;
    next.set(home, at + 1);
    if (home.children[at] !== row.element) home.insertBefore(row.element, home.children[at] ?? null);
    row.show(data.values[param.name] ?? param.default);
    row.grey?.(data.barred?.[param.name] ?? {}, data.values[param.name] ?? param.default);
    bar(row, idle(param.when, data.inForce ?? {}));
  }
}

/** Return the container of the folded rows, the last child of `el`; it is created when needed. */
function drawer(el, n) {
  if (!el._drawer && !n) return null;
  if (!el._drawer) {
    el._drawer = Object.assign(document.createElement("details"), { className: "wb-folded" });
    el._drawer.append(document.createElement("summary"), document.createElement("div"));
    el.append(el._drawer);
  }
  el._drawer.hidden = n === 0;
  const words = `${n} settings of options that are not selected`;
  if (el._drawer.firstChild.textContent !== words) el._drawer.firstChild.textContent = words;
  return el._drawer.lastChild;
}

function bar(row, reason) {
  if (row.reason === reason) return;
  row.reason = reason;
  row.element.classList.toggle("is-idle", Boolean(reason));
  for (const control of row.element.querySelectorAll("input, select")) control.disabled = Boolean(reason);
  row.why.textContent = reason;
}

function shape(param) {
  return JSON.stringify([param.kind, param.ge, param.le, param.choices]);
}

function build(el, param) {
  const f = field(param), uid = `wbf-${f.name}-${Math.random().toString(36).slice(2, 7)}`;
  const make = (tag, attributes) => Object.assign(document.createElement(tag), attributes);
  const element = make("div", { className: `wb-field is-${f.control}` }),
    label = make("label", { htmlFor: uid, textContent: f.title });
  if (f.doc) label.title = f.doc;
  element.dataset.param = f.name;
  const row = {
    element,
    param,
    shape: shape(param),
    show: (/** @type {any} */ _value) => {},
    /** @type {((barred: Record<string, string>, value: any) => void)|undefined} */
    grey: undefined,
    reason: "",
    why: make("small", { className: "wb-why" }),
  };
  const emit = (raw) => {
    const { value, note } =
      f.control === "slider" || f.control === "number" ? clamp(row.param, raw) : { value: raw, note: "" };
    row.show(value);
    el.dispatchEvent(new CustomEvent("wb:param", { bubbles: true, detail: { name: f.name, value, note } }));
  };
  if (f.control === "choice") {
    const select = make("select", { id: uid });
    select.append(...f.choices.map((c) => make("option", { value: String(c), textContent: String(c) })));
    select.addEventListener("change", () => emit(f.choices[select.selectedIndex]));
    row.show = (value) => (select.value = String(value));
    const reasons = make("details", { className: "wb-greyed", hidden: true });
    reasons.append(make("summary", {}), make("ul", {}));
    row.grey = (barred, value) => disableChoices(select, reasons, barred, value, make);
    element.append(label, select, reasons);
  } else if (f.control === "switch") {
    const box = make("input", { type: "checkbox", id: uid });
    box.addEventListener("change", () => emit(box.checked));
    row.show = (value) => (box.checked = Boolean(value));
    element.append(box, label);
  } else numeric(f, uid, label, row, emit, make);
  element.append(row.why);
  return row;
}

/** Disable choices and give the reasons below; the reason of a selected choice comes first. */
function disableChoices(select, reasons, barred, value, make) {
  const reasonsFirst = Object.entries(barred).sort(([a], [b]) => Number(b === value) - Number(a === value));
  const key = JSON.stringify([reasonsFirst, value]);
  if (reasons._key === key) return;
  reasons._key = key;
  for (const option of select.options) {
    const reason = barred[option.value] ?? "";
    option.disabled = Boolean(reason) && option.value !== String(value);
    option.textContent = reason ? `${option.value} ✕` : option.value;
    option.title = reason;
  }
  reasons.hidden = reasonsFirst.length === 0;
  reasons.classList.toggle("is-chosen", Object.hasOwn(barred, value));
  const others = reasonsFirst.length - Number(Object.hasOwn(barred, value));
  const words = [
    ...(Object.hasOwn(barred, value) ? [`${value} is not exact with these settings`] : []),
    ...(others ? [`${others} disabled`] : []),
  ];
  reasons.firstChild.textContent = `${words.join("; ")}: reasons`;
  reasons.lastChild.replaceChildren(
    ...reasonsFirst.map(([name, reason]) => {
      const item = make("li", {});
      item.append(make("b", { textContent: name }), ` ${reason}`);
      return item;
    }),
  );
}

function numeric(f, uid, label, row, emit, make) {
  const limits = {
    step: String(f.step),
    ...(f.min !== null && { min: String(f.min) }),
    ...(f.max !== null && { max: String(f.max) }),
  };
  const number = make("input", { type: "number", id: uid, ...limits, step: f.kind === "int" ? "1" : "any" });
  // A value being typed is not overwritten: a run redraws the form many times per second.
  let typing = false;
  const type = (value) => typing || number.value === String(value ?? "") || (number.value = value ?? "");
  number.addEventListener("input", (event) => {
    typing = true;
    // apply undo immediately
    if (event.inputType?.startsWith("history") && number.value !== "") number.dispatchEvent(new Event("change"));
  });
  number.addEventListener("blur", () => (typing = false));
  number.addEventListener("change", () => {
    typing = false;
    emit(number.value === "" ? NaN : Number(number.value));
  });
  row.element.append(label);
  if (f.control === "slider") {
    const range = make("input", { type: "range", ...limits });
    range.setAttribute("aria-label", `${f.title}, slider`);
    range.addEventListener("input", () => emit(snap(Number(range.value), f.min, f.step)));
    row.element.append(range);
    row.show = (value) => {
      range.step = stepAt(value, f.min, f.step);
      if (Number(range.value) !== value) range.value = value;
      type(value);
      range.style.setProperty("--fill", `${(100 * (value - f.min)) / (f.max - f.min || 1)}%`);
    };
  } else row.show = type;
  row.element.append(number);
}
