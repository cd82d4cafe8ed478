"""Files of boards (saved tables of benchmark results): their folder, and reading their rows. Needs no PyTorch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError

_ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """Return the folder of the saved boards: the environment variable `WORKBENCH_BOARDS`, or else `assets/boards`."""
    return Path(os.environ.get("WORKBENCH_BOARDS", _ROOT / "assets" / "boards"))


def read(name: str, boards_folder: Path | None = None) -> dict[str, Any]:
    """Return the saved rows of a board (a table of benchmark results) by their keys; empty if nothing was saved.

    Args:
        name: name of the board.
        boards_folder: folder of the boards; None: the default, `folder()`.

    Raises:
        WorkbenchError: the board's file is damaged.
    """
    path = (boards_folder or folder()) / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkbenchError(
            f"{path} cannot be read: {error}", "Delete the file, then generate the results board again."
        ) from None
