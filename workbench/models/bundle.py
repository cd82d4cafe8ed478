"""Find the bundled models, and check the files in a model's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError, system_reason
from workbench.trace.files import check_regular

DEFAULT_TARGET, DEFAULT_DRAFTER = "text-target", "text-drafter"
VISION_TARGET = "vision-target"
DIFFUSION_TARGET = "diffusion-target"
SOURCE = "source.json"
"""Name of the file in each converted copy of a model that describes the original model."""
Progress = Callable[[int, int], None]
"""Type of a progress callback for converting a file. Its arguments are the completed bytes and the file's size in
bytes."""
_ROOT = Path(__file__).resolve().parents[2]


def bundled_folder() -> Path:
    """Return the folder of the bundled models; the environment variable `WORKBENCH_MODELS` overrides it."""
    return Path(os.environ.get("WORKBENCH_MODELS", _ROOT / "assets" / "models"))


def bundled() -> dict[str, Path]:
    """Return the folders of bundled models and bundled trained heads by name."""
    folder = bundled_folder()
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 (as in `_has_config`)
    except OSError:
        return {}
    return {name: folder / name for name in names if _has_config(os.path.join(folder, name))}  # noqa: PTH118


def is_bundled(name: str) -> bool:
    """Return whether a model or a trained head of this name is bundled with the package."""
    return name not in ("", "..") and Path(name).name == name and _has_config(bundled_folder() / name)


def _has_config(folder: Path | str) -> bool:
    return os.path.isfile(os.path.join(folder, "config.json"))  # noqa: PTH113, PTH118 (a third of Path's time)


def config_of(folder: Path) -> dict[str, Any]:
    """Return the configuration (config.json) of a model or a trained head; {} if the file is missing or damaged.

    An unchanged file is parsed once per process: lists of models need the configurations of all trained heads, and some
    configurations list thousands of token ids. Callers must not change values inside the result.
    """
    path = os.path.join(folder, "config.json")  # noqa: PTH118
    try:
        facts = os.stat(path)  # noqa: PTH116
        return dict(_parsed(path, facts.st_mtime_ns, facts.st_size, facts.st_ino))
    except (OSError, ValueError, RecursionError):
        return {}


@lru_cache(maxsize=512)
def _parsed(path: str, *version: int) -> dict[str, Any]:
    """Return the content of a configuration file, cached by path and `version` (size and modification time)."""
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    return config if isinstance(config, dict) and isinstance(config.get("workbench_head", ""), str) else {}


def check_nesting(folder: Path) -> None:
    """Refuse a model whose JSON files are nested too deeply to parse.

    Raises:
        ModelError: a file is nested too deeply; the message names it.
    """
    for path in sorted(folder.glob("*config.json")):
        if not path.is_file():
            continue
        try:
            json.loads(path.read_bytes())
        except RecursionError:
            raise ModelError(
                f"{path} is nested too deeply for a model configuration.", "Download the folder again."
            ) from None
        except (OSError, ValueError):
            continue  # the code that loads the file reports these errors


def check_files(folder: Path) -> None:
    """Refuse a model folder that contains pipes, devices or similar special files: opening them would block.

    Raises:
        ModelError: an entry is not a regular file; the message names it.
    """
    check_nesting(folder)
    for path in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        if path.is_file() or path.is_dir() or not path.exists():
            continue
        try:
            check_regular(path)
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read: {system_reason(error)}.",
                "Remove the file from the folder, or download the folder again.",
            ) from None
