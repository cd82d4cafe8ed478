"""Facts about methods that need no PyTorch: they equal the registry's, which is read where they do not suffice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.cli import docs
from workbench.core.sampling import SamplingParams
from workbench.decoders.declarations import GROUPS
from workbench.kernels import disk_cache
from workbench.methods import method_info, registry
from workbench.site import methodpages
from workbench.ui import methods_page

from .test_registry import TEXT


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    method_info._cached.cache_clear()
    yield
    method_info._cached.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _is_written() -> None:
    """Write the file that the processes of these tests read."""
    method_info.save()


def test_file_equals_the_registry(fresh_cache: None) -> None:
    assert method_info.is_stale()
    method_info.save()
    assert not method_info.is_stale()
    found = method_info._cached()
    assert list(found.methods.values()) == [
        method_info.MethodInfo.of(method) for method in registry.catalogue_methods()
    ]
    assert dict(found.sampling) == method_info.params_of(SamplingParams())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fingerprint": "0"}', "damaged"], ids=str)
def test_unusable_file_is_ignored(fresh_cache: None, content: str) -> None:
    """Also one with the right fingerprint whose content is damaged."""
    content = (
        json.dumps({"fingerprint": method_info.fingerprint(), "methods": [{}]}) if content == "damaged" else content
    )
    disk_cache.folder().mkdir(parents=True, exist_ok=True)
    (disk_cache.folder() / method_info.CACHE).write_text(content, encoding="utf-8")
    method_info._cached.cache_clear()
    assert method_info.is_stale()
    assert method_info.get("draft-model").name == "draft-model"


def test_first_process_writes_the_file_and_the_next_needs_no_pytorch(fresh_cache: None) -> None:
    code = "print(method_info.get('draft-model').name)"
    assert run(code).splitlines() == ["draft-model", "True"]
    assert run(code).splitlines() == ["draft-model", "False"]


def test_unwritable_cache_only_costs_time(fresh_cache: None) -> None:
    disk_cache.folder().parent.mkdir(parents=True, exist_ok=True)
    disk_cache.folder().write_text("a file in place of the folder")
    assert run("print(method_info.get('draft-model').name)").splitlines() == ["draft-model", "True"]


def test_differences_from_the_paper_are_shown_wherever_a_method_is_described() -> None:
    """Every method with a paper states them on its page of the app, on the site's, and on the board of methods."""
    differences = {method.name: method.differs for method in method_info.methods()}
    assert {name for name, points in differences.items() if not points} == {"autoregressive"}
    assert all(point[0].isupper() or "=" in point.split()[0] for points in differences.values() for point in points)
    assert all(point.endswith(".") and 60 < len(point) < 500 for points in differences.values() for point in points)
    board, site = docs.pages(method_info.methods())["methods.md"], methodpages.pages()
    cards = {card["name"]: card for card in methods_page.catalogue()}
    for name, points in differences.items():
        assert cards[name]["differs"] == list(points)
        for point in points:
            assert f"- {point}\n" in board
            assert f"- {point}\n" in site[f"methods/{name}.md"]


def run(code: str, **env: str) -> str:
    """Return the output of a program in its own process; its last line states whether PyTorch was imported."""
    whole = f"import sys\nfrom workbench.methods import method_info\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, check=True, env={**os.environ, **env}
    )
    return done.stdout.strip()


def test_requirements_of_a_method_are_shown_in_words() -> None:
    shown = {entry["name"]: entry["needed"] for entry in methods_page.catalogue()}
    assert shown["prompt-lookup"] == "nothing but the target"
    assert shown["flash"] == "flash heads trained for the target, a target that verifies trees"
    names = {need for method in method_info.methods() for need in method.needs}
    for method in method_info.methods():
        assert shown[method.name] == method_info.describe_needs(method.needs)
        assert not names & set(shown[method.name].split(", ")), "registry names are not shown to users"


def test_request_is_checked_without_pytorch() -> None:
    code = """
from workbench.core.errors import WorkbenchError
assert method_info.check("draft-model", {"depth": "3", "temperature": "0.5"}).needs == ("drafter",)
for name, values in (("draft-modle", {}), ("draft-model", {"dept": 3}), ("medusa", {"top_p": 2})):
    try:
        method_info.check(name, values)
    except WorkbenchError as error:
        print(error.remedy.split(".")[0])
"""
    assert run(code).splitlines()[-1] == "False"
    assert "Did you mean 'draft-model'" in run(code)


def test_custom_methods_and_changed_declarations_are_read_from_the_registry(tmp_path: Path, fresh_cache: None) -> None:
    method_info.save()
    own = tmp_path / "mine.py"
    own.write_text(TEXT, encoding="utf-8")
    assert run("method_info.check('my-stutter', {})", WORKBENCH_METHODS=str(own)) == "True"
    grown = """
method_info._cached().methods["draft-model"].params.pop("depth")
method_info.fingerprint = lambda: "another"
method_info._cached.cache_clear()
method_info.check("draft-model", {"depth": 2})"""
    assert run(grown) == "True"


def test_replaced_catalogue_method_is_read_from_the_registry(tmp_path: Path) -> None:
    """It may have another verifier's parameter, for example, which the cached file does not contain."""
    own = tmp_path / "mine.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from workbench.methods import registry\n"
        "from workbench.methods.verifiers.lenient import Lenient\n"
        "method = registry.get('token-recycling')\n"
        "registry.register(replace(method, other_verifiers=(*method.other_verifiers, Lenient())), replace=True)\n",
        encoding="utf-8",
    )
    assert run(
        "method_info.check('token-recycling', {'verifier': 'lenient', 'lenience': 0.5})", WORKBENCH_METHODS=str(own)
    )


def test_file_contains_no_custom_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._methods, "mine", registry.get("draft-model"))
    assert "mine" not in [method["name"] for method in method_info.facts()["methods"]]


def test_each_method_is_in_a_group_by_the_origin_of_its_drafts() -> None:
    groups = {name: registry.get(name).group for name in registry.names()}
    assert set(groups.values()) == set(GROUPS), "every group has a method, and there is no other group"
    expected = {
        "autoregressive": "No draft", "llada": "No draft", "draft-tree": "Draft model", "medusa": "Trained heads",
        "prompt-lookup": "The text itself", "jacobi": "The target itself", "swift": "The target itself",
        "flash": "Images", "oracle": "Simulation",
    }  # fmt: skip
    assert {name: groups[name] for name in expected} == expected
    assert method_info.get("medusa").group == "Trained heads"
