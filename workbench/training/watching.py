"""What a run writes of itself while it trains: its curves, and at each checkpoint what it does in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.trace.curves import EVALUATING, HELD, LOSS, TRAINING, CurveWriter, read_curves
from workbench.training.clock import RunClock

Drafts = Callable[[], dict[str, float]]
"""Drafts on policy with the net as it was last saved; returns figures by curve."""


@dataclass
class Watch:
    """The curves of a run.

    Attributes:
        name: of the run, in its progress lines.
        clock: of the run.
        on_policy: done at each checkpoint; its time is not the run's.
        writer: of its curves; None: none are written.
        evaluating: seconds that drafting on policy took, which are none of the run's.
    """

    name: str
    clock: RunClock
    on_policy: Drafts | None
    writer: CurveWriter | None
    evaluating: float = 0.0

    @classmethod
    def of(cls, name: str, clock: RunClock, folder: Path | None, on_policy: Drafts | None, steps: int) -> Watch:
        """Of a run that has so many steps behind it: what was written of later ones, before a kill, is void.

        Raises:
            WorkbenchError: what writes event files is not installed.
        """
        if folder is None:
            return cls(name, clock, on_policy, None)
        try:
            before = read_curves(folder).get(EVALUATING, []) if steps else []
            spent = next((value for step, value in reversed(before) if step <= steps), 0.0)
            return cls(name, clock, on_policy, CurveWriter(folder, steps + 1 if steps else 0), spent)
        except ImportError:
            raise WorkbenchError(
                "Curves are kept as TensorBoard's event files, and tensorboardX, which writes them, is not installed.",
                "pip install tensorboardX, or leave curves out.",
            ) from None

    def trained(self, step: int, losses: Mapping[str, float]) -> None:
        """Losses of a step as they are, not smoothed."""
        if self.writer is not None:
            seconds = {TRAINING: self.clock.seconds}
            self.writer.add(step, {f"{LOSS}/{name}": value for name, value in losses.items()} | seconds)

    def measured(self, step: int, held: Mapping[str, float], report: Callable[[str], None]) -> None:
        """Figures on held-out text, and on policy."""
        if self.writer is None:
            return
        self.writer.add(step, {f"{HELD}/{_position(name)}": value for name, value in held.items()})
        if self.on_policy is None:
            return
        begun = time.monotonic()
        with self.clock.standing():
            found = self.on_policy()
        self.evaluating += time.monotonic() - begun
        self.writer.add(step, found | {EVALUATING: self.evaluating})
        report(f"{self.name}: on policy: " + " ".join(f"{name} {value:.3f}" for name, value in found.items()))


def _position(name: str) -> str:
    """Lessons name what they measure ("agreement 1", "accuracy 1"); the number is the place in a draft.

    >>> _position("agreement 2"), _position("agreement")
    ('position 2', 'position 1')
    """
    number = name.split(" ")[-1]
    return f"position {number if number.isdigit() else 1}"
