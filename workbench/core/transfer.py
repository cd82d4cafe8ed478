"""Numbers on their way between host and device: a round waits for the device once, and never to send it something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def on_host(device: torch.device) -> bool:
    """Whether the host reads and writes what lies there directly."""
    return device.type == "cpu"


def to_device(values: Sequence[Any], device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of host numbers on a device. `torch.tensor(…, device=…)` waits until a GPU has done all its work.

    The copy is only queued: the driver takes small pageable memory over before the call returns.
    """
    made = torch.tensor(values, dtype=dtype)
    return made if on_host(torch.device(device)) else made.to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Any]:
    """Copy tensors to lists with one synchronisation, whatever their number."""
    if not tensors or on_host(tensors[0].device):
        return [listed(t) for t in tensors]
    flat = torch.cat([t.reshape(-1).double() for t in tensors]).cpu()
    lists, at = list[Any](), 0
    for tensor in tensors:
        part = flat[at : at + tensor.numel()].reshape(tensor.shape)
        lists.append(listed(part if tensor.is_floating_point() else part.long()))
        at += tensor.numel()
    return lists


def listed(tensor: Any) -> Any:
    """A tensor's or an array's numbers in lists, nested as it is: neither says of what in its types."""
    return tensor.tolist()


def of_numpy(numbers: np.ndarray) -> Tensor:
    """A tensor that shares the array's memory."""
    return torch.from_numpy(numbers)  # pyright: ignore[reportUnknownMemberType]
