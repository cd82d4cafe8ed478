"""Int8 checkpoints: matrices are restored within the rounding error, other tensors exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from workbench.models.int8_checkpoint import (
    dequantise_weights,
    quantise_weights,
    read_folder,
    read_weights,
    write_weights,
)
from workbench.models.pretrained import load_model
from workbench.models.weight_files import count_weights
from workbench.training.heads.artefact import shrink

CPU = torch.device("cpu")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "wide": torch.randn(64, 128).half(),
        "narrow": (0.01 * torch.randn(256, 288)).half(),
        "odd": torch.randn(96, 100).half(),
        "small": torch.randn(8, 64).half(),
        "norm.weight": torch.randn(8192).half(),
        "d2t": torch.arange(8192),
        "nothing": torch.zeros(64, 64).half(),
        "tiny": (1e-6 * torch.randn(64, 64)).half(),
    }


def test_matrix_is_restored_within_half_a_step_of_its_group() -> None:
    given = weights()
    stored = quantise_weights(given)
    found = dequantise_weights(stored)
    assert found.keys() == given.keys()
    for name, group in (("wide", 64), ("narrow", 32), ("tiny", 64)):
        assert stored[name].dtype is torch.int8
        assert stored[name + "_scale"].shape == (len(given[name]), given[name].shape[1] // group)
        true = given[name].float().unflatten(1, (-1, group))
        away = (found[name].unflatten(1, (-1, group)) - true).abs().amax(2)
        largest = true.abs().amax(2)
        assert (away <= largest / 254 * 1.02).all(), "a step is 1/127 of the group's largest value"
        assert (away > 0).any()
    assert torch.equal(found["nothing"], torch.zeros(64, 64))


def test_small_and_non_matrix_tensors_are_stored_unchanged() -> None:
    given, stored = weights(), quantise_weights(weights())
    for name in ("odd", "small", "norm.weight", "d2t"):
        assert torch.equal(stored[name], given[name])
        assert name + "_scale" not in stored


def test_both_file_formats_are_read_and_counted(tmp_path: Path) -> None:
    given = weights()
    for kind, held in (("plain", given), ("bytes", quantise_weights(given))):
        save_file(held, tmp_path / kind)
        assert read_weights(tmp_path / kind).keys() == given.keys()
        assert count_weights(tmp_path / kind) == sum(weight.numel() for weight in given.values())
    save_file({"wide": given["wide"]}, tmp_path / "plain")
    assert count_weights(tmp_path / "plain") == given["wide"].numel()  # a changed file is read again
    save_file(given, tmp_path / "plain")
    assert torch.equal(read_weights(tmp_path / "plain")["wide"], given["wide"])
    assert (tmp_path / "bytes").stat().st_size < 0.75 * (tmp_path / "plain").stat().st_size


@pytest.mark.parametrize("scale", [torch.ones(64, 3), torch.ones(63, 2), torch.ones(64, 0), torch.ones(64)])
def test_scales_of_wrong_shape_are_refused(scale: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        dequantise_weights({"w": torch.ones(64, 128, dtype=torch.int8), "w_scale": scale.half()})
    with pytest.raises(ValueError, match="do not fit"):
        dequantise_weights({"w": torch.ones(64, 128), "w_scale": torch.ones(64, 2)})


@pytest.mark.parametrize("name", ["diffusion-target", "text-drafter"])
def test_int8_model_loads_like_the_model_and_plain_transformers_refuses_it(name: str, tmp_path: Path) -> None:
    plain: Any = load_model(name, CPU, torch.float32)
    plain.save_pretrained(tmp_path / "plain")
    shrink(tmp_path / "plain", tmp_path / "int8")
    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "int8")
    loaded: Any = load_model(str(tmp_path / "int8"), CPU, torch.float32)
    assert type(loaded) is type(plain)
    assert loaded.generation_config.eos_token_id == plain.generation_config.eos_token_id
    for key, weight in plain.state_dict().items():
        assert (loaded.state_dict()[key] - weight).norm() <= 0.01 * weight.norm(), key
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype=torch.float32)
    assert torch.equal(again.state_dict()["lm_head.weight"], loaded.state_dict()["lm_head.weight"])


def test_only_named_weights_of_a_folder_are_read(tmp_path: Path) -> None:
    given = weights()
    error = write_weights(given, tmp_path / "a.safetensors")
    assert 0 < error < 0.01
    found = read_folder(tmp_path, {"wide", "odd"})
    assert found.keys() == {"wide", "odd"}
    assert torch.equal(found["wide"], read_folder(tmp_path)["wide"])
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata()["quantisation"].startswith("int8, symmetric")
