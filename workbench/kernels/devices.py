"""Check names of devices and dtypes before PyTorch is imported.

These checks refuse only devices and dtypes that cannot work on this machine; PyTorch may still refuse others later.
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
"""Names of the dtypes that models can run in. In int8 only the weights are 8-bit (`workbench.kernels.quantised`)."""
_CUDA_LIBRARIES = {"Linux": "libcuda.so.1", "Windows": "nvcuda.dll"}


@cache
def available_device_types() -> tuple[str, ...]:
    """Return the device types that this machine may have: "cpu" always, "cuda" and "mps" unless ruled out.

    A CPU-only PyTorch build rules out CUDA, and so does a missing NVIDIA driver. The driver library is only loaded, not
    initialised: a process that has initialised CUDA cannot be forked.
    """
    try:
        build = metadata.version("torch").partition("+")[2]
    except metadata.PackageNotFoundError:
        build = ""
    system = platform.system()
    names = ["cpu"]
    if build.startswith("rocm") or (build != "cpu" and _has_library(_CUDA_LIBRARIES.get(system, ""))):
        names.append("cuda")
    if system == "Darwin" and platform.machine() == "arm64":
        names.append("mps")
    return tuple(names)


def _has_library(name: str) -> bool:
    try:
        return bool(name) and ctypes.CDLL(name) is not None
    except OSError:
        return False


def remedy() -> str:
    """Return advice for an error message that lists the devices available on this machine."""
    return f"Use {', '.join(('auto', *available_device_types()[:-1]))} or {available_device_types()[-1]}."


def check_device(device: str) -> None:
    """Refuse a device that does not exist or that this machine cannot have.

    Raises:
        ModelError: the device is not available; the message lists the available ones.
    """
    kind = device.partition(":")[0]
    if device == "auto" or (kind in available_device_types() and re.fullmatch(r"[a-z]+(:\d{1,3})?", device)):
        return
    raise ModelError(f"Device {device!r} is not available here.", remedy())


def check_gpu(device: str, what: str) -> None:
    """Refuse a device that is not a GPU, for features that need one. PyTorch's own check comes later.

    Args:
        device: value of `--device`, or the device that it resolved to.
        what: feature that needs a GPU, for the message.

    Raises:
        ModelError: the device is not a GPU; the message says what to do.
    """
    kind = device.partition(":")[0]
    if kind == "cuda" or (kind == "auto" and "cuda" in available_device_types()):
        return
    raise ModelError(
        f"{what} needs a GPU, but {'this machine has none' if kind == 'auto' else f'{kind} is not one'}.",
        "Use cuda."
        if "cuda" in available_device_types()
        else "Run the command on a machine with an NVIDIA GPU and a PyTorch built for CUDA.",
    )


def check_dtype(dtype: str, device: str = "auto") -> None:
    """Refuse a dtype that does not exist or that the device does not support.

    Raises:
        ModelError: the dtype is not available; the message lists the alternatives.
    """
    if dtype not in ("auto", *DTYPES):
        raise ModelError(f"There is no dtype {dtype!r}.", f"Use one of: auto, {', '.join(DTYPES)}.")
    if dtype == "float64" and device.startswith("mps"):
        raise ModelError("mps does not support float64.", "Use float32, or the device cpu.")
    if dtype == "int8" and device.partition(":")[0] not in ("auto", "cpu"):
        raise ModelError(
            f"int8 needs compiled kernels, which run only on a CPU, not on {device}.",
            "Use bfloat16, or the device cpu.",
        )
    if dtype == "int8" and (why := why_not_compiled()):
        raise ModelError(f"int8 is not available here: it needs compiled kernels, but {why}.", "Use float32.")


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None


def why_not_compiled() -> str:
    """Return why compiled kernels are not available on this machine, as the end of a sentence; empty if they are."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"they are for Linux on x86-64, not for {platform.system()} on {platform.machine()}"
    if not _has_numba():
        return "numba, which compiles these kernels, is not installed (pip install numba)"
    return "WORKBENCH_COMPILED=0 disables compiled kernels" if os.environ.get("WORKBENCH_COMPILED", "1") == "0" else ""
