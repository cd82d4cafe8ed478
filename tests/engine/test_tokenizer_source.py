"""A draft model without tokenizer files uses its target's tokenizer, and is refused for another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from workbench.core.errors import ModelError, TokenizerMismatchError
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.bundle import bundled
from workbench.models.loading import load_models
from workbench.models.model_index import MODEL_INDEX, SMOLLM2, IndexedModel
from workbench.models.pretrained import load_tokenizer
from workbench.models.tokenizer_source import (
    FILES,
    VOCABULARY,
    tokenizer_source_for,
    tokenizer_source_of,
    vocabulary_hash_of,
)
from workbench.service.choices import have_same_vocabulary


def edit_config(folder: Path, **values: object) -> None:
    """Change keys of a model's configuration."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled draft model without its tokenizer, with a published target."""
    monkeypatch.setitem(MODEL_INDEX, "text-target", SMOLLM2)
    place = Path(shutil.copytree(bundled()["text-drafter"], tmp_path / "borrower"))
    vocabulary = vocabulary_hash_of(place)
    for name in FILES:
        (place / name).unlink()
    edit_config(place, **{VOCABULARY: vocabulary})
    return place


def test_smollm2_drafter_names_its_tokenizer_source() -> None:
    place = bundled()["smollm2-drafter"]
    assert not [name for name in FILES if (place / name).exists()]
    assert vocabulary_hash_of(place) == SMOLLM2.vocabulary
    assert tokenizer_source_for("smollm2-drafter")
    assert tokenizer_source_for("text-drafter") is None


def test_drafter_without_a_tokenizer_uses_the_targets(folder: Path) -> None:
    words = load_tokenizer("text-target").get_vocab()
    assert load_tokenizer(str(folder)).get_vocab() == words
    assert have_same_vocabulary("text-target", str(folder))
    models = load_models("text-target", str(folder), "cpu", "float64", strict=True)
    plain, drafted = (
        Engine(models).generate(Request([1, 2, 3], registry.get(name), max_new_tokens=12))
        for name in ("autoregressive", "draft-model")
    )
    assert drafted.token_ids == plain.token_ids


def test_another_tokenizer_than_in_training_is_refused(folder: Path) -> None:
    edit_config(folder, **{VOCABULARY: SMOLLM2.vocabulary})
    assert have_same_vocabulary("text-target", str(folder)) is False
    with pytest.raises(TokenizerMismatchError, match="do not share a vocabulary"):
        load_models("text-target", str(folder), "cpu", "float32", strict=True)
    with pytest.raises(
        TokenizerMismatchError, match="trained with a tokenizer that differs from the tokenizer of text"
    ):
        load_tokenizer(str(folder))


def test_own_tokenizer_takes_precedence(folder: Path) -> None:
    edit_config(folder, **{VOCABULARY: "0" * 64})
    for name in FILES:
        shutil.copyfile(bundled()["text-drafter"] / name, folder / name)
    assert tokenizer_source_of(folder) is None
    assert load_tokenizer(str(folder)).get_vocab() == load_tokenizer("text-target").get_vocab()


def test_local_folder_is_no_tokenizer_source(folder: Path) -> None:
    """A folder named in a third-party file is not read on this machine."""
    edit_config(folder, target=str(bundled()["text-target"]))
    assert tokenizer_source_of(folder) is None
    assert vocabulary_hash_of(folder) == ""
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("target", [["text-target"], {"text-target": 1}, 7, None])
def test_invalid_target_name_is_no_tokenizer_source(folder: Path, target: object) -> None:
    edit_config(folder, target=target)
    assert tokenizer_source_of(folder) is None
    assert vocabulary_hash_of(folder) == ""


def test_missing_target_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shape = ("tiny", "Tiny", "owner/tiny", "no-such-package", "1.0", "tiny.gguf", "0" * 64, 1, 1, "MIT", ())
    monkeypatch.setitem(MODEL_INDEX, "tiny", IndexedModel(*shape, vocabulary_hash_of(folder)))
    edit_config(folder, target="tiny")
    with pytest.raises(ModelError, match=r"uses the tokenizer of tiny\. tiny is not on this machine") as caught:
        load_tokenizer(str(folder))
    assert "no-such-package==1.0" in caught.value.remedy
