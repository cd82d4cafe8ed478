"""Measure the rates of a device: memory bandwidth by a large copy, arithmetic by a large matrix product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from workbench.kernels.device_clock import synchronise

COPIES = 7
COPY_BYTES = {"cuda": 2**30, "cpu": 2**28}
"""Number of bytes that a bandwidth measurement copies, by device type: so many that the caches have no effect."""
LEAST_SIDE, MOST_SIDE, LEAST_PRODUCT_S, PRODUCTS = 128, 8192, 0.015, 5
"""Settings for the measurement of matrix products (`matmul_rate`): smallest and largest side of the matrices, minimum
time of a product in seconds, number of products."""


def copy_bandwidth(device: torch.device | str, n_bytes: int | None = None, fastest: bool = False) -> float:
    """Return the memory bandwidth of a device in bytes per second, measured by copying a block.

    Each byte counts twice, as one read and one write. The rate is the median of a few copies after one warm-up. It is a
    reference, not a bound: a forward pass mainly reads, which may be a little faster.

    Args:
        device: a CPU or a GPU.
        n_bytes: size of the block; by default `COPY_BYTES`, or an eighth of a GPU's free memory if that is less.
        fastest: whether to take the fastest copy instead of the median. On a machine with other load, it is nearer to
            the device's bandwidth.

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
    return 2 * n_bytes / (min(seconds) if fastest else statistics.median(seconds))


def read_bandwidth(device: torch.device | str, n_bytes: int | None = None) -> float:
    """Return the read bandwidth of a device in bytes per second: the median over a few sums of random numbers.

    Args:
        device: a CPU or a GPU.
        n_bytes: size of the block; by default `COPY_BYTES`.

    Raises:
        RuntimeError: the block does not fit into memory.
    """
    device = torch.device(device)
    n_bytes = n_bytes or COPY_BYTES.get(device.type, COPY_BYTES["cpu"])
    numbers = torch.empty(n_bytes // 4, device=device).normal_(generator=torch.Generator(device).manual_seed(0))
    return n_bytes / statistics.median([seconds_of(numbers.sum, device) for _ in range(COPIES + 1)][1:])


@torch.inference_mode()
def matmul_rate(device: torch.device | str, dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of a product of two square matrices, with the threads of torch.

    The side n doubles until a product takes at least `LEAST_PRODUCT_S`: some CPUs multiply some formats a hundred
    times slower than others. The rate is that of the fastest of a few products of the last size, 2n³ operations each.

    Args:
        device: a CPU or a GPU.
        dtype: number format of the matrices.

    Raises:
        RuntimeError: there is no memory for the matrices, or the device has no product in this number format.
    """
    device, side = torch.device(device), LEAST_SIDE
    while True:
        generator = torch.Generator(device).manual_seed(0)  # a GPU multiplies equal numbers faster than random ones
        a, b = torch.empty(2, side, side, device=device).normal_(generator=generator).to(dtype)
        seconds = [seconds_of(lambda a=a, b=b: torch.mm(a, b), device) for _ in range(PRODUCTS + 1)][1:]
        if (best := min(seconds)) >= LEAST_PRODUCT_S or side >= MOST_SIDE:
            return 2 * side**3 / best
        side *= 2


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of a call of `work` in seconds, including the work that it starts on the device."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start


def bytes_read(model: Any) -> int:
    """Return the number of bytes of a model's weights that a forward pass reads.

    These are all weights except the input embedding, of which only a few rows are read. An embedding that is also the
    LM head is read completely.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    weights = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    if table.data_ptr() != head.data_ptr():
        weights.pop(table.data_ptr(), None)
    return sum(weights.values())
