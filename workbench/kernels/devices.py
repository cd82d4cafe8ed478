"""Devices and number formats by their names: what can be ruled out before PyTorch is imported.

What is refused here cannot work on this machine; what is let through, PyTorch has the last word on.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from functools import cache
from importlib import metadata
from importlib.util import find_spec

from workbench.core.errors import ModelError

DTYPES = ("float64", "float32", "bfloat16", "float16", "int8")
"""Number formats that models can be run in; in int8 only the weights are (`workbench.kernels.quantised`)."""
_CUDA_LIBRARIES = {"Linux": "libcuda.so.1", "Windows": "nvcuda.dll"}


@cache
def kinds() -> tuple[str, ...]:
    """Kinds of device that this machine may have: "cpu" always, "cuda" and "mps" where nothing rules them out.

    A PyTorch built for CPUs rules CUDA out, and so does a machine without its driver. The driver is only looked for,
    not started: a process that has started it cannot be forked.
    """
    try:
        build = metadata.version("torch").partition("+")[2]
    except metadata.PackageNotFoundError:
        build = ""
    system = platform.system()
    found = ["cpu"]
    if build.startswith("rocm") or (build != "cpu" and _has_library(_CUDA_LIBRARIES.get(system, ""))):
        found.append("cuda")
    if system == "Darwin" and platform.machine() == "arm64":
        found.append("mps")
    return tuple(found)


def _has_library(name: str) -> bool:
    try:
        return bool(name) and ctypes.CDLL(name) is not None
    except OSError:
        return False


def remedy() -> str:
    """Which devices to use instead, of those that there are."""
    return f"Use {', '.join(('auto', *kinds()[:-1]))} or {kinds()[-1]}."


def check_device(device: str) -> None:
    """Refuse a device that is none, or that this machine cannot have.

    Raises:
        ModelError: with those that it has.
    """
    kind = device.partition(":")[0]
    if device == "auto" or (kind in kinds() and re.fullmatch(r"[a-z]+(:\d{1,3})?", device)):
        return
    raise ModelError(f"Device {device!r} is not available here.", remedy())


def check_gpu(device: str, what: str) -> None:
    """Refuse a device that is no GPU, for what is worth nothing elsewhere. What PyTorch finds, it is asked for again.

    Args:
        device: as `--device` has it, or what became of it.
        what: needs a GPU, for the message.

    Raises:
        ModelError: with what to do.
    """
    kind = device.partition(":")[0]
    if kind == "cuda" or (kind == "auto" and "cuda" in kinds()):
        return
    raise ModelError(
        f"{what} needs a GPU, and {'this machine has none' if kind == 'auto' else f'{kind} is none'}.",
        "Use cuda." if "cuda" in kinds() else "Run it where there is an NVIDIA GPU and a PyTorch built for CUDA.",
    )


def check_dtype(dtype: str, device: str = "auto") -> None:
    """Refuse a number format that is none, or that the device cannot compute in.

    Raises:
        ModelError: with those that there are.
    """
    if dtype not in ("auto", *DTYPES):
        raise ModelError(f"There is no dtype {dtype!r}.", f"Use one of: auto, {', '.join(DTYPES)}.")
    if dtype == "float64" and device.startswith("mps"):
        raise ModelError("mps does not support float64.", "Use float32, or the device cpu.")
    if dtype == "int8" and device.partition(":")[0] not in ("auto", "cpu"):
        raise ModelError(
            f"int8 is for passes compiled for a CPU, not for {device}.", "Use bfloat16, or the device cpu."
        )
    if dtype == "int8" and (why := why_not_compiled()):
        raise ModelError(f"int8 is not available here: it needs compiled passes, but {why}.", "Use float32.")


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def why_not_compiled() -> str:
    """Why passes over few tokens are not compiled in this process, as the end of a sentence; empty where they are."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, not for {platform.system()} on {platform.machine()}"
    if not _has_numba():
        return "numba, which compiles them, is not installed (pip install numba)"
    return "WORKBENCH_COMPILED=0 switches them off" if os.environ.get("WORKBENCH_COMPILED", "1") == "0" else ""
