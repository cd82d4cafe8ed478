"""The API that app, notebooks and command line share: `from workbench.client import Workbench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.client.handle import RunHandle
from workbench.client.protocol import Client

if TYPE_CHECKING:
    from workbench.client.client import Workbench

__all__ = ["Client", "RunHandle", "Workbench"]


def __getattr__(name: str) -> Any:
    """The client itself is imported when it is asked for: what only checks requests needs no models."""
    if name == "Workbench":
        from workbench.client.client import Workbench

        return Workbench
    raise AttributeError(f"module 'workbench.client' has no attribute {name!r}")
