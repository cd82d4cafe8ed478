"""Python API, used by the app, the notebooks and the command line: `from workbench.client import Workbench`."""

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
    """Import a class at first use: the command line needs only the keys, and starts before pydantic is imported."""
    if name in _MODULES:
        return getattr(import_module(f"workbench.client.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'workbench.client' has no attribute {name!r}")
