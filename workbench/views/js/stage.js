/** The cards of the Live view in one place: builds them once, then tells each drawing what to show. */

/** Build the empty page inside `el`; returns the parts by name. */
export function build(el) {
  const parts = {};
  const part = (name, tag = "div", properties = {}, ...children) => (parts[name] = h(tag, properties, ...children));
  const card = (name, title, extra, ...body) => {
    const head = h("h3", {}, part(`${name}Title`, "span", {}, title), extra ?? "", part(`${name}Note`, "em"));
    return h("section", { className: `wb-card wb-card-${name}` }, head, ...body);
  };
  const chart = (name, title, extra, className) => {
    const made = card(name, title, extra, part(name, "div", { className }), part(`${name}Table`, "div", { className: "wb-table", tabIndex: 0, hidden: true }));
    made.firstChild.append(tableSwitch(parts, name, title));
    return made;
  };
  const region = (name, className, attributes) => {
    const made = part(name, "div", { className, tabIndex: 0 });
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  el.append(
    h("header", { className: "wb-head" }, h("b", {}, "Speculative Decoding Workbench"), h("span", { className: "wb-tabname" }, "Live"), h("span", { className: "wb-space" }),
      part("badge", "span", { className: "wb-badge" }, h("i"), part("badgeText", "span")),
      part("simulation", "span", { className: "wb-badge is-simulation", hidden: true }, "SIMULATION"),
      part("theme", "button", { type: "button", className: "wb-badge", title: "Light or dark" }, "◐ theme"),
      part("help", "button", { type: "button", className: "wb-badge", title: "Keys and words" }, "?")),
    h("div", { className: "wb-main" }, part("side", "aside", { className: "wb-side" }),
      part("stage", "div", { className: "wb-stage" },
        part("alerts", "div", { className: "wb-alerts" }),
        part("figures", "div", { className: "wb-figures" }),
        card("ribbon", "Tokens", legend(parts), region("ribbon", "wb-ribbon", { role: "listbox", "aria-label": "Generated tokens", "aria-orientation": "horizontal" })),
        h("div", { className: "wb-two" },
          card("tree", "Draft tree", null, region("tree", "wb-tree", { role: "group", "aria-label": "Draft tree of the selected round" })),
          card("card", "Node", null, part("card", "div", { className: "wb-nodecard" }))),
        chart("lane", "Wall clock", phases(), "wb-lane"),
        h("div", { className: "wb-three" },
          chart("curve", "Acceptance", null, "wb-chart"),
          chart("position", "By position", null, "wb-chart"),
          chart("histogram", "Accepted per round", h("span", { className: "wb-legend" }, h("span", {}, h("i", { className: "wb-with-bonus" }), "bonus")), "wb-chart is-parts")),
        scrubber(part))),
    part("live", "div", { className: "wb-unseen" }),
    part("keys", "dialog", { className: "wb-keys" }));
  parts.live.setAttribute("aria-live", "polite");
  parts.alerts.setAttribute("role", "alert");
  help(parts.keys);
  return parts;
}

function tableSwitch(parts, name, title) {
  const button = h("button", { type: "button", className: "wb-tool", title: "Show the numbers as a table" }, "▤");
  button.setAttribute("aria-label", `${title}: show as a table`);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const on = parts[`${name}Table`].hidden;
    parts[`${name}Table`].hidden = !on;
    parts[name].hidden = on;
    button.setAttribute("aria-pressed", String(on));
    button.dispatchEvent(new CustomEvent("wb:redraw", { bubbles: true }));
  });
  return button;
}

function legend(parts) {
  const names = ["accepted", "corrected", "bonus", "rejected", "discarded"];
  parts.ghosts = h("input", { type: "checkbox", checked: true });
  const toggle = h("label", { className: "wb-toggle" }, parts.ghosts, "ghosts");
  return h("span", { className: "wb-legend" }, ...names.map((name) => h("span", {}, h("i", { className: `is-${name}` }), name)), toggle);
}

function phases() {
  return h("span", { className: "wb-legend" }, ...["draft", "verify", "host"].map((name) => h("span", {}, h("i", { className: `wb-phase-${name}` }), name)));
}

