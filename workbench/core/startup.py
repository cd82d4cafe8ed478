"""Speed up the start of a program by switching garbage collection off while hundreds of modules are imported."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def pause_gc() -> Generator[None]:
    """Switch garbage collection off inside this block, for imports of PyTorch and transformers.

    While imports create modules, classes and functions, the collector would scan them again and again. Without it,
    `import transformers.modeling_utils` takes 7.7 instead of 10.4 s of CPU time (a busy Intel Xeon of 2.5 GHz).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_name(module: str, name: str) -> Any:
    """Return the attribute `name` of a module of the package `workbench`; import the module if necessary.

    Args:
        module: dotted path of the module within the package, such as "models.loading".
        name: name of a class, function or constant in the module.
    """
    with pause_gc():
        return getattr(importlib.import_module(f"workbench.{module}"), name)


@contextlib.contextmanager
def pause_and_freeze_gc() -> Generator[None]:
    """Switch garbage collection off inside this block, and exclude all objects that exist at its end from collections.

    Use it at the start of a long-running program. Otherwise every later full collection, which may happen in a timed
    round, would scan all modules again. Scanning took 2.0 of the 9.8 seconds of CPU time from `python app.py` to the
    first token (AMD EPYC with AVX-512, Python 3.11).
    """
    with pause_gc():
        try:
            yield
        finally:
            gc.freeze()
