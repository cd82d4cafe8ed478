"""Memory size of objects."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def size_of(item: Any, seen: set[int]) -> int:
    """Return the size in bytes of an object and of everything it refers to; shared objects count once."""
    if id(item) in seen:
        return 0
    seen.add(id(item))
    size = sys.getsizeof(item)
    if isinstance(item, np.ndarray):
        return size if item.base is None else size + size_of(item.base, seen)
    if isinstance(item, dict):
        return size + sum(size_of(k, seen) + size_of(v, seen) for k, v in item.items())
    if isinstance(item, list | tuple):
        return size + sum(size_of(x, seen) for x in item)
    if hasattr(item, "__dataclass_fields__"):
        return size + sum(size_of(getattr(item, name), seen) for name in item.__dataclass_fields__)
    if hasattr(item, "__dict__"):
        return size + sum(size_of(value, seen) for value in vars(item).values())
    return size
