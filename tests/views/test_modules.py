"""The drawings as ES modules: self-contained, safe with model text, in step with the Python figures."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from views.synthetic import FIXTURES, trace

from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.views import module_names, module_path, module_text
from workbench.views.modules import FIRST_MODULE, OTHER_VIEWS


def node_version() -> tuple[int, ...]:
    """Version of the Node on the PATH; (0,) without one."""
    if shutil.which("node") is None:
        return (0,)
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


VERSION = node_version()
# Node before 20.19 does not tell an ES module by its syntax.
ENV = os.environ | ({"NODE_OPTIONS": "--experimental-default-type=module"} if VERSION < (20, 19) else {})
needs_node = pytest.mark.skipif(VERSION < (18, 19), reason="needs Node 18.19 or newer")
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))


@pytest.mark.parametrize("name", module_names())
def test_a_module_imports_nothing_and_never_writes_html(name: str) -> None:
    text = module_text(name)
    assert not re.search(r"^\s*import\b|\bimport\s*\(", text, re.MULTILINE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), "token text is text"


@pytest.mark.parametrize("name", module_names())
def test_a_module_reaches_no_other_machine(name: str) -> None:
    assert set(re.findall(r"https?://[^\s\"'`)]+", module_text(name))) <= {"http://www.w3.org/2000/svg"}


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_browser_and_python_count_the_same_figures(name: str) -> None:
    script = (
        f"import {{ summary, acceptanceByDepth, histogram }} from {json.dumps(module_path('figures').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        f"const {{ rounds }} = JSON.parse(readFileSync({json.dumps(str(FIXTURES / f'{name}.json'))}));"
        "const depths = acceptanceByDepth(rounds).map((d) => [d.depth, d.tested, d.accepted]);"
        "const bars = histogram(rounds).map((b) => [b.accepted, b.rounds]);"
        "console.log(JSON.stringify({ ...summary(rounds), depths, bars }));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    seen = json.loads(node.stdout)
    read = Trace.from_wire(json.loads((FIXTURES / f"{name}.json").read_text()))
    expected = metrics.summary(read)
    for key in set(seen) & set(expected):
        assert seen[key] == pytest.approx(expected[key]), key
    assert {"tau", "acceptance_rate", "tokens_per_second", "overhead_share"} <= set(seen) & set(expected)
    assert [tuple(d) for d in seen["depths"]] == metrics.acceptance_by_depth(read.rounds)
    assert dict(seen["bars"]) == metrics.accepted_histogram(read.rounds)


def test_the_fixtures_are_what_the_generator_writes() -> None:
    expected = json.loads(json.dumps(trace("draft-model", {"depth": 4, "temperature": 0.7}, 12, seed=1)))
    assert json.loads((FIXTURES / "chain.json").read_text()) == expected


@needs_node
def test_the_javascript_tests_pass() -> None:
    files = sorted(str(path) for path in Path(module_path("live")).parent.glob("*.test.js"))
    done = subprocess.run(["node", "--test", *files], capture_output=True, text=True, timeout=120, env=ENV)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("view", [FIRST_MODULE, *OTHER_VIEWS])
def test_a_view_loads_every_module_that_its_modules_ask_for(view: str) -> None:
    """A module shared by views, but named so that one of them claims it, is missing from all others."""
    names, everything = set(module_names(view)), set(module_names())
    handed_over = {("widget", "vision")}  # a notebook that shows pictures brings the Vision view's modules itself
    asked = {(name, used) for name in names for used in re.findall(r"\bm\.([a-z]\w*)\b", module_text(name))}
    assert {(name, used) for name, used in asked if used in everything - names} <= handed_over