function scrubber(part) {
  const button = (name, text, title) => {
    const made = part(name, "button", { type: "button", className: "wb-tool", title }, text);
    made.setAttribute("aria-label", title);
    return made;
  };
  const speed = part("speed", "select", { title: "Replay speed" }, ...[["1", "1×"], ["0.25", "0.25×"], ["0.05", "0.05×"]].map(([value, text]) => h("option", { value }, text)));
  speed.setAttribute("aria-label", "Replay speed");
  const slider = part("slider", "input", { type: "range", min: 1, max: 1, value: 1, step: 1 });
  slider.setAttribute("aria-label", "Round shown");
  return h("div", { className: "wb-scrub" }, button("replay", "▶", "Replay with the recorded times"), button("back", "[", "Previous round"),
    part("where", "span", { className: "wb-where" }, "round –"), button("forth", "]", "Next round"), slider, speed,
    part("jump", "button", { type: "button", className: "wb-badge" }, h("i"), "jump to live"));
}

function help(dialog) {
  const keys = [
    ["Ctrl / ⌘ Enter", "run"], ["Space", "pause or resume"], ["← →", "token (in the tree: parent, child)"], ["↑ ↓", "node of the same depth"],
    ["[ ]", "previous, next round"], ["Home End", "first, last round"], ["Enter or P", "pin what is shown"], ["Esc", "clear the pin"], ["L", "jump to live"], ["?", "this list"],
  ];
  const words = [
    ["draft", "tokens the drafter proposes"], ["verify", "one forward of the target over all of them"], ["accepted", "tested and kept"], ["rejected", "tested and refused"],
    ["corrected", "the target's own token after a rejection"], ["bonus", "the target's extra token after a fully accepted path"], ["discarded", "drafted, never tested: the path ended before it"], ["τ", "tokens emitted per verification"],
  ];
  const table = (rows) => h("dl", {}, ...rows.flatMap(([a, b]) => [h("dt", {}, a), h("dd", {}, b)]));
  dialog.append(h("form", { method: "dialog" }, h("div", { className: "wb-two" }, h("div", {}, h("h3", {}, "Keys, while the stage has the focus"), table(keys)), h("div", {}, h("h3", {}, "Words"), table(words))), h("button", { className: "wb-go" }, "Close")));
}

/** Draw everything that `view` says. `m` are the drawing modules. */
export function draw(parts, m, view) {
  const { run, rounds, shown, figures } = view;
  write(parts.badgeText, view.badge);
  parts.badge.dataset.state = view.state;
  parts.simulation.hidden = !view.simulation;
  alerts(parts.alerts, view.alerts);
  m.keyfigures.render(parts.figures, { items: m.keyfigures.items(figures, view.plainFigures, view.definitions) });
  m.ribbon.render(parts.ribbon, {
    key: run?.channel ?? "", prompt: run?.header?.prompt_text ?? [], rounds, ghosts: view.ghosts, follow: view.follow,
    shown: shown === null ? null : { round: shown.round, token: shown.token ?? null, scroll: view.scroll },
  });
  parts.ribbon.classList.toggle("is-empty", !run?.header);
  parts.ribbon.dataset.empty = view.waiting;
  write(parts.ribbonNote, view.status);
  const round = shown === null ? null : rounds[shown.round];
  m.tree.render(parts.tree, { round, textOf: m.ribbon.tokenText, root: rootText(run, rounds, shown), node: shown?.node ?? null, empty: view.waiting });
  write(parts.treeTitle, round ? `Draft tree, round ${round.index + 1}` : "Draft tree");
  write(parts.treeNote, round ? treeNote(round, m.tree.choose(round.nodes).hidden) : "");
  nodeCard(parts, m, round, shown);
  m.lane.render(parts.lane, { rounds, plain: view.plainRounds, anchor: view.anchor, shown: shown?.round ?? -1, brush: view.brush });
  write(parts.laneNote, view.brush ? m.lane.totals(rounds, view.brush) : rounds.length ? "drag to sum" : "");
  m.curve.render(parts.curve, { points: m.figures.acceptanceOverTime(rounds, 8), marks: m.figures.changeMarks(rounds), shown: shown?.round ?? 0, window: 8 });
  write(parts.curveNote, rounds.length ? "accepted / tested" : "");
  const depths = m.figures.acceptanceByDepth(rounds);
  m.bars.render(parts.position, {
    bars: depths.map((d) => ({ label: `${d.depth}`, value: d.rate, text: d.rate.toFixed(2), low: d.low, high: d.high })), max: 1, ticks: [0, 0.5, 1], axis: "depth",
    summary: `Acceptance by depth, given all before: ${depths.map((d) => `${d.depth}: ${Math.round(100 * d.rate)} % of ${d.tested}`).join(", ") || "nothing tested yet"}`,
  });
  write(parts.positionNote, depths.length ? "given all before" : "");
  const counts = m.figures.histogram(rounds);
  m.bars.render(parts.histogram, {
    bars: counts.map((c) => ({ label: `${c.accepted}`, value: c.rounds, text: `${c.rounds}`, part: c.bonus })), max: Math.max(1, ...counts.map((c) => c.rounds)), ticks: [], axis: "accepted",
    summary: `Rounds by accepted drafts: ${counts.map((c) => `${c.accepted}: ${c.rounds}`).join(", ") || "none yet"}`,
  });
  write(parts.histogramNote, rounds.length ? `n = ${rounds.length}` : "");
  for (const [name, make] of Object.entries(m.table.TABLES)) {
    if (!parts[`${name}Table`].hidden) m.table.render(parts[`${name}Table`], make(rounds, m.figures));
  }
  scrub(parts, view);
}

