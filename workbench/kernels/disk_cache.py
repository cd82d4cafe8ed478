"""Files in the user's cache: facts about this machine and its models (JSON), converted models, compiled code."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.trace.files import write_whole
from workbench.trace.private import make_private, temporary_folder

LOG = logging.getLogger(__name__)


def folder() -> Path:
    """Where they are kept: the workbench's folder in the user's own cache.

    Raises:
        RuntimeError: a user without a home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-decoding-workbench"


def read(name: str) -> dict[str, Any]:
    """A file's facts by their key; none where there is no file, or one that is damaged, or no home."""
    try:
        found = json.loads((folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


def write(name: str, facts: dict[str, Any]) -> None:
    """Replace a file, whole or not at all. No home, or one that is read-only, is no reason to fail."""
    with suppress(OSError, RuntimeError):
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(facts, indent=1).encode())


def cache_folder() -> Path:
    """Return the folder of copies: `WORKBENCH_CACHE`, one in the user's cache, or a temporary one (no home)."""
    if named := os.environ.get("WORKBENCH_CACHE"):
        return Path(named).expanduser() / "models"
    try:
        return folder() / "models"
    except RuntimeError:  # a user without a home: a known name in /tmp could be somebody else's folder
        return temporary_folder() / "models"


def code_folder(name: str) -> Path:
    """Return a folder for compiled code: in the cache where this user alone can write to it, else a temporary one.

    Whoever writes to such a folder runs code here: numba's index files are pickles, Inductor's files are libraries.

    Args:
        name: of the folder; the user's number is added, so that users who share `WORKBENCH_CACHE` have one each.
    """
    place = cache_folder().with_name("compiled") / f"{name}-{os.getuid() if hasattr(os, 'getuid') else 0}"
    with suppress(OSError):
        if make_private(place):
            return place
    LOG.warning("Other users can write to %s: compiled code is kept only until this process ends.", place)
    own = temporary_folder() / "compiled" / name
    own.mkdir(parents=True, exist_ok=True)
    return own
