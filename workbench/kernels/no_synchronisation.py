"""Forbid operations on which the host would wait for a GPU result, within a context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = {
    "_local_scalar_dense", "item", "equal", "allclose", "is_nonzero", "masked_select", "nonzero", "nonzero_numpy",
    "argwhere", "unique_consecutive", "unique_dim", "_unique", "_unique2", "bincount",
}  # fmt: skip
"""Names of torch operators for which the host must wait, because it reads their result or the size of the result."""


class NoSyncMode(TorchDispatchMode):
    """Context in which a torch operator that makes the host wait for a device raises a RuntimeError with its name.

    The context applies to the current thread only.

    Args:
        kind: type of the device that the host must not wait for.
    """

    def __init__(self, kind: str = "cuda") -> None:
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_on_device = any(isinstance(arg, Tensor) and arg.device.type == self.kind for arg in args)
        if is_on_device and (name := _read_by(func, args, kwargs or {})):
            raise RuntimeError(f"the host waits for {name} in the middle of a forward pass")
        result = func(*args, **(kwargs or {}))
        if is_on_device and self.kind != "cpu" and isinstance(result, Tensor) and result.device.type == "cpu":
            raise RuntimeError("the host waits for a copy from the device in the middle of a forward pass")
        return result


def _read_by(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the name of a torch operator if the host would wait for the result of this call; "" if not."""
    name = func.__name__.partition(".")[0]
    if name in READS:
        return name
    if name in ("index", "index_put", "index_put_") and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    ):
        return f"{name} by a mask"
    if name == "repeat_interleave" and kwargs.get("output_size") is None and isinstance(args[0], Tensor):
        return name
    return ""
