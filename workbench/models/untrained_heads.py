"""Write the message about trained heads that a target lacks, without importing PyTorch."""

from __future__ import annotations

from workbench.models.bundle import bundled, config_of
from workbench.models.local_models import trained_for


def no_heads(kind: str, target: str) -> str:
    """Return the message that a target has no trained heads of some kind; it names a bundled target that has them."""
    message = f"There are no {kind} heads trained for {target or 'this target'}."
    targets = sorted({trained_for(config) for config in map(config_of, bundled().values())
                    if config.get("workbench_head") == kind and trained_for(config) != target})  # fmt: skip
    if targets:
        message += f" Such heads exist for {' and '.join(targets)}: choose --target {targets[0]}."
    return message
