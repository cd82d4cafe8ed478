"""Trained heads on disk in half the room: bytes, and a scale for each 64 (or 32) inputs of an output.

Heads draft and never decide, so a file may be coarser than what was trained: rounding moves a weight by 1/254 of the
largest of its group at most. What is read back are ordinary weights. A tensor `name` of signed bytes comes with
`name_scale`, as compressed-tensors writes it for groups.
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
"""Inputs of an output that share a scale: the first of these numbers that divides them."""
LEAST = 4096
"""Numbers of a weight that is worth it; norms and biases stay what they are."""


def to_bytes(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they go to disk: matrices as int8 [o, i] with bfloat16 scales [o, i / group], all else as it is.

    Args:
        weights: by name. Those whose last dimension no group divides stay, too.
    """
    made: dict[str, Tensor] = {}
    for name, weight in weights.items():
        group = _group(weight)
        if not group:
            made[name] = weight
            continue
        groups = weight.detach().float().unflatten(1, (-1, group))
        scale = (groups.abs().amax(2, keepdim=True) / STEPS * (1 + 2**-8)).bfloat16()  # no less than the true one
        numbers = (groups / scale.float().clamp_min(torch.finfo(torch.float32).tiny)).round_()
        made[name] = numbers.to(torch.int8).flatten(1)
        made[name + SCALE] = scale.squeeze(2)
    return made


def from_bytes(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `to_bytes`: bytes with their scales become float32, all else is as it was stored."""
    return {
        name: _times(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor
        for name, tensor in stored.items()
        if not _is_scale(name, stored)
    }


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a head's safetensors file, however it keeps them.

    Raises:
        OSError, SafetensorError: it cannot be read.
        ValueError: its scales do not fit its bytes.
    """
    return from_bytes(load_file(path))


def count_weights(path: Path) -> int:
    """Weights in a head's file; scales are none."""
    with safe_open(path, "np") as file:
        names = set(file.keys())
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names if not _is_scale(name, names))


def _group(weight: Tensor) -> int:
    """Inputs that share a scale; 0: the weight stays as it is."""
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
