"""Interrupted training goes on: from its own checkpoint, never from one of other settings, and overwriting none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import ParameterError
from workbench.trace.files import write_whole

LENGTH = {
    *("resume", "minutes", "steps", "own_minutes", "threads", "device"),
    *("checkpoint", "checkpoint_seconds", "curves", "run"),
}
"""Options that may differ from those of the checkpoint: how long and where it is trained, not what."""


def settle(options: Any, asked: Mapping[str, Any], report: Callable[[str], None]) -> Any:
    """Options of a recipe that go on from its checkpoint where there is one, unless `resume` was asked for otherwise.

    Args:
        options: parsed.
        asked: options by name, as they were given.
        report: receives progress lines.

    Raises:
        ParameterError: a checkpoint is of other settings.
    """
    checkpoint: Path | None = getattr(options, "checkpoint", None)
    if checkpoint is None or not hasattr(options, "resume"):
        return options
    checkpoints, settings = _checkpoints(options, checkpoint), _settings(options)
    there = [path for path in checkpoints if path.exists()]
    resume = bool(there) if asked.get("resume") is None else options.resume
    if resume:
        check_same(options)
    for path in checkpoints:  # settings last: they are never beside a checkpoint of others, whenever this is killed
        if path in there and not resume:
            report(f"starts over; the earlier checkpoint is {set_aside(path)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(_beside(path), (json.dumps(settings, indent=1) + "\n").encode())
    return dataclasses.replace(options, resume=resume)


def check_same(options: Any) -> None:
    """See to it that the checkpoints that are there are of these options.

    Raises:
        ParameterError: one is of other settings.
    """
    for path in _checkpoints(options, options.checkpoint):
        if path.exists():
            _check_same(path, _settings(options))


def _checkpoints(options: Any, checkpoint: Path) -> list[Path]:
    several = getattr(options, "checkpoints", None)
    return several() if several else [checkpoint]


def _settings(options: Any) -> dict[str, str]:
    """What is trained, not how long and where."""
    several = hasattr(options, "checkpoints")
    return {
        f.name: str(getattr(options, f.name))
        for f in dataclasses.fields(options)
        if f.name not in LENGTH and not (several and f.name == "method")  # a file of each method says it by its name
    }


def _beside(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.settings.json")


def _check_same(checkpoint: Path, settings: Mapping[str, str]) -> None:
    if not _beside(checkpoint).exists():
        return
    try:
        before = dict(json.loads(_beside(checkpoint).read_text(encoding="utf-8")))
    except (ValueError, TypeError):  # a damaged note: what the checkpoint itself holds is looked at when it is read
        return
    changed = [name for name in settings if before.get(name, settings[name]) != settings[name]]
    if changed:
        was = ", ".join(f"{name}={before[name]}" for name in changed)
        raise ParameterError(
            f"The checkpoint {checkpoint} was trained with {was}.",
            "Give the same again to go on; resume=false starts over and keeps the old one aside.",
        )


def set_aside(checkpoint: Path) -> Path:
    """Rename a checkpoint of an earlier run, so that a new one does not overwrite it; returns where it is now."""
    n = 1
    while (old := checkpoint.with_name(f"{checkpoint.name}.old-{n}")).exists():
        n += 1
    return checkpoint.replace(old)
