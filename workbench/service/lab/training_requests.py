"""Check requests to train a head in the Lab tab: kind of head, target and budget. This module imports no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.core.errors import UnknownNameError
from workbench.core.params import param, params_of
from workbench.methods import method_info

OWN = "the head's own"
LOSSES = (
    OWN, "ce_soft:1", "ce_hard:1", "reverse_kl:1", "jensen_shannon:1", "total_variation:1", "tvd_plus_plus:1",
    "smooth_l1:1+ce_soft:0.1",
)  # fmt: skip
FIRST = "eagle-3"
"""Kind of head that the Lab tab trains by default."""


@dataclass(frozen=True)
class Budget:
    """Training budget of a head. The defaults take about five minutes on two cores for the bundled target."""

    minutes: float = param(
        2.5, ge=0.1, le=600.0, doc="training time in minutes, not counting the generation of the target's answers"
    )
    steps: int = param(0, ge=0, le=1_000_000, doc="number of training steps; 0: as many as fit into the training time")
    answer_tokens: int = param(
        25_000,
        ge=200,
        le=5_000_000,
        doc="number of tokens that the target generates as training data; training runs with equal settings "
        "share these tokens",
    )
    max_new_tokens: int = param(96, ge=8, le=1024, doc="maximum length of an answer, in tokens")
    per_task: int = param(200, ge=10, le=5000, doc="number of prompts of each kind: copying, editing, code, JSON, …")
    rows: int = param(16, ge=1, le=256, doc="batch size: answers per training step")
    loss: str = param(
        OWN, choices=LOSSES, doc="training losses and their weights; Medusa heads can only use Medusa's own loss"
    )
    checkpoint_seconds: float = param(
        12.0,
        ge=2.0,
        le=3600.0,
        doc="seconds between checkpoints; each checkpoint is evaluated by decoding held-out prompts with the head",
    )
    seed: int = param(0, ge=0, le=2**31 - 1, doc="seed of the target's answers, the initial weights and the batches")


@dataclass(frozen=True)
class TrainingRequest:
    """Request for training a head in the Lab tab.

    Attributes:
        head: name of the training recipe, which is the kind of head.
        target: name of the target.
        budget: training budget.
    """

    head: str
    target: str
    budget: Budget

    @classmethod
    def of(cls, head: str, target: str, options: Mapping[str, Any], targets: list[str]) -> TrainingRequest:
        """Check the values of the training form, and create a training request from them.

        Raises:
            UnknownNameError: there is no such head, target or option.
            ParameterError: a value is invalid or out of range.
        """
        if head not in heads():
            raise UnknownNameError.of("head", head, heads())
        if target not in targets:
            raise UnknownNameError.of("target", target, targets)
        specs = params_of(Budget())
        for name in options:
            if name not in specs:
                raise UnknownNameError.of("option", name, specs)
        return cls(head, target, Budget(**{name: specs[name].parse(value) for name, value in options.items()}))

    def settings(self, threads: int | None = None) -> dict[str, Any]:
        """Return the options of the training recipe by name.

        Args:
            threads: number of threads; None: one less than the machine has.
        """
        options = dict(vars(self.budget))
        if not options["steps"]:
            del options["steps"]
        if options["loss"] == OWN:
            del options["loss"]
        return options | {"threads": threads or max(1, (os.cpu_count() or 1) - 1)}  # leaves a core to the app

    @property
    def data(self) -> str:
        """Return the name of the training data (answers of the target). Runs with equal settings use the same data."""
        budget = self.budget
        return f"{budget.answer_tokens}-{budget.max_new_tokens}-{budget.per_task}-{budget.seed}"


@cache
def heads() -> dict[str, str]:
    """Return the titles of the heads that the Lab tab can train, by kind."""
    titles = {
        name: next((m.title for m in method_info.methods() if name in m.needs), name)
        for name in method_info.trainable_heads()
    }
    return dict(sorted(titles.items(), key=lambda item: (item[0] != FIRST, item[0])))


def methods_of(kind: str) -> list[str]:
    """Return the methods that draft with heads of a kind, the simplest first."""
    return method_info.drafting_with(kind)
