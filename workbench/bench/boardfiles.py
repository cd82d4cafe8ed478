"""Saved boards: where they are, and their rows. No PyTorch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError

_ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """Where the boards are; `WORKBENCH_BOARDS` names another folder."""
    return Path(os.environ.get("WORKBENCH_BOARDS", _ROOT / "assets" / "boards"))


def read(name: str, place: Path | None = None) -> dict[str, Any]:
    """The saved rows of a board by their names; empty where nothing was saved.

    Args:
        name: of the board.
        place: where the boards are, if not in `folder`.

    Raises:
        WorkbenchError: the file is damaged.
    """
    path = (place or folder()) / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkbenchError(f"{path} cannot be read: {error}", "Delete it and generate the board again.") from None
