"""Methods of one's own: from a file, from the environment, and again after the file was edited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.core.errors import WorkbenchError
from workbench.methods import registry

TEXT = '''
from __future__ import annotations
from dataclasses import dataclass
from workbench.core.tree import DraftTree
from workbench.engine import Method, Promise, Source
from workbench.engine.parts import Drafter
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless

@dataclass(frozen=True)
class Stutter(Drafter):
    """Propose that the last token repeats."""
    def propose_row(self, row, plan):
        return DraftTree.chain(row.committed[-1:] * plan.depth, source="stutter", device=row.models.target.device)

register(Method("my-stutter", title="TITLE", promise=Promise.EXACT, teaches="", source=Source("", "", 2026, ""),
                drafter=Stutter(), verifier=Lossless(), policies=(Fixed(),)))
'''


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    registry.names()
    before = dict(registry._methods), dict(registry._places)
    path = tmp_path / "my_stutter_for_tests.py"
    path.write_text(TEXT, encoding="utf-8")
    yield path
    for mine, kept in zip((registry._methods, registry._places), before, strict=True):
        mine.clear()
        mine.update(kept)


def test_a_file_registers_its_methods_and_again_after_an_edit(file: Path) -> None:
    assert registry.load(file) == ["my-stutter"]
    assert registry.get("my-stutter").title == "TITLE"
    file.write_text(TEXT.replace("TITLE", "another title"), encoding="utf-8")
    assert registry.load(str(file)) == ["my-stutter"]
    assert registry.get("my-stutter").title == "another title"


def test_the_environment_names_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.OWN_METHODS, str(file))
    registry._load.cache_clear()  # as in a new process
    assert "my-stutter" in registry.names()
    assert registry.names()[0] == "autoregressive", "one's own come after the catalogue"


def test_a_file_that_fails_is_named_with_the_reason(file: Path) -> None:
    with pytest.raises(WorkbenchError, match=r"nowhere\.py cannot be loaded"):
        registry.load("nowhere.py")
    file.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(WorkbenchError, match="ZeroDivisionError"):
        registry.load(file)


def test_a_name_is_taken_once_unless_it_is_to_be_replaced(file: Path) -> None:
    method = registry.get("prompt-lookup")
    with pytest.raises(ValueError, match="registered twice"):
        registry.register(method)
    assert registry.register(method, replace=True) is method
    other = file.with_name("another_file_of_tests.py")
    registry.load(file)
    other.write_text(TEXT, encoding="utf-8")
    with pytest.raises(WorkbenchError, match="registered twice"):
        registry.load(other)
