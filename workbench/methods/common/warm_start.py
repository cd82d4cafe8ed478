"""Parameter `warm` of a drafter: keep the state learned from the texts for later runs."""

from __future__ import annotations

from typing import Any

from workbench.core.params import param

WARM_NOTICE = (
    "warm=True: drafts also come from earlier runs. Text sampled with a seed then depends on those runs and can "
    "differ from run to run; its distribution, and greedy text, are still the target's. Everyone who uses this "
    "setting can view and save the stored data."
)

SHIFTING_DOMAINS = ("word problems", "records")
"""Types of prompts (`workbench.bench.verifiable_problems`), in order, of a benchmark whose text domain shifts."""


def warm_param(state_name: str) -> Any:
    """Return the declaration of the parameter `warm`: keep the drafter's state for later runs.

    Args:
        state_name: name of the state in the parameter's description.
    """
    return param(
        False, doc=f"keep {state_name} for later runs on this backend; a seeded run then depends on earlier runs"
    )
