"""Drafters that remember what earlier runs wrote."""

from __future__ import annotations

from typing import Any

from workbench.core.params import param

WARM = (
    "warm=True: drafts come from earlier runs, too. Text sampled with a seed then depends on what ran before, and can "
    "differ from run to run; its law, and greedy text, are the target's all the same. What is kept can be looked at "
    "and saved by all who choose this."
)

SHIFTING = ("word problems", "records")
"""Kinds of prompts (`workbench.bench.answerable`) of a stream that shifts from one domain to another, in this order."""


def warmth(kept: str) -> Any:
    """The parameter: whether what was learned is kept for later runs.

    Args:
        kept: what that is.
    """
    return param(False, doc=f"keep {kept} for later runs on this backend; a seeded run then depends on earlier ones")
