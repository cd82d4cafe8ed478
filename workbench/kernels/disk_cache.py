"""Locate the user's cache folder for converted models and compiled code, and cache facts about the machine as JSON.

Such facts are, for example, results of measurements and self-tests.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.trace.files import write_atomically
from workbench.trace.private import make_private, temporary_folder

LOG = logging.getLogger(__name__)


def folder() -> Path:
    """Return the path of the workbench's folder in the user's cache folder.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "speculative-decoding-workbench"


def read(name: str) -> dict[str, Any]:
    """Read the JSON object in a file of the cache folder; {} if the file is missing or damaged."""
    try:
        facts = json.loads((folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write(name: str, facts: dict[str, Any]) -> None:
    """Write a JSON object to a file of the cache folder, atomically; do nothing if the file cannot be written."""
    with suppress(OSError, RuntimeError):
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(facts, indent=1).encode())


def cache_folder() -> Path:
    """Return the folder for converted models: `WORKBENCH_CACHE`, else the user's cache folder, else a temporary one."""
    if path := os.environ.get("WORKBENCH_CACHE"):
        return Path(path).expanduser() / "models"
    try:
        return folder() / "models"
    except RuntimeError:  # no home folder; a fixed name in /tmp could be another user's folder
        return temporary_folder() / "models"


def code_folder(name: str) -> Path:
    """Return a folder for compiled code: a folder in the cache if only this user can write to it, else a temporary one.

    Anyone who can write to this folder can run code as this user: numba's index files are pickles, and Inductor's files
    are libraries.

    Args:
        name: name of the folder; the user id is appended, so that users who share `WORKBENCH_CACHE` have separate
            folders.
    """
    path = cache_folder().with_name("compiled") / f"{name}-{os.getuid() if hasattr(os, 'getuid') else 0}"
    with suppress(OSError):
        if make_private(path):
            return path
    LOG.warning(
        "Other users can write to the cache folder %s, so compiled code is kept only until this process ends.", path
    )
    temporary = temporary_folder() / "compiled" / name
    temporary.mkdir(parents=True, exist_ok=True)
    return temporary
