"""Find the user's own trained heads, in folders named on the command line or in the variable `WORKBENCH_HEADS`.

The heads may have any known layout.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbench.core.errors import ModelError
from workbench.models.bundle import config_of
from workbench.models.checkpoints.compatibility import HeadRequirements, mismatch_reason
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checkpoints.layouts import read_checkpoint
from workbench.models.local_models import as_argument, short_name, trained_for

ENV = "WORKBENCH_HEADS"
"""Name of the environment variable with the folders of the user's own trained heads, separated as in PATH."""


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """Trained heads in one of the user's folders.

    Attributes:
        folder: folder of the files.
        config: configuration of the heads, in the format of heads that this workbench trained.
        checkpoint: description of heads in another project's layout; None if this workbench wrote the heads.
    """

    folder: Path
    config: Mapping[str, Any]
    checkpoint: Checkpoint | None = None

    @property
    def kind(self) -> str:
        """Return the kind of trained head, such as "medusa"."""
        return self.config["workbench_head"]

    @property
    def name(self) -> str:
        """Return the name of the folder of the trained heads."""
        return self.folder.resolve().name


log = logging.getLogger(__name__)
_chosen: list[str] = []
_preferred: set[str] = set()
"""Folders of trained heads that `prefer` added in this process. If such a folder is missing later, a warning is logged
and no error is raised, because no user is waiting for the result."""
_missed: set[str] = set()
"""Folders of trained heads that `prefer` added, that cannot be read, and for which a warning was already logged."""


def use_heads(*places: str) -> None:
    """Use the trained heads in the folders `places` in this process, before those of `WORKBENCH_HEADS`."""
    _chosen[:] = places


def prefer(place: str, on: bool = True) -> None:
    """Use the trained heads in a folder before all other heads in this process, or stop using them.

    Args:
        place: folder of the heads.
        on: whether to use the heads.
    """
    use_heads(*([place] if on else []), *(other for other in _chosen if other != place))
    (_preferred.add if on else _preferred.discard)(place)
    _missed.discard(place)


def head_folders() -> list[str]:
    """Return the folders of the user's trained heads, named in this process or by `WORKBENCH_HEADS`, best first."""
    return [*_chosen, *filter(None, map(str.strip, os.environ.get(ENV, "").split(os.pathsep)))]


def own_heads() -> Iterator[OwnHeads]:
    """Yield the trained heads in the user's folders. A folder set by `prefer` is skipped if it cannot be read.

    Raises:
        ModelError: a folder that `prefer` did not set cannot be read.
    """
    for folder in head_folders():
        try:
            heads = open_heads(folder)
        except ModelError as error:
            if folder not in _preferred:
                raise
            if folder not in _missed:
                _missed.add(folder)
                log.warning("Heads chosen by the user cannot be used: %s", error)
            continue
        yield heads


def open_heads(place: str) -> OwnHeads:
    """Open the trained heads in a folder, or in a safetensors file.

    Raises:
        ModelError: the files cannot be read or have an unknown layout.
    """
    path = Path(place).expanduser()
    config = config_of(path) if path.is_dir() else {}
    if "workbench_head" in config:
        return OwnHeads(path, config)
    checkpoint = read_once(str(path), _date(path))
    facts = {"workbench_head": checkpoint.architecture, "hidden_size": checkpoint.facts["hidden_size"]}
    if checkpoint.draft_tokens is not None:
        facts["draft_vocabulary"] = list(checkpoint.draft_tokens)
    return OwnHeads(checkpoint.files.folder, facts, checkpoint)


@lru_cache(maxsize=8)
def read_once(place: str, changed: float) -> Checkpoint:
    """Read a checkpoint of trained heads; cache the result by path and by `changed`, the files' modification time."""
    return read_checkpoint(Path(place))


def _date(path: Path) -> float:
    folder = path if path.is_dir() else path.parent
    files = [*folder.iterdir()] if folder.is_dir() else []
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def problem(heads: OwnHeads, target: str, folder: Path | None) -> str:
    """Return why trained heads do not fit a target, according to the target's files; empty if they fit.

    The result is also empty if the target's files are not on this machine.

    Args:
        heads: heads to check.
        target: name of the target.
        folder: folder of the target; None: it is not on this machine yet.
    """
    if heads.checkpoint is None:
        head_target = trained_for(dict(heads.config))
        return (
            "" if head_target == short_name(target) else f"{heads.name} was trained for another target, {head_target}."
        )
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
        return mismatch_reason(heads.checkpoint, HeadRequirements.of(target, config)) if config else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(place: str, target: str, folder: Path | None) -> None:
    """Refuse trained heads that cannot be read or, according to the target's files, do not fit the target.

    Args:
        place: folder of the heads.
        target: name of the target.
        folder: folder of the target; None: it is not on this machine yet.

    Raises:
        ModelError: the heads cannot be used; the message names a target that would fit.
    """
    if reason := problem(open_heads(place), target, folder):
        raise ModelError(reason, f"Inspect the heads: workbench heads inspect {as_argument(place)} --target {target}.")
