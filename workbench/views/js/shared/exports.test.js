import assert from "node:assert";
import { test } from "node:test";
import { caption, chromeTrace, fileName, jsonLines, printable, wrap } from "./exports.js";
import { embed, html } from "./replay.js";

const HOSTILE = "</script><img src=x onerror=alert(1)><!--\u2028\u2029&amp;${1}$&$`%STYLE%";
const header = {
  method: "draft-tree",
  target: "a/b",
  drafter: null,
  device: "cpu",
  dtype: "float32",
  created: "2026-11-21T10:49:00+0000",
  prefill_s: 0.5,
  simulation: false,
};
const trace = { header: { ...header, prompt: HOSTILE }, rounds: [], footer: { text: HOSTILE } };

test("every event is one line that can be parsed", () => {
  const lines = jsonLines(trace).trimEnd().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((line) => line.event), ["header", "footer"]);
  assert.equal(lines[0].prompt, HOSTILE);
});

test("a file name has harmless characters only", () => {
  assert.equal(fileName(header, "svg", "tree"), "draft-tree_a-b_2026-11-21T1049_tree.svg");
  assert.match(fileName({ method: "../../x", target: "<b>\u0000", created: "soon" }, "jsonl"), /^[A-Za-z0-9_.-]+$/);
  assert.equal(fileName({}, "html"), "run.html");
});

test("the caption of every image of a simulation says so", () => {
  assert.match(caption(trace), /^RECORDED · draft-tree on a\/b · cpu/);
  assert.match(caption({ header: { ...header, simulation: true } }), /^RECORDED · SIMULATION/);
});

test("a caption is wrapped between its parts, and nothing is lost", () => {
  const lines = wrap(caption(trace), 160);
  assert.ok(lines.length > 1);
  assert.equal(lines.join(" · "), caption(trace));
});

test("characters that XML does not allow are replaced", () => {
  assert.equal(printable("a\u0000b\ud800c\n<"), "a\ufffdb\ufffdc\n<");
});

test("a trace without rounds is a valid Chrome trace", () => {
  assert.deepEqual(
    chromeTrace(trace).traceEvents.map((e) => e.name),
    ["process_name", "thread_name", "thread_name", "prefill"],
  );
});

test("nothing in a trace can end its script element, and it is parsed unchanged", () => {
  const text = embed({ a: HOSTILE });
  assert.doesNotMatch(text, /[<>&\u2028\u2029]/);
  assert.equal(JSON.parse(text).a, HOSTILE);
});

test("the template is filled once: a placeholder in a trace or a module stays text", () => {
  const sources = { template: "<style>%STYLE%</style>\n%SOURCES%\n%RECORDING%", style: "a{}", module: "%RECORDING%$&" };
  const [style, inner, recording] = html(sources, { trace }).split("\n");
  assert.equal(style, "<style>a{}</style>");
  assert.deepEqual(JSON.parse(inner), sources);
  assert.equal(JSON.parse(recording).trace.footer.text, HOSTILE);
});
