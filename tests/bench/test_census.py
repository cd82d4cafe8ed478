"""The board of families: complete; a sample is measured in every run, all others with `-m on_demand`."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest

from workbench.bench import board, census
from workbench.bench.census import CHAINS, DIFFERS, EQUAL, NOT_BUILT, REFUSED
from workbench.bench.families import random_model
from workbench.bench.tiny_config import tiny_config
from workbench.engine import Models, Runner

SAMPLE = {
    "llama": EQUAL, "gemma2": EQUAL, "olmoe": EQUAL, "gptj": EQUAL, "mpt": CHAINS, "bloom": REFUSED, "trocr": REFUSED,
    "deepseek_v32": REFUSED, "mamba": REFUSED,
}  # fmt: skip


def test_the_board_lists_every_family_of_transformers() -> None:
    saved, page = census.saved_entries(), (board.folder() / "families.md").read_text(encoding="utf-8")
    assert page == census.markdown(census.read())
    assert all(f"| `{name}` | {kind} |" in page for name, kind in census.families().items())
    assert set(saved) <= set(census.families())
    assert not [entry for entry in saved.values() if entry.verdict == DIFFERS]
    assert all(entry.why for entry in saved.values() if entry.verdict != EQUAL)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sampled_family_gives_the_result_on_the_board(name: str) -> None:
    found = census.check_family(name, model_helpers.letter_tokenizer(64))
    assert found.verdict == SAMPLE[name], found.why
    assert census.saved_entries().get(name, found).verdict == found.verdict


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.parametrize("name", [name for name in census.families() if name not in SAMPLE])
def test_every_other_family_gives_the_result_on_the_board(name: str) -> None:
    assert census.check_family(name, model_helpers.letter_tokenizer(64)).verdict == census.saved_entries()[name].verdict


def test_text_comparison_detects_a_family_with_wrong_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the self-test, the text comparison alone detects the error: with ALiBi, MPT's trees misplace keys."""
    monkeypatch.setattr(census, "admit", lambda *_: None)
    found = census.check_family("mpt", model_helpers.letter_tokenizer(64))
    assert found.verdict == DIFFERS
    assert "0 of 3 texts are equal" in found.why, "no text is equal by chance"


def test_a_family_that_cannot_be_built_is_reported_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any) -> Any:
        raise ValueError("no such size\nValueError: heads must divide width")

    monkeypatch.setattr(census, "tiny_config", too_large)
    found = census.check_family("llama", model_helpers.letter_tokenizer(64))
    assert (found.verdict, found.why) == (NOT_BUILT, "ValueError: heads must divide width")


def test_a_configuration_without_eos_token_id_gives_no_end_tokens() -> None:
    """RoCBert's configuration has no `eos_token_id`."""
    config = tiny_config("roc_bert")
    assert not hasattr(config, "eos_token_id")
    assert Models(Runner(random_model(config)), None).eos == frozenset()
