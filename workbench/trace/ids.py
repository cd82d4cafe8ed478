"""Create and check ids of saved runs, in a module that does not import Polars, unlike the run store."""

from __future__ import annotations

import datetime
import re
import secrets

_FORM = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")


def new_id() -> str:
    """Return a new id for a saved run, made of the time to the millisecond and 20 random bits."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03x}{secrets.randbits(20):05x}"


def is_id(name: str) -> bool:
    """Return whether a name has the form of a saved run's id.

    Example:
        >>> is_id("20261121-153000-0a1b2c3d"), is_id("../20261121-153000-0a1b2c3d")
        (True, False)
    """
    return _FORM.fullmatch(name) is not None
