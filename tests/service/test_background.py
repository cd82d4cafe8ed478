"""Background models: loaded after the first pair, one by one, if memory allows; the model list shows their state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.core.errors import ModelError, PromptError, UnknownNameError
from workbench.models import model_index
from workbench.models.model_index import SMOLLM2
from workbench.service import Backend, background, choices, hub
from workbench.service.background import HEADROOM, BackgroundLoader, default_background_models, parse_background_models
from workbench.service.names import Pair
from workbench.service.progress import CONVERTING, Progress

FIRST = ("text-target", "text-drafter")
ENOUGH = HEADROOM * SMOLLM2.copy_bytes


@pytest.fixture(autouse=True)
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the model's package is installed and not yet converted."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(model_index, "hub_copy", lambda model: None)
    monkeypatch.setattr(model_index, "packaged_file", lambda model: Path("there.gguf"))


def test_a_list_of_models_is_parsed_and_an_unknown_name_reported() -> None:
    assert parse_background_models("auto", False) == default_background_models(False) == ["smollm2"]
    assert parse_background_models(" smollm2", False) == parse_background_models("smollm2,", False) == ["smollm2"]
    assert parse_background_models("none", False) == parse_background_models("", False) == []
    with pytest.raises(UnknownNameError, match="smolm2"):
        parse_background_models("smollm2, smolm2", False)


def listed_target(made: BackgroundLoader, *loaded: str) -> dict[str, Any]:
    return next(t for t in made.add_progress(choices.targets([]), loaded) if t["name"] == "smollm2")


def test_the_first_pair_is_loaded_first_and_the_list_shows_the_others_progress() -> None:
    seen: list[tuple[Pair, str, str, bool]] = []

    def load(pair: Pair, progress: Progress) -> None:
        if pair != FIRST:
            progress.stage(CONVERTING, 200)
            progress.reach(80)
        seen.append((pair, listed_target(made)["title"], listed_target(made)["detail"], listed_target(made)["loading"]))

    made = BackgroundLoader(load, lambda: ENOUGH)
    assert (listed_target(made)["title"], listed_target(made)["loading"]) == ("smollm2 · SmolLM2 135M", False)
    made.run(FIRST, ["smollm2"])
    assert seen == [
        (FIRST, "SmolLM2 135M: loading · smollm2", "reading", True),
        (("smollm2", None), "SmolLM2 135M: loading · smollm2", "dequantising 40 %", True),
    ]
    assert (listed_target(made, "smollm2")["title"], listed_target(made)["loading"]) == (
        "SmolLM2 135M: ready · smollm2",
        False,
    )
    assert (listed_target(made, "smollm2")["ready"], listed_target(made)["ready"]) == (True, False)


def test_the_list_reports_missing_memory_or_an_error_and_the_first_pair_is_loaded() -> None:
    asked: list[Pair] = []

    def load(pair: Pair, progress: Progress) -> None:
        asked.append(pair)
        if pair != FIRST:
            raise ModelError("The disk is full.")

    short = BackgroundLoader(load, lambda: ENOUGH - 1)
    short.run(FIRST, ["smollm2"])
    assert asked == [FIRST]
    assert (listed_target(short)["title"], listed_target(short)["loading"]) == (
        "SmolLM2 135M: not loaded · smollm2",
        False,
    )
    assert "of free memory would be needed" in listed_target(short)["detail"]
    failing = BackgroundLoader(load, lambda: ENOUGH)
    failing.run(FIRST, ["smollm2"])
    assert listed_target(failing)["detail"] == "The disk is full."
    assert "ready" in listed_target(failing, "smollm2")["title"], "another request loaded it later"


def test_a_model_is_loaded_once_and_other_targets_are_listed_unchanged() -> None:
    asked: list[Pair] = []
    made = BackgroundLoader(lambda pair, progress: asked.append(pair), lambda: ENOUGH)
    made.run(("smollm2", None), ["smollm2"])
    assert asked == [("smollm2", None)]
    assert (
        next(t for t in made.add_progress(choices.targets([]), []) if t["name"] == "text-target")["title"]
        == "text-target"
    )


def test_missing_models_are_downloaded_only_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_background_models(fetches=False) == ["smollm2"]
    monkeypatch.setattr(background, "availability", lambda model: "to fetch")
    assert default_background_models(fetches=False) == []
    assert default_background_models(fetches=True) == ["smollm2"]


def test_a_chat_reports_the_loading_progress_of_its_models(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, heard = hub.fetch, list[str]()

    def fetch(name: str, progress: Progress, most_bytes: int) -> str:
        progress.stage(CONVERTING, 200)
        progress.reach(80)
        heard.append(bench.health()["loading"])
        return theirs(name, progress, most_bytes)

    monkeypatch.setattr(hub, "fetch", fetch)
    bench = backend()
    with pytest.raises(PromptError, match="no chat template"):  # known once the model is loaded
        bench.chat_prompt([{"role": "user", "content": "Hello"}])
    assert heard[0] == "dequantising 40 %"
    assert bench.health()["loading"] == ""
