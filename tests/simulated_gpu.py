"""A simulated GPU: the CPU under the name "cuda", with the device errors of a real GPU.

Inside `SimulatedGPU`, each tensor has the requested device, "cuda" or "cpu", and everything is computed on the CPU. So
the results on both devices can be compared number by number. Operations on tensors of both devices raise an error, as
do a CPU generator for tensors on "cuda", and NumPy views of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

GPU, CPU = torch.device("cuda"), torch.device("cpu")
_on_gpu: Any = WeakIdKeyDictionary()
"""Tensors on the simulated GPU."""
_MOVES = {Tensor.cpu, Tensor.cuda, Tensor.to}
_COPIES = {Tensor.copy_, torch._has_compatible_shallow_copy_type, Tensor.data.__set__}  # pyright: ignore[reportAttributeAccessIssue]
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")
_INDEXED = {Tensor.__getitem__, Tensor.__setitem__}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def device_of(tensor: Tensor) -> torch.device:
    """Return the simulated device of a tensor."""
    return GPU if tensor in _on_gpu else CPU


def _put(tensors: Iterable[Tensor], place: torch.device) -> None:
    for tensor in tensors:
        if place == GPU:
            _on_gpu[tensor] = True
        else:
            _on_gpu.pop(tensor, None)


class SimulatedGPU(TorchFunctionMode):
    """Simulated GPU, see the module's docstring.

    Attributes:
        n_operations: number of operations with results on the simulated GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_operations = 0

    def __enter__(self) -> SimulatedGPU:
        """Give new parameters the device of their data: PyTorch creates them without calling `__torch_function__`."""
        make = self._make = nn.Parameter.__new__

        def made(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            found = make(cls, data, requires_grad)
            if isinstance(data, Tensor):
                _put([found], device_of(data))
            return found

        nn.Parameter.__new__ = made  # pyright: ignore[reportAttributeAccessIssue]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        nn.Parameter.__new__ = self._make

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch._C._nn._parse_to:  # called by `Module.to`, which then calls `to` of each tensor
            return func(*args, **kwargs)
        if getattr(func, "__self__", None) is Tensor.device:
            return GPU if args[0] in _on_gpu else func(*args)
        given = list(_tensors((args, kwargs)))
        asked = self._requested_device(func, args, kwargs)
        if func not in _MOVES | _COPIES:
            self._refuse_mixed(func, args, given)
        if func is Tensor.numpy and device_of(args[0]) == GPU:
            raise TypeError("a GPU tensor is no array: use .cpu() first")
        if asked is not None and asked.type == GPU.type:
            if kwargs.get("generator") is not None:
                raise RuntimeError("Expected a 'cuda' device type for generator")
            args = tuple(CPU if isinstance(x, str | torch.device) else x for x in args)
            kwargs |= {"device": CPU} if "device" in kwargs else {}
        is_there = any(device_of(each) == GPU for each in given) if asked is None else asked.type == GPU.type
        place = GPU if is_there else CPU
        self.n_operations += is_there
        found = Tensor.clone(args[0]) if func is Tensor.cuda else func(*args, **kwargs)
        if func == Tensor.data.__set__:  # pyright: ignore[reportAttributeAccessIssue]
            _put([args[0]], device_of(args[1]))
            return found
        if func == Tensor.__iter__:
            rows = list(found)
            _put(rows, place)
            return iter(rows)
        if isinstance(found, Tensor) and func in _MOVES and found is args[0] and device_of(found) != place:
            found = found.clone()
        if func not in _COPIES:
            _put((each for each in _tensors(found) if not any(each is one for one in given)), place)
        return found

    @staticmethod
    def _requested_device(func: Any, args: Any, kwargs: Any) -> torch.device | None:
        """Return the device that a call requests explicitly; None if it requests none."""
        if func is Tensor.cpu:
            return CPU
        if func is Tensor.cuda:
            return GPU
        if kwargs.get("device") is not None:
            return torch.device(kwargs["device"])
        if func is Tensor.to:
            for one in args[1:]:
                if isinstance(one, Tensor):
                    return device_of(one)
                if isinstance(one, str | torch.device):
                    return torch.device(one)
            return device_of(args[0])
        return None

    @staticmethod
    def _refuse_mixed(func: Any, args: Any, given: list[Tensor]) -> None:
        if func in _INDEXED and device_of(args[0]) == GPU:  # indices of a "cuda" tensor may be on the CPU
            given = [args[0], *(_tensors(args[2]) if len(args) > 2 else ())]
        name = getattr(func, "__name__", str(func))
        is_in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        into = args[0] if args and is_in_place else None
        places = {device_of(each) for each in given if each.dim() or each is into or device_of(each) == GPU}
        if len(places) > 1:
            raise RuntimeError(f"Expected all tensors to be on the same device: {name}")
