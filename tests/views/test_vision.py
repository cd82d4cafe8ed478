"""The Vision tab without a browser: same counts in Python and JavaScript, legible colours, checked requests."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from typing import Any

import pytest
from ui.fake_vision import CAPTION, SCENE, FakeVision, finished_trace
from views.colour import contrast
from views.style_variables import FONTS
from views.test_modules import ENV, needs_node

from workbench.core.errors import ParameterError, PromptError, UnknownNameError
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.ui.vision import VisionSession
from workbench.views import module_names, module_path, palette, scenes
from workbench.views.modules import dependency_order, stylesheets
from workbench.views.palette import THEMES, variables

LEXICON = {"red": "colour", "blue": "colour", "circle": "shape", "square": "shape", "two": "number", "left": "relation"}
LEANING = 0.6
"""Largest share of colour behind a word that depends on a patch; the rest is the background. See vision.css."""


@pytest.fixture
def client() -> FakeVision:
    return FakeVision(pace=0.0)


@needs_node
@pytest.mark.parametrize("method", ["specvlm", "vlm-text-only"])
def test_browser_and_python_count_the_same_words_about_the_image(client: FakeVision, method: str) -> None:
    trace = finished_trace(client, method)
    script = (
        f"import * as d from {json.dumps(module_path('vision/data').as_uri())};"
        "const { trace, lexicon } = JSON.parse(await new Response(process.stdin).text());"
        "const { rounds } = trace;"
        "console.log(JSON.stringify({ grounded: d.grounded(trace), split: d.split(trace),"
        " kinds: d.wordKinds(rounds, lexicon), byKind: d.byKind(rounds, lexicon) }));"
    )
    node = ["node", "--input-type=module", "-e", script]
    given = json.dumps({"trace": trace, "lexicon": LEXICON})
    done = subprocess.run(node, input=given, capture_output=True, text=True, check=True, timeout=60, env=ENV)
    seen, read = json.loads(done.stdout), Trace.from_wire(trace)
    assert seen["grounded"] == metrics.grounded(read)
    assert seen["kinds"] == metrics.word_kinds(read, LEXICON)
    assert {kind: tuple(counts) for kind, counts in seen["byKind"].items()} == metrics.acceptance_by_kind(read, LEXICON)
    found = metrics.summary(read)
    for name in ("grounded", "language"):
        tested, accepted = seen["split"][name]
        assert tested
        assert accepted / tested == pytest.approx(found[f"{name}_acceptance"])
    assert "".join(e.text for r in read.rounds for e in r.emitted) == "".join(CAPTION)


def test_only_the_vision_tab_loads_its_modules() -> None:
    own = {name for name in module_names() if name.startswith("vision/")}
    assert own - set(dependency_order("vision/page")) == {"vision/replay"}
    assert not own & set(dependency_order("live/page"))
    assert stylesheets("vision")[-1].name == "vision.css"
    assert all(path.name != "vision.css" for path in stylesheets())


def test_the_stylesheet_has_no_literal_colour_and_no_unknown_variable() -> None:
    css = stylesheets("vision")[-1].read_text(encoding="utf-8")
    assert not re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgb|\bhsl|:\s*(?:white|black|red|green|blue)\b", css)
    assert set(re.findall(r"var\((--wb-[a-z-]+)", css)) <= set(variables("light")) | FONTS


@pytest.mark.parametrize("theme", THEMES)
def test_words_that_depend_on_a_patch_stay_legible(theme: str) -> None:
    surface, overhead = palette()["surfaces"][theme], palette()["phases"]["overhead"][theme]
    css = stylesheets("vision")[-1].read_text(encoding="utf-8")
    (least, more) = map(int, re.findall(r"var\(--wb-overhead\) calc\((\d+)% \+ var\(--lean\) \* (\d+)%\)", css)[0])
    assert least + more == round(100 * LEANING)
    parts = [(int(overhead[i : i + 2], 16), int(surface["bg"][i : i + 2], 16)) for i in (1, 3, 5)]
    mixed = "#" + "".join(f"{round(LEANING * a + (1 - LEANING) * b):02x}" for a, b in parts)
    assert contrast(surface["ink"], mixed) >= 4.5


# -- Requests of the tab ----------------------------------------------------------------------------------------------


def test_only_targets_that_read_images_are_offered(client: FakeVision) -> None:
    found = VisionSession(client).catalogue({})
    assert [t["name"] for t in found["targets"]] == ["synthetic-vision"]
    assert found["chosen"]["target"] == "synthetic-vision"
    assert found["chosen"]["method"] == "specvlm"


def test_a_run_is_found_by_its_id_and_images_are_data_urls(client: FakeVision) -> None:
    session = VisionSession(client)
    run = client.start("Describe.", "specvlm", images=[SCENE])
    session.repicture({"run": run.id, "images": [SCENE], "sees": "drafter"})
    with pytest.raises(ParameterError, match="sees"):  # a missing field does not mean no image for both
        session.repicture({"run": run.id, "images": [SCENE]})
    assert session.explain({"run": run.id})["attribution"]["target"]
    assert session.explaining({"run": run.id}) == {"done": None}
    for ask in (session.explain, session.explaining):
        with pytest.raises(UnknownNameError):
            ask({"run": "somebody else's"})
    for wrong in ("data:image/png;base64,", ["/etc/passwd"], [3], ["https://example.org/a.png"]):
        with pytest.raises(PromptError):
            session.repicture({"run": run.id, "images": wrong, "sees": "both"})


def test_scenes_come_from_their_folder_which_may_be_missing(tmp_path, monkeypatch) -> None:
    for cached in (scenes._index, scenes.gallery, scenes.lexicon):
        cached.cache_clear()
    monkeypatch.setenv("WORKBENCH_SCENES", str(tmp_path))
    assert (scenes.gallery(), scenes.questions(), scenes.lexicon()) == ([], [], None)
    for cached in (scenes._index, scenes.gallery, scenes.lexicon):
        cached.cache_clear()
    (tmp_path / "one.png").write_bytes(base64.b64decode(SCENE.partition(",")[2]))
    entry = {"name": "one", "file": "one.png", "alt": "A circle.", "questions": ["What?"]}
    (tmp_path / "index.json").write_text(json.dumps({"scenes": [entry], "questions": ["Where?"]}))
    (tmp_path / "lexicon.json").write_text(json.dumps({"colour": ["red"]}))
    assert scenes.gallery()[0]["url"] == SCENE
    assert scenes.lexicon() == {"red": "colour"}
    for cached in (scenes._index, scenes.gallery, scenes.lexicon):
        cached.cache_clear()


def test_the_curve_comes_from_the_suites_board_with_a_line_for_each_compressor(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WORKBENCH_BOARDS", str(tmp_path))
    assert scenes.board() is None

    def row(method: str, line: str | None, tokens: float, tau: float) -> dict[str, Any]:
        at = {"value": tau, "low": None, "high": 2 * tau, "n": 40}
        counted = {"value": tokens, "low": None, "high": None, "n": 40}
        made = {"method": method, "line": line, "vision_tokens": counted, "date": "2026-11-21 10:00 UTC"}
        return made | {"groups": {scenes.GROUP: {"tau": at}}}

    rows = {
        "SpecVLM, prune 1×": row("specvlm", "prune", 64.0, 2.9),
        "SpecVLM, prune 4×": row("specvlm", "prune", 16.0, 2.6),
        "text-only": row("vlm-text-only", None, 0.0, 1.8),
        "unfinished": row("msd", None, 64.0, 2.0) | {"groups": {}},
    }
    (tmp_path / "vision.json").write_text(json.dumps({"board": "vision", "rows": rows}))
    found = scenes.board()
    assert found is not None
    (line,) = found["series"]
    assert (line["name"], [p["tokens"] for p in line["points"]]) == ("prune", [16.0, 64.0])
    assert found["points"] == [{"name": "text-only", "tokens": 0.0, "tau": 1.8, "low": 1.8, "high": 3.6}]
    assert "40 held-out captions" in found["note"]
