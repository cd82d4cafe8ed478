"""Models by name: which drafter belongs to which target; an unreadable folder does not affect others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.models.bundle import bundled
from workbench.models.loading import load_models
from workbench.models.names import bundled_drafter, heads_of, known_targets
from workbench.service.choices import static_reasons

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled text models, in a folder to which more can be added."""
    for name in ("text-target", "text-drafter", "text-target-medusa"):
        (tmp_path / name).symlink_to(bundled()[name])
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("text", ["[]", "{bad", '{"workbench_head": ["a"]}', "\xff"])
def test_unreadable_configuration_does_not_affect_other_models(text: str, folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_bytes(text.encode("latin-1"))
    assert [name for name, _, _ in known_targets()] == ["text-drafter", "text-target"]
    assert heads_of("text-target", ("medusa",)) == ["text-target-medusa"]
    assert static_reasons("text-target", None)(("medusa",)) == ""
    assert list(load_models("text-target", None, "cpu").heads) == ["medusa"]


def test_draft_model_names_the_target_it_was_trained_for(folder: Path) -> None:
    assert bundled_drafter("smollm2") is None
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text(json.dumps({"model_type": "llama", "target": "smollm2"}))
    assert bundled_drafter("smollm2") == "mine"
    assert bundled_drafter("text-target") == "text-drafter"
