"""A draft model that speaks of the same text in other tokens than the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.models.runner import Runner


@dataclass(frozen=True)
class Stranger:
    """What may draft through its text alone.

    Attributes:
        runner: of the draft model.
        tokenizer: its own.
        name: bundled name, folder or Hub id.
    """

    runner: Runner
    tokenizer: Any
    name: str
