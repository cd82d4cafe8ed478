"""Drafters that remember what earlier runs wrote."""

from __future__ import annotations

from typing import Any

from workbench.core.params import param

WARM = (
    "warm=True: drafts also come from earlier runs. Text sampled with a seed then depends on those runs and can "
    "differ from run to run; its distribution, and greedy text, are still the target's. Everyone who uses this "
    "setting can view and save the stored data."
)

SHIFTING = ("word problems", "records")
"""Kinds of prompts (`workbench.bench.answerable`) of a stream that shifts from one domain to another, in this order."""


def warmth(kept: str) -> Any:
    """The parameter: whether what was learned is kept for later runs.

    Args:
        kept: what that is.
    """
    return param(False, doc=f"keep {kept} for later runs on this backend; a seeded run then depends on earlier ones")
