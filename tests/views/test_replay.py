"""The HTML replay and the browser's exports: the same from Python and from JavaScript, and safe with any text."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from traces import FIXTURES, QUOTES, make_hostile_image_trace, make_hostile_trace
from views.style_variables import FONTS
from views.test_modules import ENV, NAMES, needs_node

from workbench.trace import export, metrics
from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS
from workbench.views import modules, recorded_runs
from workbench.views.palette import variables
from workbench.views.replay import replay, sources


class Elements(HTMLParser):
    """Tags in order, and the text of each script and style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def elements(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def in_node(script: str) -> Any:
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    return json.loads(done.stdout)


def exported(kind: str, trace: Trace, folder: Path) -> Any:
    """Return the output of a function of `exports.js` for a trace."""
    given = folder / "trace.json"
    given.write_text(json.dumps(trace.to_wire()))
    return in_node(
        f"import {{ {kind} }} from {json.dumps(modules.module_path('shared/exports').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        f"console.log(JSON.stringify({kind}(JSON.parse(readFileSync({json.dumps(str(given))})))));"
    )


def switched() -> Trace:
    """Return a recorded run whose method was changed."""
    return recorded_runs.read(recorded_runs.folder() / f"switch{recorded_runs.SUFFIX}")


def test_hostile_texts_add_no_element() -> None:
    plain = recorded_runs.read(recorded_runs.folder() / f"draft-tree{recorded_runs.SUFFIX}")
    tags = [tag for tag, _ in elements(replay(make_hostile_trace())).tags]
    assert tags == [tag for tag, _ in elements(replay(plain)).tags]
    assert tags.count("script") == replay(make_hostile_trace()).lower().count("</script") == 3
    assert "<!--" not in replay(make_hostile_trace())
    assert "img" not in tags


def test_quotes_in_the_url_of_an_image_add_no_element() -> None:
    trace = make_hostile_image_trace()
    found, plain = elements(replay(trace)), elements(replay(recorded_runs.trace("specvlm")))
    assert found.tags == plain.tags
    assert len(found.texts) == len(plain.texts)
    assert not any(QUOTES in (value or "") for _, attributes in found.tags for value in attributes.values())
    recording = next(json.loads(text) for text in found.texts if text.startswith('{"trace"'))
    assert recording["trace"]["header"]["pictures"][0]["url"].endswith(QUOTES), "as data it is unchanged"


@needs_node
def test_quotes_in_the_url_of_an_image_add_no_element_to_the_browser_s_file(tmp_path: Path) -> None:
    trace = make_hostile_image_trace()
    given, made = tmp_path / "given.json", tmp_path / "replay.html"
    given.write_text(json.dumps([sources("vision"), {"trace": trace.to_wire(), "definitions": {}}]))
    in_node(
        f"import {{ html }} from {json.dumps(modules.module_path('shared/replay').as_uri())};"
        "import { readFileSync, writeFileSync } from 'node:fs';"
        f"const given = JSON.parse(readFileSync({json.dumps(str(given))}));"
        f"writeFileSync({json.dumps(str(made))}, html(...given));"
        "console.log('null');"
    )
    assert elements(made.read_text(encoding="utf-8")).tags == elements(replay(recorded_runs.trace("specvlm"))).tags


def test_the_replay_contains_the_whole_trace() -> None:
    trace = make_hostile_trace()
    text = re.search('id="wb-recording">(.*?)</script>', replay(trace), re.DOTALL)
    assert text
    recording = json.loads(text[1])
    assert Trace.from_wire(recording["trace"]) == trace
    assert recording["definitions"] == {name: list(pair) for name, pair in DEFINITIONS.items()}


def test_the_replay_loads_no_external_resources() -> None:
    found = elements(replay(make_hostile_trace()))
    assert not [a for _, a in found.tags if {"src", "href"} & set(a)]
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_the_replay_has_the_pages_style() -> None:
    style = sources()["style"]
    assert "--wb-accepted:" in style
    assert all(path.read_text(encoding="utf-8") in style for path in modules.stylesheets())


@needs_node
def test_browser_and_python_write_the_same_replay(tmp_path: Path) -> None:
    trace = Trace.from_wire(json.loads((FIXTURES / "tree.json").read_text())).to_wire()
    given = tmp_path / "given.json"
    given.write_text(json.dumps([sources(), {"trace": trace, "definitions": DEFINITIONS}]))
    script = (
        f"import {{ html }} from {json.dumps(modules.module_path('shared/replay').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        f"console.log(JSON.stringify(html(...JSON.parse(readFileSync({json.dumps(str(given))})))));"
    )
    made, ours = (elements(text) for text in (in_node(script), replay(Trace.from_wire(trace))))
    assert made.tags == ours.tags
    for one, other in zip(made.texts, ours.texts, strict=True):
        assert one == other or json.loads(one) == json.loads(other)


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_browser_and_python_write_the_same_json_lines(name: str, tmp_path: Path) -> None:
    trace = Trace.from_wire(json.loads((FIXTURES / f"{name}.json").read_text()))
    assert export.read_json_lines(exported("jsonLines", trace, tmp_path)) == trace


NEEDS = {"X": {"ts", "dur", "tid", "args"}, "M": {"args", "tid"}, "C": {"ts", "args"}, "i": {"ts", "s", "tid"}}


@needs_node
@pytest.mark.parametrize("make", [switched, make_hostile_trace])
def test_the_chrome_trace_has_the_documented_format(make: Callable[[], Trace], tmp_path: Path) -> None:
    trace = make()
    made = exported("chromeTrace", trace, tmp_path)
    assert made["otherData"]["target"] == trace.header.target
    events = made["traceEvents"]
    for event in events:
        assert {"name", "ph", "pid"} | NEEDS[event["ph"]] <= set(event), event
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["tid"] for e in events if e["ph"] == "X"} == set(lanes), "every lane has a name and at least one span"
    for tid in lanes:  # spans of a lane must not overlap: an overlapping one would be drawn as a nested call
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid)
        assert all(a[1] <= b[0] + 1 for a, b in pairwise(spans)), lanes[tid]


