"""Heads of one's own: folders named on the command line or in `WORKBENCH_HEADS`, of any layout that is known here."""

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
from workbench.models.checkpoints.compatibility import HeadRequirements, why_not
from workbench.models.checkpoints.description import Checkpoint
from workbench.models.checkpoints.layouts import read
from workbench.models.local_models import as_argument, named, trained_for

ENV = "WORKBENCH_HEADS"
"""Folders of heads that are found beside the bundled ones, separated as in PATH."""


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """Heads in a folder of somebody's own.

    Attributes:
        folder: where they lie.
        config: what our own heads' configuration would say of them.
        checkpoint: those of another layout; None: written here.
    """

    folder: Path
    config: Mapping[str, Any]
    checkpoint: Checkpoint | None = None

    @property
    def kind(self) -> str:
        """Of trained head: "medusa"."""
        return self.config["workbench_head"]

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.folder.resolve().name


log = logging.getLogger(__name__)
_chosen: list[str] = []
_preferred: set[str] = set()
"""Of these, places that were preferred while the process ran: nobody waits at a prompt to hear that one is gone."""
_missed: set[str] = set()
"""Of those, places of which it was said that they cannot be read."""


def choose(*places: str) -> None:
    """Take the heads in these folders in this process, before those that the environment names."""
    _chosen[:] = places


def prefer(place: str, on: bool = True) -> None:
    """Take the heads in a folder before all others in this process; or, with `on` False, no longer."""
    choose(*([place] if on else []), *(other for other in _chosen if other != place))
    (_preferred.add if on else _preferred.discard)(place)
    _missed.discard(place)


def places() -> list[str]:
    """The folders that were named, the first counts first."""
    return [*_chosen, *filter(None, map(str.strip, os.environ.get(ENV, "").split(os.pathsep)))]


def own_heads() -> Iterator[OwnHeads]:
    """The heads in the folders that were named; of preferred ones those that can be read.

    Raises:
        ModelError: one of them cannot be read.
    """
    for place in places():
        try:
            found = open_heads(place)
        except ModelError as error:
            if place not in _preferred:
                raise
            if place not in _missed:
                _missed.add(place)
                log.warning("heads cannot draft: %s", error)
            continue
        yield found


def open_heads(place: str) -> OwnHeads:
    """The heads in a folder, or in one of its safetensors files.

    Raises:
        ModelError: they cannot be read, or are of no layout that is known here.
    """
    path = Path(place).expanduser()
    config = config_of(path) if path.is_dir() else {}
    if "workbench_head" in config:
        return OwnHeads(path, config)
    checkpoint = read_once(str(path), _date(path))
    facts = {"workbench_head": checkpoint.architecture, "hidden_size": checkpoint.facts["hidden_size"]}
    if checkpoint.kept is not None:
        facts["draft_vocabulary"] = list(checkpoint.kept)
    return OwnHeads(checkpoint.stored.folder, facts, checkpoint)


@lru_cache(maxsize=8)
def read_once(place: str, changed: float) -> Checkpoint:
    """`read`, once for as long as nothing in the folder changes."""
    return read(Path(place))


def _date(path: Path) -> float:
    folder = path if path.is_dir() else path.parent
    files = [*folder.iterdir()] if folder.is_dir() else []
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def problem(heads: OwnHeads, target: str, folder: Path | None) -> str:
    """Why heads do not suit a target, as far as its files tell; "": they do, or nothing is known of it.

    Args:
        heads: whose they are.
        target: its name.
        folder: where it lies; None: it is not here yet.
    """
    if heads.checkpoint is None:
        made_for = trained_for(dict(heads.config))
        return "" if made_for == named(target) else f"{heads.name} was trained for {made_for}."
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
        return why_not(heads.checkpoint, HeadRequirements.of(target, config)) if config else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def check(place: str, target: str, folder: Path | None) -> None:
    """Refuse heads that cannot be read or do not suit a target, as far as files tell.

    Raises:
        ModelError: with what would suit it.
    """
    if said := problem(open_heads(place), target, folder):
        raise ModelError(said, f"Inspect them: workbench heads inspect {as_argument(place)} --target {target}.")
