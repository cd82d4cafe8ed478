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
from workbench.views import module_names, module_path, module_text, modules
from workbench.views.modules import ENTRIES, JS, dependency_order, direct_imports, inline_modules


def node_version() -> tuple[int, ...]:
    """Return the version of the Node.js on the PATH; (0,) without one."""
    if shutil.which("node") is None:
        return (0,)
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


VERSION = node_version()
# Node.js before 20.19 does not recognise an ES module by its syntax.
ENV = os.environ | ({"NODE_OPTIONS": "--experimental-default-type=module"} if VERSION < (20, 19) else {})
REQUIRED = bool(os.environ.get("WORKBENCH_REQUIRE_BROWSER"))  # in CI an old Node, or none, fails
needs_node = pytest.mark.skipif(VERSION < (18, 19) and not REQUIRED, reason="needs Node 18.19 or newer")
BELOW = {
    "shared": set[str](),
    "live": {"shared"},
    "vision": {"live", "shared"},
    "compare": {"live", "shared"},
    "sweep": {"live", "shared"},
    "lab": {"live", "shared"},
    "verifiers": {"shared"},
    "learn": {"live", "shared"},
    "notebook": {"vision", "live", "verifiers", "shared"},
}
"""Folder → other folders that its modules may import."""
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))


@pytest.mark.parametrize("name", module_names())
def test_a_module_imports_only_downward_and_never_writes_html(name: str) -> None:
    text, folder = module_text(name), name.partition("/")[0]
    assert {other.partition("/")[0] for other in direct_imports(name)} <= BELOW[folder] | {folder}
    code = re.sub(r"^ *(//|/?\*).*", "", text, flags=re.MULTILINE)
    assert len(re.findall(r"\bimport\b[ ({*]", code)) == len(direct_imports(name)), (
        "imports must be at the top of the module"
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), (
        "token text must not become HTML"
    )


@pytest.mark.parametrize("name", module_names())
def test_a_module_sends_no_request_to_other_machines(name: str) -> None:
    assert set(re.findall(r"https?://[^\s\"'`)]+", module_text(name))) <= {"http://www.w3.org/2000/svg"}


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_browser_and_python_compute_the_same_figures(name: str) -> None:
    script = (
        f"import {{ summary, acceptanceByDepth, histogram }} from {json.dumps(module_path('shared/figures').as_uri())};"
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


def test_the_fixtures_equal_the_generators_output() -> None:
    expected = json.loads(json.dumps(trace("draft-model", {"depth": 4, "temperature": 0.7}, 12, seed=1)))
    assert json.loads((FIXTURES / "chain.json").read_text()) == expected


@needs_node
def test_the_javascript_tests_pass() -> None:
    files = sorted(str(path) for path in JS.rglob("*.test.js"))
    done = subprocess.run(["node", "--test", *files], capture_output=True, text=True, timeout=120, env=ENV)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("name", module_names())
def test_a_delivered_module_lacks_only_documentation(name: str) -> None:
    """Every line that is left out is one of a documentation comment; the code keeps its order."""
    left, inside = iter(modules.delivered_text(name).splitlines()), False
    kept = next(left, None)
    for line in module_text(name).splitlines():
        text = line.strip()
        if line == kept and not inside:
            kept = next(left, None)
            continue
        inside = inside or text.startswith("/**")
        assert inside, line
        assert text.startswith(("/**", "*")), line
        inside = not text.endswith("*/")
    assert kept is None
    assert not inside


TEXTS = ["live/replay", "vision/replay", "notebook/live", "notebook/vision"]
"""Modules that hosts get as text."""


@needs_node
def test_an_inlined_module_has_the_same_exports_and_no_imports(tmp_path: Path) -> None:
    pairs = []
    for name in module_names():
        text = tmp_path / f"{name.replace('/', '_')}.mjs"
        text.write_text(inline_modules(name), encoding="utf-8")
        pairs.append([module_path(name).as_uri(), text.as_uri()])
    assert not re.search(r"^(import|export \{)", "".join(inline_modules(name) for name in TEXTS), re.MULTILINE)
    script = (
        "const kind = (of) => Object.fromEntries(Object.entries(of).map(([k, v]) => [k, typeof v]).sort());"
        "const both = async (urls) => (await Promise.all(urls.map((url) => import(url)))).map(kind);"
        f"const all = {json.dumps(pairs)}.map(both);"
        "console.log(JSON.stringify(await Promise.all(all)));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    for name, (own, text) in zip(module_names(), json.loads(node.stdout), strict=True):
        assert own == text, name


def test_import_cycles_and_unsupported_exports_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "JS", tmp_path)
    for name, text in {
        "one": 'import * as two from "./two.js";\n\nexport const a = () => two.b;\n',
        "two": 'import { a } from "./one.js";\n\nexport const b = a;\n',
        "odd": "const a = 1;\n\nexport { a };\n",
    }.items():
        (tmp_path / f"{name}.js").write_text(text)
    with pytest.raises(ValueError, match="circular import: one > two > one"):
        dependency_order.__wrapped__("one")
    with pytest.raises(ValueError, match="odd: this import or export cannot be inlined: export"):
        inline_modules.__wrapped__("odd")


def test_every_module_is_used_by_a_view() -> None:
    assert set(module_names()) == {name for entry in [*ENTRIES.values(), *TEXTS] for name in dependency_order(entry)}
