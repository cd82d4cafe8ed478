"""Heads that a target has not: what is said of them, and what trains them. Brings no PyTorch."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from workbench.models.bundle import bundled, config_of
from workbench.models.local_models import trained_for

RECIPES = Path(__file__).resolve().parents[1] / "training" / "recipes.json"
"""The list of recipes, which `workbench docs` writes."""


@cache
def by_one_command() -> tuple[str, ...]:
    """Kinds of heads that `workbench train KIND --target MODEL` makes for any target."""
    recipes = json.loads(RECIPES.read_text(encoding="utf-8"))
    return tuple(recipe["name"] for recipe in recipes if "run" in recipe["options"])


def no_heads(kind: str, target: str) -> str:
    """What is said where there are none of a kind for a target, and what trains them where one command does."""
    said = f"There are no {kind} heads trained for {target or 'this target'}."
    how = f" Train some: workbench train {kind} --target {target}." if target and kind in by_one_command() else ""
    there = sorted({trained_for(config) for config in map(config_of, bundled().values())
                    if config.get("workbench_head") == kind and trained_for(config) != target})  # fmt: skip
    if there:
        how = f" There are some for {' and '.join(there)}: choose --target {there[0]}.{how}"
    return said + how
