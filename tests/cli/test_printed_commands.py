"""Commands that the workbench prints work when pasted, and a given head chooses its method."""

from __future__ import annotations

from pathlib import Path

import model_helpers
import pytest

from workbench.bench.grid import Axis, Sweep
from workbench.cli import checks
from workbench.core.errors import ParameterError
from workbench.models import local_models
from workbench.models.bundle import bundled
from workbench.models.checkpoints import user_heads
from workbench.models.untrained_heads import no_heads
from workbench.training.family.pipeline import draft_command

from .conftest import Command

HEAD = "text-target-eagle"
"""Bundled heads of kind `eagle`."""


@pytest.fixture
def local_target(tmp_path: Path) -> str:
    """Return the short name that this process uses for a target in a folder."""
    return local_models.short_name(str(model_helpers.save_random_llama(tmp_path / "a b" / "model", layers=1)))


def test_the_short_name_of_a_folder_is_printed_as_its_path(local_target: str, tmp_path: Path) -> None:
    said = f"Train a head: workbench train eagle-3 --target {local_target}."
    assert local_models.with_paths(said) == f"Train a head: workbench train eagle-3 --target '{tmp_path}/a b/model'."
    assert local_models.with_paths("--target smollm2 --drafter none") == "--target smollm2 --drafter none"


def test_a_remedy_on_the_command_line_names_the_folder(local_target: str, workbench: Command, tmp_path: Path) -> None:
    done = workbench("generate", "Once", "--target", str(tmp_path / "a b" / "model"), "--method", "eagle-3")
    assert done.status != 0
    assert f"--target '{tmp_path}/a b/model'" in done.err


def test_training_prints_the_command_that_drafts_with_its_head(local_target: str, tmp_path: Path) -> None:
    command = draft_command("smollm2", "eagle-3", tmp_path / "my head")
    assert command == f"""workbench generate --chat "…" --target smollm2 --head '{tmp_path}/my head'"""
    assert f"--target '{tmp_path}/a b/model'" in draft_command(local_target, "eagle-3", tmp_path / "h")
    bundled_head = draft_command("text-target", "eagle", bundled()[HEAD])
    assert bundled_head == 'workbench generate --chat "…" --target text-target --method eagle'


@pytest.mark.parametrize("by", ["--head", "WORKBENCH_HEADS"])
def test_a_given_head_chooses_its_method(
    by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: prompt lookup or the draft model was chosen, and the head was refused or ignored."""
    folder = str(bundled()[HEAD])
    monkeypatch.setattr(user_heads, "_chosen", [folder] if by == "--head" else [])
    monkeypatch.setenv(user_heads.ENV, folder if by == "WORKBENCH_HEADS" else "")
    assert checks.resolve_method(None, {}, ("text-target", "text-drafter"), 0) == "eagle"
    assert "Decoding with eagle" in capsys.readouterr().err


def test_heads_in_the_environment_for_another_target_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_heads, "_chosen", [])
    monkeypatch.setenv(user_heads.ENV, str(bundled()[HEAD]))
    assert checks.resolve_method(None, {}, ("vision-target", None)) == "prompt-lookup"


def test_an_error_names_the_target_that_has_the_missing_heads() -> None:
    assert "Such heads exist for vision-target: choose --target vision-target." in no_heads("specvlm", "text-target")


def test_the_last_command_of_a_sweep_resumes_it() -> None:
    sweep = Sweep.of(["depth=1..2"], method="draft-model")
    assert sweep.command(Path("my sweep")).endswith("--out 'my sweep'")
    assert "--out" not in sweep.command()


def test_an_invalid_range_is_refused_with_an_example() -> None:
    with pytest.raises(ParameterError, match=r"'1..x' is not a range of whole numbers.*depth=1\.\.6"):
        Axis.parse("depth=1..x")


def test_help_keeps_text_in_brackets(workbench: Command) -> None:
    said = workbench("config", "--help").out
    assert "[defaults]" in said
    assert "[generate]" in said


def test_a_misspelt_group_is_answered_with_the_nearest_name(workbench: Command) -> None:
    done = workbench("compare", "--group", "storys")
    assert done.status == 2
    assert "Did you mean 'stories'" in done.err


def test_heads_in_the_list_of_models_can_be_inspected(workbench: Command) -> None:
    assert "heads: eagle" in workbench("heads", "inspect", HEAD).out
