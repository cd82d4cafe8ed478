"""Load the compiled (numba) kernels, and run them on several threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.kernels.devices import why_not_compiled

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

KernelModule = Literal[
    "discounts",
    "forward",
    "instructions",
    "feature_inputs",
    "distributions",
    "draft_levels",
    "llvm",
    "overlaps",
    "pairs",
    "siblings",
    "amx_tiles",
]
"""Type of the names of modules in `workbench.kernels.compiled`. With this type, type checkers find misspelt names,
which at run time would look like unavailable modules."""
_workers: ThreadPoolExecutor | None = None


def may_compile() -> bool:
    """Return whether the compiled kernels support this machine: Linux on x86-64, with numba installed."""
    return not why_not_compiled()


def load_kernels(part: KernelModule) -> ModuleType | None:
    """Import and return a module of `workbench.kernels.compiled`; None if compiled kernels are not available."""
    return _imported(part) if may_compile() else None


@cache
def _imported(part: KernelModule) -> ModuleType | None:
    try:  # imported late: numba takes half a second to import, and most models do not need it
        return import_module(f"workbench.kernels.compiled.{part}")
    except (ImportError, OSError, RuntimeError) as error:  # an old numpy, or no folder for the machine code
        log.warning("Compiled kernels are not available: %s", error)
        return None


@cache
def has_tiles() -> bool:
    """Return whether this machine has AMX tiles. If so, torch uses them for matrix products."""
    return bool(torch.cpu._is_amx_tile_supported())


@cache
def may_use_tiles() -> bool:
    """Request permission from the operating system to use AMX tiles; return whether compiled kernels may use them."""
    tiles = load_kernels("amx_tiles")
    return tiles is not None and has_tiles() and tiles.is_available() and bool(torch.cpu._init_amx())


def run_in_parallel(work: Callable[[], Any]) -> None:
    """Call the compiled function `work` on as many threads as torch would use; together they do its work once.

    Each thread takes the next free piece of the work. A thread that starts late finds no piece left, and `work` itself
    keeps its arrays alive. So the caller never waits for a thread to start, and a busy thread pool only makes the call
    slower.
    """
    global _workers
    if (others := torch.get_num_threads() - 1) > 0:
        if _workers is None:
            _workers = ThreadPoolExecutor(max(os.cpu_count() or 1, others), "fused")
        try:
            for _ in range(others):
                _workers.submit(work)
        except RuntimeError:  # no thread can be started, or the interpreter shuts down: this thread works alone
            pass
        finally:  # other threads may still be running, so all work must be complete before this returns
            work()
    else:
        work()


def _forget() -> None:
    """Drop the thread pool in a forked child process, because none of its parent's threads exist there."""
    global _workers
    _workers = None


os.register_at_fork(after_in_child=_forget)
