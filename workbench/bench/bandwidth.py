"""Memory bandwidth of a device, measured by a large copy, to compare with the weights that a forward pass reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from workbench.kernels.device_clock import synchronise

COPIES = 7
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Bytes of the copied block by device type: so much larger than the caches that they have no effect."""


def copy_bandwidth(device: torch.device | str, n_bytes: int | None = None) -> float:
    """Return the bytes per second that a device moves when copying a block: each byte counts as one read and one write.

    The rate is the median of a few copies after one warm-up. It is a reference, not a bound: a forward pass mainly
    reads, which may be a little faster.

    Args:
        device: a CPU or a GPU.
        n_bytes: size of the block; by default `COPY_BYTES`, or an eighth of a GPU's free memory if that is less.

    Raises:
        RuntimeError: two blocks do not fit into memory (`core.errors.is_out_of_memory` recognises the error).
    """
    device = torch.device(device)
    if n_bytes is None:
        n_bytes = COPY_BYTES.get(device.type, COPY_BYTES["cpu"])
        if device.type == "cuda":
            n_bytes = min(n_bytes, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.ones(n_bytes, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    seconds = [seconds_of(lambda: destination.copy_(source), device) for _ in range(COPIES + 1)][1:]
    return 2 * n_bytes / statistics.median(seconds)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of a function, including the device's own work."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start


def bytes_read(model: Any) -> int:
    """Return the bytes of the weights that a forward pass reads: all except the input embedding, which is a row lookup.

    An embedding that is also the LM head is read completely.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    weights = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    if table.data_ptr() != head.data_ptr():
        weights.pop(table.data_ptr(), None)
    return sum(weights.values())
