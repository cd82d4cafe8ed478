"""The bundled models: where they lie, and that nothing but files lies there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.trace.files import check_regular

DEFAULT_TARGET, DEFAULT_DRAFTER = "text-target", "text-drafter"
VISION_TARGET = "vision-target"
SOURCE = "source.json"
"""In each copy that was made of a model: of what it was made."""
Told = Callable[[int, int], None]
"""Called with bytes of a file that are done, and their number in all."""
_ROOT = Path(__file__).resolve().parents[2]


def bundled_folder() -> Path:
    """Folder of the bundled models; `WORKBENCH_MODELS` names another."""
    return Path(os.environ.get("WORKBENCH_MODELS", _ROOT / "assets" / "models"))


def bundled() -> dict[str, Path]:
    """Bundled models and heads by name."""
    folder = bundled_folder()
    if not folder.is_dir():
        return {}
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json")) if path.is_file()}


def config_of(folder: Path) -> dict[str, Any]:
    """The configuration of a model or a head; {} where its file holds none: others must not suffer from it."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("workbench_head", ""), str) else {}


def check_nesting(folder: Path) -> None:
    """Refuse a model whose JSON is nested deeper than can be read.

    Raises:
        ModelError: naming the file.
    """
    for path in sorted(folder.glob("*config.json")):
        if not path.is_file():
            continue
        try:
            json.loads(path.read_bytes())
        except RecursionError:
            raise ModelError(
                f"{path} is nested too deeply for a model configuration.", "Fetch the folder again."
            ) from None
        except (OSError, ValueError):
            continue  # what is wrong with it, whoever reads it says


def check_files(folder: Path) -> None:
    """Refuse a model's folder in which something stands for a file that is none: whoever opened it would wait.

    Raises:
        ModelError: naming it.
    """
    check_nesting(folder)
    for path in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        if path.is_file() or path.is_dir() or not path.exists():
            continue
        try:
            check_regular(path)
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read: {error.strerror}.", "Remove it from the folder, or fetch the folder again."
            ) from None
