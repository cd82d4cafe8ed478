"""What is known of methods without PyTorch is what the registry says, and gives way to it where it cannot know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import docs
from workbench.methods import known, registry
from workbench.site import methodpages
from workbench.ui import methods_page

from .test_registry import TEXT


def test_the_file_says_what_the_registry_says() -> None:
    """When this fails: run `workbench docs`."""
    assert known.FILE.read_text(encoding="utf-8") == known.text()
    assert [known.Known.from_wire(m.to_wire()) for m in known.methods()] == list(known.methods())
    assert set(known._written()[0]) == {method.name for method in registry.of_catalogue()}


def test_what_differs_from_a_paper_is_said_in_sentences_wherever_a_method_is_described() -> None:
    """Of every method with a paper; on its page of the app, on the site's, and on the board of methods."""
    told = {method.name: method.differs for method in known.methods()}
    assert {name for name, points in told.items() if not points} == {"autoregressive"}
    assert all(point[0].isupper() or "=" in point.split()[0] for points in told.values() for point in points)
    assert all(point.endswith(".") and 60 < len(point) < 500 for points in told.values() for point in points)
    board, site = docs.pages(known.methods())["methods.md"], methodpages.pages()
    cards = {card["name"]: card for card in methods_page.catalogue()}
    for name, points in told.items():
        assert cards[name]["differs"] == list(points)
        for point in points:
            assert f"- {point}\n" in board
            assert f"- {point}\n" in site[f"methods/{name}.md"]


def run(code: str, **env: str) -> str:
    """What a program prints in a process of its own; it ends with whether PyTorch was imported."""
    whole = f"import sys\nfrom workbench.methods import known\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, check=True, env={**os.environ, **env}
    )
    return done.stdout.strip()


def test_what_a_method_needs_is_said_in_words_wherever_it_is_shown_in_full() -> None:
    shown = {entry["name"]: entry["needed"] for entry in methods_page.catalogue()}
    assert shown["prompt-lookup"] == "nothing but the target"
    assert shown["flash"] == "flash heads trained for the target, a target that verifies trees"
    names = {need for method in known.methods() for need in method.needs}
    for method in known.methods():
        assert shown[method.name] == known.needed(method.needs)
        assert not names & set(shown[method.name].split(", ")), "a name of the registry is no word for people"


def test_a_request_is_checked_without_pytorch() -> None:
    code = """
from workbench.core.errors import WorkbenchError
assert known.check("draft-model", {"depth": "3", "temperature": "0.5"}).needs == ("drafter",)
for name, values in (("draft-modle", {}), ("draft-model", {"dept": 3}), ("medusa", {"top_p": 2})):
    try:
        known.check(name, values)
    except WorkbenchError as error:
        print(error.remedy.split(".")[0])
"""
    assert run(code).splitlines()[-1] == "False"
    assert "Did you mean 'draft-model'" in run(code)


def test_methods_of_ones_own_and_changed_declarations_are_asked_of_the_registry(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(TEXT, encoding="utf-8")
    assert run("known.check('my-stutter', {})", WORKBENCH_METHODS=str(own)) == "True"
    grown = "known.fingerprint = lambda: 'another'\nmethod = known._written()[0]['draft-model']\n"
    assert run(grown + "method.params.pop('depth')\nknown.check('draft-model', {'depth': 2})") == "True"


def test_a_method_that_ones_own_file_replaces_is_asked_of_the_registry(tmp_path: Path) -> None:
    """With another verifier's parameter, say, which the file of the catalogue cannot know."""
    own = tmp_path / "mine.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from workbench.methods import registry\n"
        "from workbench.methods.verifiers.lenient import Lenient\n"
        "method = registry.get('token-recycling')\n"
        "registry.register(replace(method, other_verifiers=(*method.other_verifiers, Lenient())), replace=True)\n",
        encoding="utf-8",
    )
    assert run("known.check('token-recycling', {'verifier': 'lenient', 'lenience': 0.5})", WORKBENCH_METHODS=str(own))


def test_the_file_holds_no_methods_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._methods, "mine", registry.get("draft-model"))
    assert '"mine"' not in known.text()
