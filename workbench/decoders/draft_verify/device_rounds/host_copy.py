"""Copies of a round's results to the host that are read later, without waiting for them when they are started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from workbench.core.transfer import on_host, to_list


@runtime_checkable
class PendingCopy(Protocol):
    """Numbers on their way from the device to the host."""

    def read(self) -> list[Any]:
        """Wait for the numbers if necessary, and return one nested list per tensor."""
        ...


class HostCopy:
    """Copy of tensors in host memory, which no later round overwrites."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor.clone() for tensor in tensors]

    def read(self) -> list[Any]:
        """Return one nested list per tensor."""
        return [to_list(tensor) for tensor in self._tensors]


class PinnedCopy:
    """Copy of tensors on a GPU to pinned memory, queued in the current stream.

    All numbers travel as one float64 vector, as in `core.transfer.to_host`.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._forms = [(tensor.shape, tensor.is_floating_point()) for tensor in tensors]
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        self._numbers = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
        self._numbers.copy_(flat, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(flat.device))

    def read(self) -> list[Any]:
        """Wait for this copy alone, and return one nested list per tensor."""
        self._event.synchronize()
        lists, at = list[Any](), 0
        for shape, is_floating in self._forms:
            part = self._numbers[at : at + shape.numel()].reshape(shape)
            lists.append(to_list(part if is_floating else part.long()))
            at += shape.numel()
        return lists


def copy_later(tensors: Sequence[Tensor]) -> PendingCopy:
    """Start to copy tensors of one device to the host."""
    is_on_host = not tensors or on_host(tensors[0].device)
    return HostCopy(tensors) if is_on_host else PinnedCopy(tensors)
