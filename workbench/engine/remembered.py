"""Facts that were found out once about this machine and its models, kept as JSON files in the user's cache."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.trace.files import write_whole


def folder() -> Path:
    """Where they are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "speculative-decoding-workbench"


def read(name: str) -> dict[str, Any]:
    """A file's facts by their key; none where there is no file, or one that is damaged."""
    try:
        found = json.loads((folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(name: str, facts: dict[str, Any]) -> None:
    """Replace a file, whole or not at all. A read-only home is no reason to fail."""
    path = folder() / name
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(facts, indent=1).encode())
