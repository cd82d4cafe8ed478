"""Int8 checkpoints: matrices are restored within the rounding error, other tensors exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from workbench.models.int8_checkpoint import count_weights, dequantise_weights, quantise_weights, read_weights


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
    assert torch.equal(read_weights(tmp_path / "plain")["wide"], given["wide"])
    assert (tmp_path / "bytes").stat().st_size < 0.75 * (tmp_path / "plain").stat().st_size


@pytest.mark.parametrize("scale", [torch.ones(64, 3), torch.ones(63, 2), torch.ones(64, 0), torch.ones(64)])
def test_scales_of_wrong_shape_are_refused(scale: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        dequantise_weights({"w": torch.ones(64, 128, dtype=torch.int8), "w_scale": scale.half()})
    with pytest.raises(ValueError, match="do not fit"):
        dequantise_weights({"w": torch.ones(64, 128), "w_scale": torch.ones(64, 2)})
