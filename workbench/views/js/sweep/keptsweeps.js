/** List of sweeps measured before on this machine; each can be reopened. */

import * as kit from "../shared/kit.js";
import { h } from "../shared/kit.js";

/** Describe a kept sweep. Pure. */
export function words({ done, total, date, on, writing, method, target }) {
  return [method, target, `${done} of ${total} cells${writing ? ", being measured" : ""}`, date, on]
    .filter(Boolean)
    .join(" · ");
}

/** Return the panel's choice for a kept sweep; numbers that it lacks stay unchanged. Pure. */
export function choiceOf(sweep, choice) {
  const { axes, params, group, ...rest } = sweep,
    known = ["method", "target", "drafter", "limit", "max_new_tokens", "seed", "repeats"];
  const text = (values) => values.join(values.some((value) => `${value}`.includes(",")) ? "; " : ", ");
  const axesText = Object.entries(axes).map(([name, values]) => ({ name, text: text(values) }));
  return {
    ...choice,
    ...Object.fromEntries(known.filter((name) => rest[name] !== undefined).map((name) => [name, rest[name]])),
    axes: axesText,
    params: { ...params },
    groups: group?.length ? [...group] : choice.groups,
  };
}

/** Return the banner of a recorded example. Pure. */
export function banner({ on, date }, other) {
  const differs = other.length ? ` The panel has other settings: ${other.join(", ")}.` : "";
  return `RECORDED example, measured on ${on}; ${date}.${differs} Press Measure for results of this machine.`;
}

const NUMBERS = { repeats: "repeats", limit: "prompts per kind", max_new_tokens: "max tokens", seed: "seed" };

/** List the differences between the panel's request and a sweep, in words; [] if there are none. Pure. */
export function differences(request, sweep) {
  const axes = Object.fromEntries(request.axes.map(({ name, values }) => [name, values])),
    found = JSON.stringify(axes) === JSON.stringify(sweep.axes) ? [] : ["axes"];
  for (const name of ["method", "target"]) if (request[name] !== sweep[name]) found.push(name);
  for (const [name, words] of Object.entries(NUMBERS))
    if (sweep[name] !== undefined && request[name] !== sweep[name])
      found.push(`${words} ${request[name]}, not ${sweep[name]}`);
  return found;
}

/** Draw the list into `el`; emits `wb:kept` {id}. */
export function render(el, list, open) {
  kit.resize(el, list.length, () => {
    const button = h(
      "button",
      { type: "button", className: "wb-tool", onclick: () => kit.emit(el, "wb:kept", { id: button.dataset.id }) },
      "open",
    );
    return h("li", {}, h("b"), h("small"), button);
  });
  list.forEach((line, i) => {
    const [title, details, button] = el.children[i].children;
    kit.write(title, line.title.replaceAll("_", " "));
    kit.write(details, words(line));
    button.dataset.id = line.id;
    button.setAttribute("aria-label", `Open the sweep of ${line.title}, ${words(line)}`);
    button.setAttribute("aria-pressed", String(line.id === open));
  });
}
