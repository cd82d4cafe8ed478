"""Messages about heads that a target lacks, with the command that trains them. Does not import PyTorch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from workbench.models.bundle import bundled, config_of
from workbench.models.local_models import trained_for

RECIPES = Path(__file__).resolve().parents[1] / "training" / "recipes.json"
"""List of training recipes, written by `workbench docs`."""


@cache
def by_one_command() -> tuple[str, ...]:
    """Return the kinds of heads that `workbench train KIND --target MODEL` trains for any target."""
    recipes = json.loads(RECIPES.read_text(encoding="utf-8"))
    return tuple(recipe["name"] for recipe in recipes if "run" in recipe["options"])


def no_heads(kind: str, target: str) -> str:
    """Return the message that a target has no heads of a kind, with the command that trains them if there is one."""
    message = f"There are no {kind} heads trained for {target or 'this target'}."
    how = f" Train some: workbench train {kind} --target {target}." if target and kind in by_one_command() else ""
    targets = sorted({trained_for(config) for config in map(config_of, bundled().values())
                    if config.get("workbench_head") == kind and trained_for(config) != target})  # fmt: skip
    if targets:
        how = f" There are some for {' and '.join(targets)}: choose --target {targets[0]}.{how}"
    return message + how
