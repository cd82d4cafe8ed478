"""Copy numbers between host and device, with one synchronisation per round for reading and none for writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def on_host(device: torch.device) -> bool:
    """Return whether a device's memory is host memory."""
    return device.type == "cpu"


def to_device(values: Sequence[Any], device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """Copy host numbers to a new tensor on a device. Unlike `torch.tensor(…, device=…)`, do not wait for the copy.

    The copy is only queued. This is safe because the driver reads small pageable memory before the call returns.

    Args:
        values: numbers, possibly nested.
        device: target device.
        dtype: dtype of the tensor; None: the default for the numbers.
    """
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if on_host(torch.device(device)) else tensor.to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Any]:
    """Copy any number of tensors from the device to Python lists with one synchronisation."""
    if not tensors or on_host(tensors[0].device):
        return [to_list(t) for t in tensors]
    flat = torch.cat([t.reshape(-1).double() for t in tensors]).cpu()
    lists, at = list[Any](), 0
    for tensor in tensors:
        part = flat[at : at + tensor.numel()].reshape(tensor.shape)
        lists.append(to_list(part if tensor.is_floating_point() else part.long()))
        at += tensor.numel()
    return lists


def to_list(tensor: Any) -> Any:
    """Return a tensor or a NumPy array as nested lists.

    The types are Any, because neither PyTorch nor NumPy annotates the type of the elements.
    """
    return tensor.tolist()


def from_numpy(numbers: np.ndarray) -> Tensor:
    """Return a tensor that shares the memory of a NumPy array."""
    return torch.from_numpy(numbers)  # pyright: ignore[reportUnknownMemberType]
