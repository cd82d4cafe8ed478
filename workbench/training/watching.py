"""What a run writes of itself while it trains: its curves, and at each checkpoint what it does in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.core.errors import WorkbenchError
from workbench.trace.curves import EVALUATING, HELD, LOSS, TRAINING, CurveWriter

if TYPE_CHECKING:
    from workbench.training.loop import LoopOptions, RunResult


@dataclass
class Watch:
    """The curves of a run.

    Attributes:
        options: of its loop.
        writer: of its curves; None: none are written.
        evaluating: seconds that drafting on policy took, which are none of the run's.
    """

    options: LoopOptions
    writer: CurveWriter | None
    evaluating: float = 0.0

    @classmethod
    def of(cls, options: LoopOptions, steps: int) -> Watch:
        """Of a run that has so many steps behind it: what was written of later ones, before a kill, is void.

        Raises:
            WorkbenchError: what writes event files is not installed.
        """
        if options.curves is None:
            return cls(options, None)
        try:
            return cls(options, CurveWriter(options.curves, steps + 1 if steps else 0))
        except ImportError:
            raise WorkbenchError(
                "Curves are kept as TensorBoard's event files, and tensorboardX, which writes them, is not installed.",
                "pip install tensorboardX, or leave curves out.",
            ) from None

    def trained(self, result: RunResult, losses: Mapping[str, float]) -> None:
        """Losses of a step as they are, not smoothed."""
        if self.writer is not None:
            seconds = {TRAINING: self.options.clock.seconds}
            self.writer.add(result.steps, {f"{LOSS}/{name}": value for name, value in losses.items()} | seconds)

    def measured(self, result: RunResult, report: Callable[[str], None]) -> None:
        """Figures on held-out text, and on policy."""
        if self.writer is None:
            return
        self.writer.add(result.steps, {f"{HELD}/{_position(name)}": value for name, value in result.held.items()})
        if self.options.on_policy is None:
            return
        begun = time.monotonic()
        with self.options.clock.standing():
            found = self.options.on_policy()
        self.evaluating += time.monotonic() - begun
        self.writer.add(result.steps, found | {EVALUATING: self.evaluating})
        report(f"{self.options.name}: on policy: " + " ".join(f"{name} {value:.3f}" for name, value in found.items()))


def _position(name: str) -> str:
    """Lessons name what they measure ("agreement 1", "accuracy 1"); the number is the place in a draft.

    >>> _position("agreement 2"), _position("agreement")
    ('position 2', 'position 1')
    """
    number = name.split(" ")[-1]
    return f"position {number if number.isdigit() else 1}"
