/** State of the Sweep panel: axes with their values, settings; its request and its address. No DOM. */

import * as form from "../shared/form.js";
import * as draftModels from "../shared/draftmodels.js";

const LISTS = ["method", "drafter", "prompts", "target"];

/** Return the initial choice. */
export function first(catalogue) {
  const method = catalogue.chosen.method;
  const axes = [
    { name: "depth", text: "1, 2, 4, 6" },
    { name: "temperature", text: "0, 0.7" },
  ].filter(({ name }) => spec(name, method, catalogue));
  return {
    axes,
    method,
    params: {},
    target: catalogue.chosen.target,
    drafter: null,
    groups: catalogue.groups.slice(0, 1),
    ...form.usual(catalogue.numbers),
  };
}

/** Return the possible axes, in the order of the list: names with their labels. */
export function axes(choice, catalogue) {
  const own = catalogue.methods.find((m) => m.name === choice.method)?.params ?? [],
    words = (name) => name.replaceAll("_", " ");
  return [
    ...LISTS.map((name) => ({ value: name, text: name === "prompts" ? "kind of prompts" : name })),
    ...own.map((p) => ({ value: p.name, text: words(p.name) })),
    ...catalogue.sampling.map((p) => ({ value: p.name, text: words(p.name) })),
    ...catalogue.options.filter((p) => p.name !== "seed").map((p) => ({ value: p.name, text: words(p.name) })),
    { value: "seed", text: "seed" },
  ];
}

/** Return the description of an axis: a parameter, or a list of names. */
export function spec(name, method, catalogue) {
  const usable = (entries) => entries.filter((e) => e.available !== false).map((e) => e.name);
  const lists = {
    method: () => usable(catalogue.methods),
    drafter: () => usable(draftModels.usable(catalogue, method)),
    target: () => usable(catalogue.targets),
    prompts: () => catalogue.groups,
  };
  if (lists[name]) return { name, kind: "names", names: lists[name]() };
  return (
    [
      ...(catalogue.methods.find((m) => m.name === method)?.params ?? []),
      ...catalogue.sampling,
      ...catalogue.options,
    ].find((p) => p.name === name) ?? null
  );
}

/** Suggest values, as text. Pure. */
export function suggestion(known) {
  if (!known) return "";
  if (known.kind === "names") return known.names.slice(0, 3).join(", ");
  if (known.choices?.length) return known.choices.join(", ");
  if (known.kind === "bool") return "false, true";
  const low = known.ge ?? 0,
    high = Math.min(known.le ?? 4 * (known.default || 1), Math.max(2 * known.default, low + 4));
  if (known.kind === "int")
    return [...new Set([low, Math.round((low + high) / 4), known.default, high])]
      .filter((v) => v >= low)
      .sort((a, b) => a - b)
      .join(", ");
  return [...new Set([low, known.default, Number((low + 0.5 * (high - low)).toPrecision(2)), high])]
    .sort((a, b) => a - b)
    .join(", ");
}

/** Parse the values of an axis; `problem` describes an error. Pure.
 *  @returns {{values: (string|number|boolean)[], problem: string}} */
export function values({ name, text }, known) {
  if (!known) return { values: [], problem: `this method has no ${name.replaceAll("_", " ")}` };
  const parts = text.split(text.includes(";") ? ";" : ",").flatMap((part) => {
    const range = /^\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*$/.exec(part);
    return range
      ? Array.from(
          { length: Math.max(0, Math.min(200, Number(range[2]) - Number(range[1]) + 1)) },
          (_, i) => `${Number(range[1]) + i}`,
        )
      : [part.trim()];
  }).filter(Boolean);
  const read = parts.map((part) => one(part, known)), wrong = read.findIndex((value) => value === undefined);
  if (wrong >= 0) return { values: [], problem: `${parts[wrong]}: ${allowed(known)}` };
  if (!read.length) return { values: [], problem: "no values yet" };
  if (new Set(read).size < read.length) return { values: [], problem: "a value occurs twice" };
  return { values: read, problem: "" };
}

function one(text, known) {
  if (known.kind === "names") return known.names.includes(text.split(":")[0]) ? text : undefined;
  if (known.choices?.length) return known.choices.includes(text) ? text : undefined;
  if (known.kind === "bool") return { true: true, false: false }[text];
  const value = Number(text);
  return !Number.isFinite(value) ||
    (known.kind === "int" && !Number.isInteger(value)) ||
    value < (known.ge ?? -Infinity) ||
    value > (known.le ?? Infinity)
    ? undefined
    : value;
}

function allowed(known) {
  if (known.kind === "names")
    return `one of ${known.names.slice(0, 8).join(", ")}${known.names.length > 8 ? ", …" : ""}`;
  if (known.choices?.length) return `one of ${known.choices.join(", ")}`;
  return known.kind === "bool"
    ? "true or false"
    : `a ${known.kind === "int" ? "whole " : ""}number from ${known.ge ?? "−∞"} to ${known.le ?? "∞"}`;
}

