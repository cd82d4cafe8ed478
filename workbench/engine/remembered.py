"""Facts that were found out once about this machine and its models, kept as JSON files in the user's cache."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.trace.files import write_whole


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
