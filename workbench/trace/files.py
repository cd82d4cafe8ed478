"""Files that are either there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

PART = ".part"
"""Ending of a file that is being written; whoever finds an old one may delete it."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a kill or a power cut at any point leaves the old file or the new one, never a part.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # Windows cannot open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name
        finally:
            os.close(folder)
