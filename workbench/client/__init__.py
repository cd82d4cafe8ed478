"""Python API of the workbench: `from workbench.client import Workbench`.

The app, the notebooks and the command line use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.client.client import Workbench
    from workbench.client.handle import RunHandle
    from workbench.client.protocol import Client

__all__ = ["Client", "RunHandle", "Workbench"]

_MODULES = {"Client": "protocol", "RunHandle": "handle", "Workbench": "client"}


def __getattr__(name: str) -> Any:
    """Import a class of this package at its first use, so that the command line starts without importing pydantic."""
    if name in _MODULES:
        return getattr(import_module(f"workbench.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'workbench.client' has no attribute {name!r}")
