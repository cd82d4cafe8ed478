"""What can be asked of the lab: which heads, on what, how long. Read from the list of recipes; brings no PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.core.errors import UnknownNameError
from workbench.core.params import param, params_of
from workbench.engine.untrained import by_one_command
from workbench.methods import known

OWN = "the head's own"
LOSSES = (
    OWN, "ce_soft:1", "ce_hard:1", "reverse_kl:1", "jensen_shannon:1", "total_variation:1", "tvd_plus_plus:1",
    "smooth_l1:1+ce_soft:0.1",
)  # fmt: skip
FIRST = "eagle-3"
"""What the lab offers first."""


@dataclass(frozen=True)
class Budget:
    """How a head is trained. The defaults are those of about five minutes on two cores for the bundled target."""

    minutes: float = param(2.5, ge=0.1, le=600.0, doc="of training alone; the target's own answers are written before")
    steps: int = param(0, ge=0, le=1_000_000, doc="of training; 0: as many as the minutes hold")
    answer_tokens: int = param(
        25_000, ge=200, le=5_000_000, doc="tokens that the target writes to learn from; runs that ask alike share them"
    )
    max_new_tokens: int = param(96, ge=8, le=1024, doc="tokens of its longest answer")
    per_task: int = param(200, ge=10, le=5000, doc="prompts of each kind: copying, editing, code, JSON …")
    rows: int = param(16, ge=1, le=256, doc="answers that are read in a step")
    loss: str = param(OWN, choices=LOSSES, doc="losses and weights; Medusa knows its own alone")
    checkpoint_seconds: float = param(
        12.0, ge=2.0, le=3600.0, doc="seconds between two checkpoints, at each of which the head drafts on policy"
    )
    seed: int = param(0, ge=0, le=2**31 - 1, doc="of answers, weights and batches")


@dataclass(frozen=True)
class Wish:
    """A run that is asked for.

    Attributes:
        head: name of its recipe, which is the kind of head.
        target: name of the target.
        budget: how it is trained.
    """

    head: str
    target: str
    budget: Budget

    @classmethod
    def of(cls, head: str, target: str, options: Mapping[str, Any], targets: list[str]) -> Wish:
        """What a form says, checked.

        Raises:
            UnknownNameError: there is no such head or target here, or no such option.
            ParameterError: a value is none, or outside its range.
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
        """Options of the recipe."""
        said = dict(vars(self.budget))
        if not said["steps"]:
            del said["steps"]
        if said["loss"] == OWN:
            del said["loss"]
        return said | {"threads": threads or max(1, (os.cpu_count() or 1) - 1)}  # the demo keeps a core

    @property
    def data(self) -> str:
        """Names the answers that runs which ask alike share."""
        budget = self.budget
        return f"{budget.answer_tokens}-{budget.max_new_tokens}-{budget.per_task}-{budget.seed}"


@cache
def heads() -> dict[str, str]:
    """Heads that can be trained by one command and watched: kind → what is said of it."""
    titles = {name: next((m.title for m in known.methods() if name in m.needs), name) for name in by_one_command()}
    return dict(sorted(titles.items(), key=lambda item: (item[0] != FIRST, item[0])))


def methods_of(kind: str) -> list[str]:
    """Methods that draft with heads of a kind, the plainest first."""
    return known.drafting_with(kind)
