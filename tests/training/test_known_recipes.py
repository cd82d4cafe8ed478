"""The cached description of the training recipes equals the registry's and is written again after a change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from workbench.bench import board
from workbench.cli import main
from workbench.core.errors import UnknownNameError
from workbench.kernels import disk_cache
from workbench.methods import method_info, registry
from workbench.training import known_recipes
from workbench.training.recipes import RECIPES, run


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return disk_cache.folder() / known_recipes.CACHE


def test_recipes_are_described_from_the_registry_and_read_from_the_cache_afterwards(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = known_recipes.recipes()
    assert empty_cache.is_file()
    assert set(described) == set(RECIPES)
    eagle = described["eagle-3"]
    assert set(eagle["options"]) == {field.name for field in dataclasses.fields(RECIPES["eagle-3"].options)}
    assert set(eagle["docs"]) == set(eagle["kinds"]) == set(eagle["options"])
    monkeypatch.setattr(known_recipes, "describe", lambda recipe: pytest.fail("the cache was not read"))
    assert known_recipes.recipes() == described


@pytest.mark.parametrize("content", ["{", "[]", '{"fingerprint": "of other code", "recipes": []}'])
def test_a_damaged_or_stale_file_is_written_again(empty_cache: Path, content: str) -> None:
    empty_cache.parent.mkdir(parents=True)
    empty_cache.write_text(content)
    assert "judge" in known_recipes.recipes()
    assert disk_cache.read(known_recipes.CACHE)["fingerprint"] == known_recipes.fingerprint()


def test_heads_with_their_own_command_are_those_of_the_registry() -> None:
    kinds = {kind for kind, head in registry.heads().items() if head.is_for_any_target}
    assert set(method_info.trainable_heads()) == kinds
    assert kinds <= set(RECIPES)
    assert {"mtp", "eagle-3", "kangaroo"} <= kinds
    assert not kinds & {"flash", "judge", "acceptance"}


@pytest.mark.parametrize("name", known_recipes.FINISHED_STUDIES)
def test_a_finished_study_is_refused_with_the_place_of_its_results(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (board.folder() / f"{name}.json").is_file()
    assert (board.folder() / f"{name}.md").is_file()
    assert main(["train", name]) == 2
    assert f"Its results are in assets/boards/{name}.md and {name}.json" in capsys.readouterr().err
    with pytest.raises(UnknownNameError, match="is finished"):
        run(name, {}, print)
