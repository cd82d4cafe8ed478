"""Python API, used by the app, the notebooks and the command line: `from workbench.client import Workbench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.client.handle import RunHandle
from workbench.client.protocol import Client

if TYPE_CHECKING:
    from workbench.client.client import Workbench

__all__ = ["Client", "RunHandle", "Workbench"]


def __getattr__(name: str) -> Any:
    """Import `Workbench` at first use: modules that only check requests need no models."""
    if name == "Workbench":
        from workbench.client.client import Workbench

        return Workbench
    raise AttributeError(f"module 'workbench.client' has no attribute {name!r}")
