"""Custom methods: from a file, from the environment, and again after an edit of the file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from workbench.core.errors import WorkbenchError
from workbench.methods import registry

TEXT = '''
from __future__ import annotations
from dataclasses import dataclass
from workbench.core.tree import DraftTree
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.parts import Drafter
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless

@dataclass(frozen=True)
class Stutter(Drafter):
    """Propose that the last token repeats."""
    def propose_one(self, row, plan):
        return DraftTree.chain(row.committed[-1:] * plan.depth, source="stutter", device=row.models.target.device)

register(Method("my-stutter", title="TITLE", promise=Promise.EXACT, summary="", source=Source("", "", 2026, ""),
                drafter=Stutter(), verifier=Lossless(), policies=(Fixed(),)))
'''


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    registry.names()
    held: list[dict[str, Any]] = [registry._methods, registry._places, registry._of_file]
    before = [dict(kept) for kept in held]
    path = tmp_path / "my_stutter_for_tests.py"
    path.write_text(TEXT, encoding="utf-8")
    yield path
    for mine, kept in zip(held, before, strict=True):
        mine.clear()
        mine.update(kept)


def test_file_registers_its_methods_again_after_an_edit(file: Path) -> None:
    assert registry.load(file) == ["my-stutter"]
    assert registry.get("my-stutter").title == "TITLE"
    file.write_text(TEXT.replace("TITLE", "another title"), encoding="utf-8")
    assert registry.load(str(file)) == ["my-stutter"]
    assert registry.get("my-stutter").title == "another title"


def test_files_in_the_environment_variable_are_loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.OWN_METHODS, str(file))
    monkeypatch.setattr(registry, "_is_loaded", False)  # as in a new process
    assert "my-stutter" in registry.names()
    assert registry.names()[0] == "autoregressive", "custom methods come after the catalogue"


def test_custom_method_may_be_derived_from_another(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's claims and the recording settings stay with the other method only."""
    file.write_text(
        "import dataclasses\nfrom workbench.methods import registry\n"
        "METHOD = dataclasses.replace(registry.get('draft-tree'), name='my-tree')\n",
        encoding="utf-8",
    )
    monkeypatch.setenv(registry.OWN_METHODS, str(file))
    monkeypatch.setattr(registry, "_is_loaded", False)
    mine = registry.get("my-tree")
    assert mine.drafter == registry.get("draft-tree").drafter
    assert registry.get("draft-tree").claims
    assert (mine.claims, mine.suites) == ((), {})
    assert len({mine, registry.get("draft-tree")}) == 2, "methods are hashable"


def test_error_names_the_failing_file_and_the_reason(file: Path) -> None:
    with pytest.raises(WorkbenchError, match=r"nowhere\.py cannot be loaded"):
        registry.load("nowhere.py")
    file.write_text("1 / 0", encoding="utf-8")
    with pytest.raises(WorkbenchError, match="ZeroDivisionError"):
        registry.load(file)


def test_a_name_can_only_be_registered_again_with_replace(file: Path) -> None:
    method = registry.get("prompt-lookup")
    with pytest.raises(ValueError, match="registered twice"):
        registry.register(method)
    assert registry.register(method, replace=True) is method
    other = file.with_name("another_file_of_tests.py")
    registry.load(file)
    other.write_text(TEXT, encoding="utf-8")
    with pytest.raises(WorkbenchError, match="registered twice"):
        registry.load(other)


def test_file_may_only_assign_method(file: Path) -> None:
    text = TEXT.replace("register(Method(", "METHOD = Method(").replace("(Fixed(),)))", "(Fixed(),))")
    file.write_text(text, encoding="utf-8")
    assert registry.load(file) == ["my-stutter"]
    assert registry._places["my-stutter"] == str(file)


@pytest.mark.parametrize("end", ["1 / 0", "raise SystemExit(3)", "register(None)"])
def test_failing_file_registers_nothing(file: Path, end: str) -> None:
    before = registry.names()
    file.write_text(f"{TEXT}\n{end}\n", encoding="utf-8")
    with pytest.raises(WorkbenchError, match="cannot be loaded"):
        registry.load(file)
    assert registry.names() == before
    file.write_text(TEXT, encoding="utf-8")
    assert registry.load(file) == ["my-stutter"], "after a correction it loads normally"


def test_failing_edit_keeps_the_methods_loaded_before(file: Path) -> None:
    registry.load(file)
    whole = registry.get("my-stutter")
    file.write_text(TEXT.replace("TITLE", "half done") + "\n1 / 0\n", encoding="utf-8")
    with pytest.raises(WorkbenchError, match="ZeroDivisionError"):
        registry.load(file)
    assert registry.get("my-stutter") is whole
    assert sys.modules[type(whole.drafter).__module__].Stutter is type(whole.drafter)
    file.write_text(TEXT, encoding="utf-8")
    assert registry.load(file) == ["my-stutter"]


def test_a_module_that_is_named_twice_keeps_its_methods(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    name = file.stem
    try:
        assert registry.load(name) == ["my-stutter"]
        assert registry.load(name) == ["my-stutter"]
        assert registry.get("my-stutter").title == "TITLE"
        monkeypatch.setenv(registry.OWN_METHODS, f"{name}:{name}")
        monkeypatch.setattr(registry, "_is_loaded", False)
        assert registry.names().count("my-stutter") == 1
    finally:
        sys.modules.pop(name, None)


def test_failing_package_is_imported_completely_the_next_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = file.parent / "stuttering_for_tests"
    package.mkdir()
    (package / "part.py").write_text(TEXT, encoding="utf-8")
    (package / "__init__.py").write_text("from stuttering_for_tests import part\n1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(file.parent)
    before = registry.names()
    with pytest.raises(WorkbenchError, match="ZeroDivisionError"):
        registry.load(package.name)
    assert registry.names() == before
    (package / "__init__.py").write_text("from stuttering_for_tests import part  # mended\n", encoding="utf-8")
    try:
        assert registry.load(package.name) == ["my-stutter"]
    finally:
        for name in (package.name, f"{package.name}.part"):
            sys.modules.pop(name, None)


def test_two_files_with_the_same_name_are_separate_modules(file: Path) -> None:
    registry.load(file)
    other = file.parent / "elsewhere" / file.name
    other.parent.mkdir()
    other.write_text(TEXT.replace("my-stutter", "other-stutter"), encoding="utf-8")
    registry.load(other)
    first, second = (type(registry.get(name).drafter) for name in ("my-stutter", "other-stutter"))
    assert first.__module__ != second.__module__
    assert sys.modules[first.__module__].Stutter is first


def test_one_of_several_threads_loads_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    known, put, together = registry.names(), registry._register, threading.Barrier(3)
    for name in ("_methods", "_places"):
        monkeypatch.setattr(registry, name, {})

    def slowly(*args: Any) -> Any:
        time.sleep(0.002)
        return put(*args)

    def names() -> list[str]:
        together.wait(10)
        return registry.names()

    monkeypatch.setattr(registry, "_register", slowly)
    monkeypatch.setattr(registry, "_is_loaded", False)
    registry._catalogue.cache_clear()
    with ThreadPoolExecutor(3) as pool:
        assert all(sorted(asked.result()) == sorted(known) for asked in [pool.submit(names) for _ in range(3)])


def test_method_without_a_policy_is_refused_by_name(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace("policies=(Fixed(),)", "policies=()"), encoding="utf-8")
    with pytest.raises(WorkbenchError, match=r"'my-stutter' has no policy.*policies=\(Fixed\(\),\)"):
        registry.load(file)
