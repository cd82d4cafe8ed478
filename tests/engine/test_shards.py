"""Sharded weights: joined once on disk, with the same result as the original model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from workbench.core.errors import ModelError
from workbench.models.checksums import write_sums
from workbench.models.names import locate
from workbench.models.pretrained import load_model, load_tokenizer
from workbench.models.shards import SHARD_PATTERN, join_shards, split_into_shards


@pytest.fixture
def sharded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled draft model in shards of 100 kB, and an own cache."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(Path("assets/models/text-drafter"), tmp_path / "mine")
    split_into_shards(folder, 100_000)
    return folder


def test_sharded_model_equals_the_original(sharded_model: Path) -> None:
    files = [*sharded_model.glob("*.safetensors")]
    assert files == [*sharded_model.glob(SHARD_PATTERN)] != []
    assert all(file.stat().st_size < 110_000 for file in files)
    whole = load_model("text-drafter", torch.device("cpu"), torch.float32).state_dict()
    found = load_model(str(sharded_model), torch.device("cpu"), torch.float32).state_dict()
    assert whole.keys() == found.keys()
    assert all(torch.equal(whole[name], found[name]) for name in whole)
    assert load_tokenizer(str(sharded_model)).get_vocab() == load_tokenizer("text-drafter").get_vocab()


def test_shards_are_joined_once_and_again_if_the_copy_is_damaged(sharded_model: Path) -> None:
    place = Path(locate(str(sharded_model)))
    file = place / "model.safetensors"
    first = file.stat()
    assert Path(locate(str(sharded_model))) == place
    assert file.stat().st_mtime_ns == first.st_mtime_ns
    file.write_bytes(file.read_bytes()[:-1])
    assert join_shards(sharded_model) == place
    assert file.stat().st_size == first.st_size


def test_missing_shard_is_named(sharded_model: Path) -> None:
    cut = next(
        file
        for file in sorted(sharded_model.glob(SHARD_PATTERN))
        if any(name.endswith("#1") for name in load_file(file))
    )
    save_file({n: t for n, t in load_file(cut).items() if not n.endswith("#1")} or {"x": torch.zeros(1)}, cut)
    write_sums(sharded_model)
    with pytest.raises(ModelError, match="cannot be joined"):
        locate(str(sharded_model))