function nodeCard(parts, m, round, shown) {
  const node = round && typeof shown.node === "number" && shown.node >= 0 ? shown.node : null;
  m.card.render(parts.card, { round, node });
  if (!round) return write(parts.cardTitle, "Node"), write(parts.cardNote, "");
  if (node !== null) {
    write(parts.cardTitle, `“${m.ribbon.visibleText(round.nodes.text[node])}” at depth ${round.nodes.depth[node]}`);
    write(parts.cardNote, round.nodes.status[node]);
  } else {
    const own = round.emitted.find((e) => e.node === null);
    write(parts.cardTitle, own ? `After the accepted path: “${m.ribbon.tokenText(round, own)}”` : `Round ${round.index + 1}`);
    write(parts.cardNote, round.bonus_kind ?? "");
  }
}

function treeNote(round, hidden) {
  const tested = round.nodes.status.filter((x) => x !== "discarded").length, n = round.nodes.status.length;
  if (n === 0) return "nothing drafted: plain decoding";
  return `${n} node${n === 1 ? "" : "s"} · ${tested} tested, ${round.path.length} accepted${round.nodes.q.some((q) => q !== null) ? " · edge width = draft probability" : ""}${hidden ? ` · +${hidden} hidden` : ""}`;
}

function rootText(run, rounds, shown) {
  if (shown === null) return "";
  for (let i = shown.round - 1; i >= 0; i -= 1) {
    const last = rounds[i].emitted.at(-1);
    if (last) return last.text;
  }
  return run?.header?.prompt_text.at(-1) ?? "";
}

function scrub(parts, view) {
  const n = view.rounds.length, at = view.shown?.round ?? 0;
  parts.slider.max = Math.max(1, n);
  parts.slider.disabled = n === 0;
  if (document.activeElement !== parts.slider || view.follow) parts.slider.value = at + 1;
  parts.slider.setAttribute("aria-valuetext", n ? `round ${at + 1} of ${n}` : "no rounds yet");
  parts.slider.style.setProperty("--fill", `${n > 1 ? (100 * at) / (n - 1) : n ? 100 : 0}%`);
  write(parts.where, n ? `round ${at + 1} of ${n}` : "round –");
  write(parts.replay, view.replaying ? "❚❚" : "▶");
  parts.jump.hidden = view.follow || n === 0;
}

function alerts(el, list) {
  while (el.childElementCount > list.length) el.lastChild.remove();
  while (el.childElementCount < list.length) el.append(h("div", {}, h("b"), " ", h("span")));
  list.forEach((alert, i) => {
    el.children[i].className = `wb-alert is-${alert.kind}`;
    write(el.children[i].firstChild, alert.message);
    write(el.children[i].lastChild, alert.remedy);
  });
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function h(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
