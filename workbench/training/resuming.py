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


def settle(
    options: Any, asked: Mapping[str, Any], report: Callable[[str], None], unsaid: Mapping[str, str] | None = None
) -> Any:
    """Options of a recipe that go on from its checkpoint where there is one, unless `resume` was asked for otherwise.

    Args:
        options: parsed.
        asked: options by name, as they were given.
        report: receives progress lines.
        unsaid: see `check_same`.

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
        check_same(options, unsaid)
    for path in checkpoints:  # settings last: they are never beside a checkpoint of others, whenever this is killed
        if path in there and not resume:
            report(f"starts over; the earlier checkpoint is {set_aside(path)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(_beside(path), (json.dumps(settings, indent=1) + "\n").encode())
    return dataclasses.replace(options, resume=resume)


def check_same(options: Any, unsaid: Mapping[str, str] | None = None) -> None:
    """See to it that the checkpoints that are there are of these options.

    Args:
        options: parsed.
        unsaid: what earlier versions noted of options that nobody had chosen, which counts as what they are now.

    Raises:
        ParameterError: one is of other settings.
    """
    for path in _checkpoints(options, options.checkpoint):
        if path.exists():
            _check_same(path, _settings(options), unsaid or {})


def is_of(options: Any, *names: str) -> bool:
    """Whether a run with these options has begun before, be its checkpoint there or not: by its note."""
    wanted = {name: str(getattr(options, name)) for name in names}
    return any(wanted.items() <= (_noted(path) or {}).items() for path in _checkpoints(options, options.checkpoint))


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


def _noted(checkpoint: Path) -> dict[str, str] | None:
    """The settings noted beside a checkpoint; None: there is no note, or it is damaged."""
    try:
        return dict(json.loads(_beside(checkpoint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _check_same(checkpoint: Path, settings: Mapping[str, str], unsaid: Mapping[str, str]) -> None:
    before = _noted(checkpoint)
    if before is None:  # what the checkpoint itself holds is looked at when it is read
        return
    before = {name: settings.get(name, value) if unsaid.get(name) == value else value for name, value in before.items()}
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
