"""Backend that many users share: it loads models once and runs all generations in one engine thread.

`Backend` and `Run` are imported at first use, because modules that only check requests need no PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.core.startup import import_name
from workbench.service.limits import Limits

if TYPE_CHECKING:
    from workbench.service.backend import Backend
    from workbench.service.run import Run

__all__ = ["Backend", "Limits", "Run"]


def __getattr__(name: str) -> Any:
    if name in ("Backend", "Run"):
        return import_name(f"service.{name.lower()}", name)
    raise AttributeError(f"module 'workbench.service' has no attribute {name!r}")
