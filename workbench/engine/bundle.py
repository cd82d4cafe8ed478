"""Models by their names: what can be known of them from their files, without PyTorch."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.trace.files import check_regular

DEFAULT_TARGET, DEFAULT_DRAFTER = "text-target", "text-drafter"
VISION_TARGET = "vision-target"
OWN_DRAFTERS: dict[str, tuple[str, ...]] = {
    DEFAULT_TARGET: (DEFAULT_DRAFTER,),
    VISION_TARGET: ("vision-drafter", "vision-text-drafter"),
}
"""Bundled draft models by bundled target, the one that is taken when none is named first."""
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


def folder_of(name: str) -> Path | None:
    """Where a model's files are on this machine now; None for one that would have to be fetched or made first."""
    from workbench.engine import converted, placed, published  # which import this module

    if name in (known := bundled()):
        return known[name]
    if name in published.PUBLISHED:
        return published.here(published.PUBLISHED[name])
    path = placed.path_of(name)
    if path.is_dir():
        return path
    return converted.copy_of(path) if converted.is_gguf(name) and path.is_file() else None


def locate(name: str) -> str:
    """What `from_pretrained` should be given for a name: a folder, or a Hub id.

    A published model that is nowhere yet is fetched, and a GGUF file dequantised: `service.hub.fetch` does so with
    progress told, so that only those who call the engine alone wait for it here.

    Raises:
        ModelError: neither a bundled or published name, nor a folder with a model in it, nor a GGUF file, nor the form
            of a Hub id; or a pipe or a device lies in the folder.
        WorkbenchError: a copy that is needed cannot be made.
    """
    from workbench.engine import converted, placed, published  # which import this module

    known = bundled()
    if name in known:
        check_files(known[name])
        return str(known[name])
    if model := published.PUBLISHED.get(name):
        return str(published.obtain(model, lambda: published.download(model)))
    path = placed.path_of(name)
    if converted.is_gguf(name):
        return str(converted.convert(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json.", "Give the folder that holds config.json and *.safetensors.")
        check_files(path)
        return str(path)
    if path.is_file():
        raise ModelError(f"{path} is a file.", "Give the folder that holds config.json and *.safetensors.")
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local:
        near = difflib.get_close_matches(name, [*known, *published.PUBLISHED], n=2, cutoff=0.6)
        guess = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        names = ", ".join([*known, *published.PUBLISHED])
        hint = f"Known: {names}; `workbench models` says more."
        raise ModelError(
            f"There is no model {name!r}.",
            f"{guess}Give a bundled name, a folder, a GGUF file, or a Hub id (owner/name). {hint}",
        )
    return name


def check_files(folder: Path) -> None:
    """Refuse a model's folder in which something stands for a file that is none: whoever opened it would wait.

    Raises:
        ModelError: naming it.
    """
    for path in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        if path.is_file() or path.is_dir() or not path.exists():
            continue
        try:
            check_regular(path)
        except OSError as error:
            raise ModelError(
                f"{path} cannot be read: {error.strerror}.", "Take it out of the folder, or fetch the folder again."
            ) from None


def weight_bytes(name: str) -> int:
    """Bytes of a model's weights on disk; 0 for one that is not on this machine in a folder."""
    folder = folder_of(name)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder else 0


def own_drafter(target: str, blind: bool = False) -> str | None:
    """The bundled draft model that belongs to a target, where there is one.

    Args:
        target: its name.
        blind: the method leaves pictures out: one that was trained without them is taken first.
    """
    known = bundled()
    fitting = [name for name in OWN_DRAFTERS.get(target, ()) if name in known]
    if blind:
        fitting.sort(key=lambda name: "text" not in name)
    return fitting[0] if fitting else None


def known_targets() -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Bundled models that can be targets: (name, folder, configuration)."""
    for name, folder in bundled().items():
        config = json.loads((folder / "config.json").read_text())
        if "workbench_head" not in config:
            yield name, folder, config


def heads_of(target_name: str, kinds: Sequence[str]) -> list[str]:
    """Names of the bundled heads of these kinds that were trained for a target, from files alone."""
    from workbench.engine.placed import trained_for  # which imports this module

    configs = ((name, json.loads((folder / "config.json").read_text())) for name, folder in bundled().items())
    return [n for n, c in configs if c.get("workbench_head") in kinds and trained_for(c) == target_name]
