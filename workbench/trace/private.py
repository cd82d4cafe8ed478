"""Create folders that only the current user can write to, for files that are executed or trusted."""

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
    """Create a temporary folder that only this user can access, and delete it when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-"))
    atexit.register(_delete, folder, os.getpid())
    return folder


def make_private(folder: Path) -> bool:
    """Create a folder that only the current user can access, or check an existing folder.

    Return whether the current user owns the folder and others cannot write to it. An existing folder is not changed: in
    a shared location such as /tmp another user may have created it. Parent folders that are writable for everybody must
    have the sticky bit, which prevents others from replacing names.

    Raises:
        OSError: the folder cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return os.name == "nt" or _is_private(folder)


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
        return False
    modes = [parent.stat().st_mode for parent in folder.resolve().parents]
    return all(not mode & stat.S_IWOTH or mode & stat.S_ISVTX for mode in modes)


def _delete(place: Path, creator: int) -> None:
    if os.getpid() == creator:  # not in a forked child, which may end earlier
        shutil.rmtree(place, ignore_errors=True)
