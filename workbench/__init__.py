"""Speculative Decoding Workbench: many drafting methods on one engine, with views of every round."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.client import Workbench as Workbench

__version__ = "0.1.0"

# PyTorch reads it when it first allocates. Laws over 50,000 tokens come and go every round, and on a CPU memory in
# pages of 4 KiB takes longer to be had (1 µs each) than to be computed in.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def __getattr__(name: str) -> Any:
    """Import `Workbench`, and with it PyTorch, at its first use, so that `import workbench` alone stays fast."""
    if name == "Workbench":
        from workbench.client import Workbench

        return Workbench
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")
