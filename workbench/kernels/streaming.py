"""Keep a streaming KV cache: attention sinks and a sliding window of the newest entries, in constant memory.

The entries of the first tokens stay, and positions are counted within the cache, not within the text. When entries
between the sinks and the window are dropped, later entries move to lower positions, and their keys are rotated to these
positions. Source: Xiao et al. 2023, arXiv:2309.17453, §3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.kernels.kv_cache import KVCache
from workbench.kernels.segment import Slot


@dataclass(frozen=True, slots=True)
class SinkWindow:
    """Retention rule of a streaming KV cache: keep the first `sinks` entries and at least the last `window` entries.

    Old entries are dropped in blocks of a quarter of the window. A key is then moved at most five times, so that
    rounding its rotations to half precision does not add up, and most commits move nothing.

    Attributes:
        sinks: number of first entries (attention sinks) that stay.
        window: minimum number of newest entries that stay.
        rotation: rotation of the model's keys.
    """

    sinks: int
    window: int
    rotation: KeyRotation

    @property
    def block(self) -> int:
        """Return the minimum number of KV-cache entries that are dropped at once."""
        return max(1, self.window // 4)

    def after_commit(self, cache: KVCache, slot: Slot) -> None:
        """Drop all KV-cache entries between sinks and window if they are at least a block (a quarter of the window)."""
        n = slot.length - self.sinks - self.window
        if n >= self.block:
            cache.drop(slot.index, self.sinks, self.sinks + n, slot.length, lambda keys: self.rotation(keys, -n))
            slot.length -= n
            slot.shift += n


class KeyRotation:
    """Rotary embedding that moves cached keys to other positions.

    Args:
        frequencies: angle per position of each pair of dimensions, [D/2]; dimension i forms a pair with i + D/2.
    """

    def __init__(self, frequencies: Float[Tensor, " half"]) -> None:
        self.frequencies = frequencies.double()

    def __call__(self, keys: Float[Tensor, "*b n D"], by: int) -> Float[Tensor, "*b n D"]:
        """Return cached keys, rotated to positions that are larger by the number `by`."""
        wide = keys if keys.dtype == torch.float64 else keys.float()
        angle = self.frequencies * by
        cos, sin = (torch.cat([value, value], -1).to(wide.device, wide.dtype) for value in (angle.cos(), angle.sin()))
        first, second = wide.chunk(2, -1)
        return (wide * cos + torch.cat([-second, first], -1) * sin).to(keys.dtype)


def find_key_rotation(model: Any) -> KeyRotation | None:
    """Return the rotation that moves a model's cached keys to other positions.

    The rotation is taken from the model's rotary embedding; the caller must compare it with the model's own keys. None
    if the model has no rotary embedding, or different ones per layer.

    Args:
        model: causal language model.
    """
    trunk = model.get_decoder() if hasattr(model, "get_decoder") else getattr(model, "model", None)
    rotary = getattr(trunk, "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    return KeyRotation(frequencies) if isinstance(frequencies, Tensor) else None
