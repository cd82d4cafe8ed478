"""A Space has no package with a model in it: it starts with the bundled pair and has the Hub send the other one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from service.conftest import wait_until
from service.fake_hub import FakeHub, use_hub_at

from workbench.core.errors import ModelError
from workbench.models import model_index
from workbench.models.bundle import bundled
from workbench.models.model_index import MODEL_INDEX, SMOLLM2, IndexedModel, vocabulary_of
from workbench.ui import space

PATIENCE_S = 300.0
"""Passes are compiled anew in an empty cache, which takes a minute where other work goes on."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub with the only published model, `tiny`, which has no package here; nothing was downloaded before."""
    folder = bundled()["text-drafter"]
    config, words = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    shape = tuple((name, config[name]) for name, _ in SMOLLM2.shape)
    tiny = IndexedModel("tiny", "Tiny", "owner/tiny", "no-such-package", "1.0", "tiny.gguf", "0" * 64, 1, 1, "MIT",
                     shape, vocabulary_of(words))  # fmt: skip
    monkeypatch.delitem(MODEL_INDEX, SMOLLM2.name)
    monkeypatch.setitem(MODEL_INDEX, "tiny", tiny)
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "copies"))
    assert model_index.packaged_file(tiny) is None
    served = FakeHub({"owner/tiny": folder})
    use_hub_at(served.url, tmp_path / "cache", monkeypatch)
    yield served
    served.close()


@pytest.fixture
def log() -> Iterator[None]:
    """A public place writes its log as JSON; other tests find their log as it was."""
    logger = logging.getLogger("workbench")
    before = logger.handlers[:], logger.level
    yield
    logger.handlers[:], logger.level = before


def make_client() -> Any:
    """The client of a Space on free CPU, as app.py makes it."""
    return space.client(space.detect({"SPACE_ID": "somebody/workbench"}), "text-target", "auto", "cpu", "auto")


def listed_target(client: Any) -> dict[str, Any]:
    return next(target for target in client.targets() if target["name"] == "tiny")


@pytest.mark.usefixtures("log")
def test_the_model_comes_from_the_hub_behind_the_bundled_pair_and_answers_strangers(hub: FakeHub) -> None:
    with closing(make_client()) as client:
        assert listed_target(client), "it is listed while it is on its way"
        wait_until(lambda: "ready" in listed_target(client)["title"], PATIENCE_S)
        trace = client.generate("Once upon a time", "prompt-lookup", target="tiny", drafter=None, max_new_tokens=6)
        assert (trace.header.target, len(trace.token_ids)) == ("tiny", 6)
        assert "text-target" in {entry["name"] for entry in client.loaded_models()}
    assert any("/resolve/" in path and path.endswith(".safetensors") for path in hub.requested_paths)


@pytest.mark.usefixtures("log")
def test_without_the_hub_the_app_goes_on_with_the_bundled_pair_and_says_so(hub: FakeHub) -> None:
    hub.close()
    with closing(make_client()) as client:
        wait_until(lambda: "not loaded" in listed_target(client)["title"], PATIENCE_S)
        assert listed_target(client)["available"] is False
        asked = len(hub.requested_paths)
        with pytest.raises(ModelError, match="tiny is not available"):
            client.generate("Once upon a time", "prompt-lookup", target="tiny", drafter=None, max_new_tokens=6)
        assert len(hub.requested_paths) == asked, "strangers do not make it ask again"
        assert "cannot be reached" in listed_target(client)["reason"]
        trace = client.generate("Once upon a time", "draft-model", max_new_tokens=6)
        assert (trace.header.target, len(trace.token_ids)) == ("text-target", 6)
