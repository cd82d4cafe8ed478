"""Bundled weights are verified against checksums; anything but a regular file in a model folder is refused."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from workbench.core.errors import ModelError
from workbench.engine import load_models
from workbench.methods.common.trained_net import load_trained
from workbench.methods.medusa.drafter import MedusaHeads
from workbench.models.bundle import bundled, bundled_folder
from workbench.models.checksums import SUMS_FILE, check_weights, write_sums
from workbench.models.names import locate
from workbench.models.pretrained import load_model
from workbench.service.checks import check_model

SHARD = "model.safetensors"


def test_every_bundled_folder_has_valid_checksums_of_all_weights() -> None:
    for folder in bundled().values():
        listed = {line.split()[1] for line in (folder / SUMS_FILE).read_text().splitlines()}
        assert listed == {file.name for file in folder.glob("*.safetensors")} != set()
        check_weights(folder)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a copy of two bundled folders in their place."""
    for name in ("text-drafter", "text-target-medusa"):
        shutil.copytree(bundled_folder() / name, tmp_path / name)
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    return tmp_path


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "one bit": (flip, "truncated or damaged"),
    "cut": (lambda file: os.truncate(file, 1000), "truncated or damaged"),
    "missing": (lambda file: file.unlink(), "is missing"),
    "pointer": (lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["text-drafter", "text-target-medusa"])
def test_error_for_a_damaged_bundle_has_a_remedy(bundle: Path, name: str, damage: str) -> None:
    check_weights(bundle / name)
    act, says = DAMAGE[damage]
    act(bundle / name / SHARD)
    with pytest.raises(ModelError, match=says) as caught:
        load_model(name, torch.device("cpu"), torch.float32)
    assert f"{name}/{SHARD}" in caught.value.message
    assert "git checkout -- assets/models" in caught.value.remedy


def test_heads_are_checked_before_they_draft(bundle: Path) -> None:
    shutil.copytree(Path("assets/models/text-target"), bundle / "text-target")
    flip(bundle / "text-target-medusa" / SHARD)
    models = load_models("text-target", None, device="cpu", dtype="float32")
    with pytest.raises(ModelError, match="truncated or damaged"):
        load_trained(MedusaHeads, models, "Medusa heads", "")


def test_retrained_weights_have_their_own_checksums(bundle: Path) -> None:
    flip(bundle / "text-target-medusa" / SHARD)
    write_sums(bundle / "text-target-medusa")
    check_weights(bundle / "text-target-medusa")


def test_user_folder_needs_no_checksums(bundle: Path, tmp_path: Path) -> None:
    own = shutil.copytree(bundle / "text-target-medusa", tmp_path / "elsewhere" / "mine")
    flip(own / SHARD)
    check_weights(own)


@pytest.mark.parametrize("name", [SHARD, "tokenizer.json", "additional_chat_templates/x.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_special_files_are_refused_before_reading_blocks(
    bundle: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bundle / "text-drafter" / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    held = None
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        held = socket.socket(socket.AF_UNIX)
        monkeypatch.chdir(file.parent)  # socket paths must be short
        held.bind(file.name)
    else:
        file.symlink_to("/dev/zero")
    for refuses in (locate, check_model, lambda n: load_model(n, torch.device("cpu"), torch.float32)):
        for named in ("text-drafter", str(bundle / "text-drafter")):
            with pytest.raises(ModelError, match=f"not a file but a {kind}"):
                refuses(named)
    if held is not None:
        held.close()
