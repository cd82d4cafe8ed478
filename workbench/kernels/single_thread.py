"""Writing to tensors on a CPU without torch's threads.

torch shares what has more than 32,768 numbers among its threads. For so little the system then moves threads about for
milliseconds, and those of the compiled pass that comes next find themselves on one core: that pass was measured to take
2 ms longer (Intel Xeon, 2 cores, AMX; 9 tokens of SmolLM2, 11.7 → 14.4 ms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.core.transfer import on_host, to_device

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LINE = 64
"""Bytes of a cache line, at which torch's own memory begins, too."""


def filled_alone(tensor: Tensor, value: float) -> Tensor:
    """The same tensor, contiguous, with one value everywhere; on a CPU the calling thread writes it."""
    if not on_host(tensor.device):
        return tensor.fill_(value)
    bits = _BITS[tensor.element_size()]
    number = torch.full((1,), value, dtype=tensor.dtype).view(bits).item()
    tensor.view(bits).numpy().fill(number)
    return tensor


def zeros_untouched(size: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of the type and on the device of `like`; on a CPU the system gives their memory as it is first touched.

    `torch.zeros` writes each of them. Most of a buffer for a long context never comes into use, and to touch it takes
    seconds and its memory (measured: 1.3 s for two rows of SmolLM2's 8,192 tokens, AMD EPYC in a sandbox).
    """
    if not on_host(like.device):
        return like.new_zeros(size)
    n_bytes = math.prod(size) * like.element_size()
    room = np.zeros(n_bytes + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    return torch.from_numpy(room[start : start + n_bytes]).view(like.dtype).view(*size)


def move_alone(tensor: Tensor, places: Sequence[int], to: int) -> None:
    """Copy entries of the last dimension but one to `to` and the places behind it, in place; likewise.

    Args:
        tensor: [*b, C, D], a part of a larger one.
        places: of it, as they are before anything is written.
        to: first place that is written.
    """
    if not on_host(tensor.device):
        tensor[..., to : to + len(places), :] = tensor.index_select(-2, to_device(places, tensor.device))
        return
    entries: np.ndarray = tensor.view(_BITS[tensor.element_size()]).numpy()
    entries[..., to : to + len(places), :] = entries[..., list(places), :]
