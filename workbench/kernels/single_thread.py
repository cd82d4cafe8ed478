"""Write to CPU tensors on the calling thread, without torch's thread pool.

torch splits work on more than 32,768 numbers among its threads. For such small work the operating system then moves
threads between cores for milliseconds. The threads of the next compiled forward pass end up on one core, and that
forward pass took 2 ms longer (Intel Xeon, 2 cores, AMX; 9 tokens of SmolLM2, 11.7 → 14.4 ms).
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
"""Size of a CPU cache line in bytes. torch aligns the memory of tensors to multiples of this number, too."""


def fill_single_threaded(tensor: Tensor, value: float) -> Tensor:
    """Fill a contiguous tensor with one value and return it; on a CPU, without torch's thread pool."""
    if not on_host(tensor.device):
        return tensor.fill_(value)
    bits = _BITS[tensor.element_size()]
    number = torch.full((1,), value, dtype=tensor.dtype).view(bits).item()
    tensor.view(bits).numpy().fill(number)
    return tensor


def allocate_lazy_zeros(size: Sequence[int], like: Tensor) -> Tensor:
    """Return zeros with the dtype and device of `like`; on a CPU, memory is allocated only at first access.

    `torch.zeros` writes every element. Most of a buffer for a long context is never used, and writing it takes time
    and memory (measured: 1.3 s for two rows of SmolLM2's 8,192 tokens, AMD EPYC in a sandbox).
    """
    if not on_host(like.device):
        return like.new_zeros(size)
    n_bytes = math.prod(size) * like.element_size()
    buffer = np.zeros(n_bytes + _LINE, np.uint8)
    start = -buffer.ctypes.data % _LINE
    return torch.from_numpy(buffer[start : start + n_bytes]).view(like.dtype).view(*size)


def move_single_threaded(tensor: Tensor, places: Sequence[int], to: int) -> None:
    """Move entries of a tensor's second-to-last dimension to consecutive indices, in place, on the calling thread.

    Args:
        tensor: [*b, C, D], a view of a larger tensor.
        places: indices of the entries to move, before the move.
        to: index of the first moved entry after the move.
    """
    if not on_host(tensor.device):
        tensor[..., to : to + len(places), :] = tensor.index_select(-2, to_device(places, tensor.device))
        return
    entries: np.ndarray = tensor.view(_BITS[tensor.element_size()]).numpy()
    entries[..., to : to + len(places), :] = entries[..., list(places), :]