/** Parse all axes: their values, the number of cells, and an error. */
export function plan(choice, catalogue) {
  const read = choice.axes.map((axis) => ({
      name: axis.name,
      ...values(axis, spec(axis.name, choice.method, catalogue)),
    })),
    names = read.map((axis) => axis.name);
  const cells = read.reduce((n, axis) => n * axis.values.length, 1);
  const problem = !read.length
    ? "No axis is chosen: choose a parameter and its values."
    : new Set(names).size < names.length
      ? "Both axes vary the same parameter."
      : read.find((axis) => axis.problem)
        ? `${read.find((axis) => axis.problem).name}: ${read.find((axis) => axis.problem).problem}`
        : cells > catalogue.most
          ? `The sweep has ${cells} cells; the limit is ${catalogue.most}.`
          : "";
  return { axes: read, cells, problem };
}

/** Return the request of a sweep. */
export function request(choice, catalogue, clamp) {
  const varied = choice.axes.map((axis) => axis.name),
    known = [...(catalogue.methods.find((m) => m.name === choice.method)?.params ?? []), ...catalogue.sampling];
  const params = Object.fromEntries(
    known
      .filter((p) => !varied.includes(p.name) && choice.params[p.name] !== undefined)
      .map((p) => [
        p.name,
        typeof choice.params[p.name] === "number" ? clamp(p, choice.params[p.name]).value : choice.params[p.name],
      ]),
  );
  return {
    axes: plan(choice, catalogue).axes.map(({ name, values: list }) => ({ name, values: list })),
    method: choice.method,
    params,
    target: choice.target,
    drafter: choice.drafter,
    group: varied.includes("prompts") ? [] : choice.groups,
    ...Object.fromEntries(Object.keys(catalogue.numbers).map((name) => [name, choice[name]])),
  };
}

/** Return the query that restores the choice. Pure. */
export function toQuery(choice, catalogue) {
  const query = new URLSearchParams(), usual = first(catalogue);
  for (const { name, text } of choice.axes) query.append("axis", `${name}=${text.replaceAll(/\s/g, "")}`);
  for (const name of ["method", "target", "drafter"])
    if (choice[name] && choice[name] !== usual[name]) query.set(name, choice[name]);
  query.set("group", choice.groups.join(","));
  for (const name of Object.keys(catalogue.numbers)) if (choice[name] !== usual[name]) query.set(name, choice[name]);
  for (const [name, value] of Object.entries(choice.params)) query.set(name, value);
  return query.toString();
}

/** Parse an address; invalid parts are left out and listed. @returns {{choice: object, problems: string[]}} */
export function fromQuery(search, catalogue, clamp) {
  const query = new URLSearchParams(search), choice = first(catalogue), problems = [];
  if (query.get("tab") !== "sweep") return { choice, problems };
  const bad = (name, text, why) =>
      problems.push(`${name}=${text.length > 40 ? `${text.slice(0, 39)}…` : text}: ${why}`),
    found = [];
  if (query.has("method")) {
    if (catalogue.methods.some((m) => m.name === query.get("method"))) choice.method = query.get("method");
    else bad("method", query.get("method"), "unknown method");
  }
  const known = new Map(
    [...(catalogue.methods.find((m) => m.name === choice.method)?.params ?? []), ...catalogue.sampling].map((p) => [
      p.name,
      p,
    ]),
  );
  for (const [name, text] of query) {
    if (name === "axis") {
      const at = text.indexOf("="),
        axis = { name: text.slice(0, at), text: text.slice(at + 1).replaceAll(",", ", ") },
        problem = values(axis, spec(axis.name, choice.method, catalogue)).problem;
      if (at < 1 || problem) bad(name, text, problem || "not NAME=VALUES");
      else if (found.length < 2) found.push(axis);
    } else if (name === "group") choice.groups = text.split(",").filter((g) => catalogue.groups.includes(g));
    else if (name === "target" || name === "drafter") choice[name] = text;
    else if (name in catalogue.numbers) {
      if (/^\d{1,16}$/.test(text) && form.whole(catalogue.numbers[name], text) === Number(text))
        choice[name] = Number(text);
      else bad(name, text, `not a whole number from ${catalogue.numbers[name].ge} to ${catalogue.numbers[name].le}`);
    } else if (known.has(name)) {
      const p = known.get(name), value = p.choices?.length ? text : p.kind === "bool" ? text === "true" : Number(text);
      if (
        p.choices?.length
          ? p.choices.includes(value)
          : p.kind === "bool" || (text.trim() !== "" && clamp(p, value).value === value)
      )
        choice.params[name] = value;
      else bad(name, text, "out of range");
    } else if (!["tab", "method", "metric"].includes(name) && !name.startsWith("__")) bad(name, text, "unknown setting");
  }
  if (found.length) choice.axes = found;
  if (!choice.groups.length) choice.groups = first(catalogue).groups;
  return { choice, problems };
}
