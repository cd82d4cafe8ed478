"""Find the function that rotates a model's cached keys to other positions, and test it on the model first."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from workbench.core.errors import MethodUnavailableError
from workbench.kernels.kv_cache import TreeCache, TreeLayer
from workbench.kernels.segment import Segment
from workbench.kernels.streaming import KeyRotation, find_key_rotation
from workbench.models.runner import ROUNDING, Runner

_BY = 7
"""Distance, in positions, by which the test of a model's key rotation moves keys."""
_ANGLES = 1e-5
"""Relative rounding error of the cosines and sines of rotary embeddings, which models compute in float32 for any
dtype."""
_tested: weakref.WeakKeyDictionary[Any, KeyRotation | None] = weakref.WeakKeyDictionary()


def key_rotation(runner: Runner) -> KeyRotation:
    """Return a function that rotates a model's cached keys to other positions, after testing it on the model.

    Raises:
        MethodUnavailableError: the model's keys at other positions are not rotations of its keys at the first
            positions.
    """
    if runner.model not in _tested:
        rotation = find_key_rotation(runner.model)
        _tested[runner.model] = rotation if rotation is not None and _matches_own_keys(runner, rotation) else None
    rotation = _tested[runner.model]
    if rotation is None:
        raise MethodUnavailableError(
            f"The cached keys of the model {type(runner.model).__name__} cannot be moved to other positions.",
            "Use a model with rotary position embeddings of one kind, such as Llama or Qwen.",
        )
    return rotation


@torch.inference_mode()
def _matches_own_keys(runner: Runner, rotation: KeyRotation) -> bool:
    """Return whether rotated keys of a short text equal the model's own keys of this text at later positions."""
    tokens = torch.arange(1, 4, device=runner.device) % runner.vocab_size
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool, device=runner.device).tril()
    slot, keys = runner.open(), list[list[torch.Tensor]]()
    try:
        for start in (0, _BY):
            depth = torch.arange(len(tokens), device=runner.device) + start
            runner.rewind(slot, 0)
            runner.forward([Segment(slot, tokens, causal, depth)])
            keys.append(_keys(runner.cache, slot.index, len(tokens)))
    finally:
        runner.close(slot)
    first, later = keys
    if not runner.cache.is_uniform or any(key.shape[-1] != 2 * len(rotation.frequencies) for key in first):
        return False
    return all(
        float((rotation(a, _BY) - b).abs().max()) <= max(ROUNDING[runner.dtype], _ANGLES) * float(b.abs().max())
        for a, b in zip(first, later, strict=True)
    )


def _keys(cache: TreeCache, row: int, n: int) -> list[torch.Tensor]:
    return [
        layer.keys[row, :, :n].clone()
        for layer in cache.layers
        if isinstance(layer, TreeLayer) and layer.keys is not None
    ]
