"""The HTML replay and the browser's exports: the same from Python and from JavaScript, and safe with any text."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from traces import FIXTURES, hostile
from views.test_modules import ENV, NAMES, needs_node

from workbench.trace import export
from workbench.trace.events import Trace
from workbench.trace.metrics import DEFINITIONS
from workbench.views import modules, recorded
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


def test_hostile_texts_add_no_element() -> None:
    plain = recorded.read(recorded.folder() / f"draft-tree{recorded.SUFFIX}")
    tags = [tag for tag, _ in elements(replay(hostile())).tags]
    assert tags == [tag for tag, _ in elements(replay(plain)).tags]
    assert tags.count("script") == replay(hostile()).lower().count("</script") == 3
    assert "<!--" not in replay(hostile())
    assert "img" not in tags


def test_the_trace_is_in_it_whole() -> None:
    trace = hostile()
    text = re.search('id="wb-recording">(.*?)</script>', replay(trace), re.DOTALL)
    assert text
    recording = json.loads(text[1])
    assert Trace.from_wire(recording["trace"]) == trace
    assert recording["definitions"] == {name: list(pair) for name, pair in DEFINITIONS.items()}


def test_it_asks_for_nothing_outside_itself() -> None:
    found = elements(replay(hostile()))
    assert not [a for _, a in found.tags if {"src", "href"} & set(a)]
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_its_style_is_the_page_s() -> None:
    style = sources()["style"]
    assert "--wb-accepted:" in style
    assert all(path.read_text(encoding="utf-8") in style for path in modules.stylesheets())


@needs_node
def test_the_browser_makes_the_same_file(tmp_path: Path) -> None:
    trace = Trace.from_wire(json.loads((FIXTURES / "tree.json").read_text())).to_wire()
    given = tmp_path / "given.json"
    given.write_text(json.dumps([sources(), {"trace": trace, "definitions": DEFINITIONS}]))
    script = (
        f"import {{ html }} from {json.dumps(modules.module_path('replay').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        f"console.log(JSON.stringify(html(...JSON.parse(readFileSync({json.dumps(str(given))})))));"
    )
    made, ours = (elements(text) for text in (in_node(script), replay(Trace.from_wire(trace))))
    assert made.tags == ours.tags
    for one, other in zip(made.texts, ours.texts, strict=True):
        assert one == other or json.loads(one) == json.loads(other)


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_the_browser_s_chrome_trace_and_lines_are_python_s(name: str) -> None:
    text = (FIXTURES / f"{name}.json").read_text()
    script = (
        f"import {{ chromeTrace, jsonLines }} from {json.dumps(modules.module_path('exports').as_uri())};"
        f"const trace = {text}; console.log(JSON.stringify([chromeTrace(trace), jsonLines(trace)]));"
    )
    chrome, lines = in_node(script)
    trace = Trace.from_wire(json.loads(text))
    ours = json.loads(json.dumps(export.chrome_trace(trace)))
    assert len(chrome["traceEvents"]) == len(ours["traceEvents"])
    for one, other in zip(chrome["traceEvents"], ours["traceEvents"], strict=True):
        assert {k: v for k, v in one.items() if k not in ("ts", "dur", "args")} == {
            k: v for k, v in other.items() if k not in ("ts", "dur", "args")
        }
        assert one["args"] == pytest.approx(other["args"]) if one["ph"] == "C" else one["args"] == other["args"]
        assert (one["ts"], one.get("dur")) == pytest.approx((other["ts"], other.get("dur")))
    assert chrome["otherData"] == ours["otherData"]
    assert export.read_json_lines(lines) == trace


def test_the_pages_stylesheet_names_no_colour_and_no_unknown_variable() -> None:
    css = modules.PAGES_STYLESHEET.read_text(encoding="utf-8")
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b", css.replace("#000 70%", ""))  # a mask, which has no colour
    assert set(re.findall(r"var\((--wb-[a-z-]+)", css)) <= set(variables("light")) | {"--wb-ui", "--wb-mono"}
