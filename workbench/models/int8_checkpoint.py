"""Store weights of trained heads as int8, at half the file size: signed bytes, and one scale per 64 (or 32) inputs.

Heads only draft, so the file may be less precise than the trained weights: rounding changes a weight by at most 1/254
of the largest in its group. Reading returns ordinary weights. An int8 tensor `name` has its scales in `name_scale`, in
the layout of compressed-tensors' group quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from workbench.kernels.quantised import STEPS

SCALE = "_scale"
GROUPS = (64, 32)
"""Possible numbers of inputs that share a scale; the first that divides a matrix's number of inputs is used."""
LEAST = 4096
"""Minimum number of elements of a weight that is quantised; norms and biases are stored unchanged."""


def quantise_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantise weights: matrices become int8 [o, i] with bfloat16 scales [o, i / group]; other weights stay unchanged.

    Args:
        weights: weights by name. A matrix also stays unchanged if no group size divides its last dimension.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = _group(weight)
        if not group:
            tensors[name] = weight
            continue
        groups = weight.detach().float().unflatten(1, (-1, group))
        scale = (groups.abs().amax(2, keepdim=True) / STEPS * (1 + 2**-8)).bfloat16()  # at least the exact scale
        numbers = (groups / scale.float().clamp_min(torch.finfo(torch.float32).tiny)).round_()
        tensors[name] = numbers.to(torch.int8).flatten(1)
        tensors[name + SCALE] = scale.squeeze(2)
    return tensors


def dequantise_weights(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Invert `quantise_weights`: int8 weights with scales become float32; other weights stay unchanged."""
    return {
        name: _times(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor
        for name, tensor in stored.items()
        if not _is_scale(name, stored)
    }


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a head's safetensors file by name; int8 weights are dequantised to float32.

    Raises:
        OSError, SafetensorError: the file cannot be read.
        ValueError: the scales do not fit the int8 tensors.
    """
    return dequantise_weights(load_file(path))


def count_weights(path: Path) -> int:
    """Return the number of weights in a head's file, scales not counted."""
    with safe_open(path, "np") as file:
        names = set(file.keys())
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names if not _is_scale(name, names))


def _group(weight: Tensor) -> int:
    """Return the number of inputs that share a scale; 0: the weight is stored unchanged."""
    is_matrix = weight.is_floating_point() and weight.ndim == 2 and weight.numel() >= LEAST
    return next((group for group in GROUPS if is_matrix and weight.shape[1] % group == 0), 0)


def _is_scale(name: str, stored: Mapping[str, Tensor] | set[str]) -> bool:
    return name.endswith(SCALE) and name.removesuffix(SCALE) in stored


def _times(numbers: Tensor, scale: Tensor) -> Tensor:
    fits = numbers.dtype is torch.int8 and numbers.ndim == scale.ndim == 2 and len(numbers) == len(scale)
    if not fits or not scale.numel() or numbers.shape[1] % scale.shape[1]:
        raise ValueError(f"{tuple(scale.shape)} scales do not fit {tuple(numbers.shape)} numbers of {numbers.dtype}")
    groups = numbers.float().unflatten(1, (scale.shape[1], -1))
    return (groups * scale.float().unsqueeze(2)).flatten(1)
