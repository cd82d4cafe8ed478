"""Folders that nobody but this process's user may write to, for files that are run or trusted when they are read."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@cache
def temporary_folder() -> Path:
    """Return a new folder that this user alone may enter; it is deleted when the process ends."""
    place = Path(tempfile.mkdtemp(prefix="workbench-"))
    atexit.register(_delete, place, os.getpid())
    return place


def make_private(folder: Path) -> bool:
    """Make a folder that its owner alone may enter, and say whether it is this user's and nobody else writes there.

    A folder that is there already is looked at and never changed: in a shared place, such as /tmp, somebody else may
    have made it first. Of the folders above, one that everybody may write to must keep names from being taken over
    (the sticky bit).

    Raises:
        OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return os.name == "nt" or _is_private(folder)


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
        return False
    above = [place.stat().st_mode for place in folder.resolve().parents]
    return all(not mode & stat.S_IWOTH or mode & stat.S_ISVTX for mode in above)


def _delete(place: Path, made_by: int) -> None:
    if os.getpid() == made_by:  # a child that was forked ends earlier
        shutil.rmtree(place, ignore_errors=True)
