"""What is compiled here, if anything, and the threads that share its work."""

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

Part = Literal[
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
"""Modules of `workbench.kernels.compiled` by name. A misspelt name would look like a module that is not compiled."""
_workers: ThreadPoolExecutor | None = None


def may_compile() -> bool:
    """Whether this machine is one that the compiled forward is for: Linux on x86-64, with numba."""
    return not why_not_compiled()


def compiled(part: Part) -> ModuleType | None:
    """A module of `workbench.kernels.compiled`; None where nothing is compiled."""
    return _imported(part) if may_compile() else None


@cache
def _imported(part: Part) -> ModuleType | None:
    try:  # numba takes half a second, and most models need none
        return import_module(f"workbench.kernels.compiled.{part}")
    except (ImportError, OSError, RuntimeError) as error:  # an old numpy, no folder to keep machine code in
        log.warning("Passes are not compiled: %s", error)
        return None


@cache
def has_tiles() -> bool:
    """Whether this machine multiplies by tiles, as torch does then."""
    return bool(torch.cpu._is_amx_tile_supported())


@cache
def may_use_tiles() -> bool:
    """Whether what is compiled may multiply by tiles; asks the system for them."""
    tiles = compiled("amx_tiles")
    return tiles is not None and has_tiles() and tiles.are_there() and bool(torch.cpu._init_amx())


def together(work: Callable[[], Any]) -> None:
    """Do a piece of work that any number of threads may share, with as many as torch would take.

    Who comes late finds nothing to do; what it looks at is kept for it by `work` itself. So nobody waits for a thread
    to start, and a busy pool costs speed alone.
    """
    global _workers
    if (others := torch.get_num_threads() - 1) > 0:
        if _workers is None:
            _workers = ThreadPoolExecutor(max(os.cpu_count() or 1, others), "fused")
        try:
            for _ in range(others):
                _workers.submit(work)
        except RuntimeError:  # no thread is to be had, or the interpreter ends: this one does it alone
            pass
        finally:  # whoever was asked goes on with it, so that it has to be over when this returns
            work()
    else:
        work()


def _forget() -> None:
    """A child of a fork has none of its parent's threads."""
    global _workers
    _workers = None


os.register_at_fork(after_in_child=_forget)