@needs_node
def test_the_chrome_trace_agrees_with_the_trace(tmp_path: Path) -> None:
    trace = switched()
    events = exported("chromeTrace", trace, tmp_path)["traceEvents"]
    rounds = [e for e in events if e["ph"] == "X" and e["name"].startswith("round ")]
    zero = trace.header.prefill_s
    for event, r in zip(rounds, trace.rounds, strict=True):
        assert event["ts"] == pytest.approx(1e6 * (r.started_s + zero))
        assert event["dur"] == pytest.approx(1e6 * r.seconds)
        assert event["args"] == {
            "method": r.method, "drafted": metrics.count_drafted([r]), "tested": metrics.count_tested([r]),
            "accepted": metrics.count_accepted([r]), "emitted": metrics.count_emitted([r]),
            "text": "".join(e.text for e in r.emitted),
        }  # fmt: skip
    assert [e["name"] for e in events if e["ph"] == "i" and e["name"] == "change method"] == ["change method"]
    last = [e for e in events if e["name"] == "acceptance"][-1]
    assert last["args"]["cumulative"] == pytest.approx(metrics.acceptance_rate(trace.rounds))
    assert last["args"]["last 8 rounds"] == pytest.approx(metrics.acceptance_rate(trace.rounds[-8:]))
    assert next(e for e in reversed(events) if e["name"] == "tokens")["args"]["emitted"] == len(trace.token_ids)
    for phase in ("draft", "verify"):
        drawn = sum(e["dur"] for e in events if e["name"] == phase)
        phases = [p for r in trace.rounds for p in r.phases if p.name == phase]
        assert drawn == pytest.approx(1e6 * sum(p.end_s - p.start_s for p in phases))


def test_the_pages_stylesheet_has_no_literal_colour_and_no_unknown_variable() -> None:
    css = modules.PAGES_STYLESHEET.read_text(encoding="utf-8")
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b", css.replace("#000 70%", ""))  # a mask, which has no colour
    assert set(re.findall(r"var\((--wb-[a-z-]+)", css)) <= set(variables("light")) | FONTS
