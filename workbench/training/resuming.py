"""Resuming of interrupted training: only from a checkpoint with the same settings, and without overwriting others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench.core.errors import ParameterError
from workbench.trace.files import write_atomically

CHANGEABLE_OPTIONS = {
    *("resume", "minutes", "steps", "own_minutes", "threads", "device"),
    *("checkpoint", "checkpoint_seconds", "curves", "run"),
}
"""Options that may differ between a checkpoint and the run that resumes from it: length, device and file paths, which
do not change what is trained."""


def resolve_resume(
    options: Any,
    user_options: Mapping[str, Any],
    report: Callable[[str], None],
) -> Any:
    """Return the options of a training run, with `resume` set if there is a checkpoint and the user did not set it.

    Args:
        options: parsed options of the recipe.
        user_options: options by name, as the user gave them.
        report: function that receives progress lines.

    Raises:
        ParameterError: a checkpoint has other settings.
    """
    checkpoint: Path | None = getattr(options, "checkpoint", None)
    if checkpoint is None or not hasattr(options, "resume"):
        return options
    checkpoints, settings = _checkpoints(options, checkpoint), _settings(options)
    existing = [path for path in checkpoints if path.exists()]
    resume = bool(existing) if user_options.get("resume") is None else options.resume
    if resume:
        check_same_settings(options)
    for path in checkpoints:  # settings last, so that a kill never leaves them beside another run's checkpoint
        if path in existing and not resume:
            report(f"starts from the beginning; the earlier checkpoint is {set_aside(path)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_settings_path(path), (json.dumps(settings, indent=1) + "\n").encode())
    return dataclasses.replace(options, resume=resume)


def check_same_settings(options: Any) -> None:
    """Check that existing checkpoints were written with the same options.

    Args:
        options: parsed options. They may have a method `earlier_defaults`, which returns values that earlier versions
            recorded for options at their defaults; such a value counts as unchanged.

    Raises:
        ParameterError: a checkpoint has other settings.
    """
    earlier_defaults = options.earlier_defaults() if hasattr(options, "earlier_defaults") else {}
    for path in _checkpoints(options, options.checkpoint):
        if path.exists():
            _check_recorded_settings(path, _settings(options), earlier_defaults)


def matches_checkpoint(options: Any, *names: str) -> bool:
    """Return whether a checkpoint was written with the same values of the options `names` as in `options`."""
    settings = {name: str(getattr(options, name)) for name in names}
    return any(
        settings.items() <= (_read_settings(path) or {}).items() for path in _checkpoints(options, options.checkpoint)
    )


def _checkpoints(options: Any, checkpoint: Path) -> list[Path]:
    list_checkpoints = getattr(options, "checkpoints", None)
    return list_checkpoints() if list_checkpoints else [checkpoint]


def _settings(options: Any) -> dict[str, str]:
    """Return all options that a resumed run must not change (all except `CHANGEABLE_OPTIONS`), as texts by name."""
    has_several = hasattr(options, "checkpoints")
    return {
        f.name: str(getattr(options, f.name))
        for f in dataclasses.fields(options)
        if f.name not in CHANGEABLE_OPTIONS
        and not (has_several and f.name == "method")  # then the file name contains the method
    }


def _settings_path(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.settings.json")


def _read_settings(checkpoint: Path) -> dict[str, str] | None:
    """Return the settings recorded in a file beside a checkpoint; None if the file is missing or damaged."""
    try:
        return dict(json.loads(_settings_path(checkpoint).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _check_recorded_settings(checkpoint: Path, settings: Mapping[str, str], old_defaults: Mapping[str, str]) -> None:
    recorded = _read_settings(checkpoint)
    if recorded is None:  # the checkpoint's own content is checked when it is loaded
        return
    recorded = {
        name: settings.get(name, value) if old_defaults.get(name) == value else value
        for name, value in recorded.items()
    }
    changed = [name for name in settings if recorded.get(name, settings[name]) != settings[name]]
    if changed:
        old_values = ", ".join(f"{name}={recorded[name]}" for name in changed)
        raise ParameterError(
            f"The checkpoint {checkpoint} was trained with other settings: {old_values}.",
            "Use the same settings to continue; resume=false starts over and moves the old checkpoint aside.",
        )


def set_aside(checkpoint: Path) -> Path:
    """Rename a checkpoint of an earlier run, so that a new one does not overwrite it; return its new path."""
    n = 1
    while (old := checkpoint.with_name(f"{checkpoint.name}.old-{n}")).exists():
        n += 1
    return checkpoint.replace(old)
