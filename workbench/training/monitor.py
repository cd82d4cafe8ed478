"""Curves of losses and metrics that a training run writes, and the on-policy evaluation at each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import WorkbenchError
from workbench.trace.curves import EVALUATING, LOSS, TEACHER_FORCED, TRAINING, CurveWriter, read_curves
from workbench.training.clock import RunClock

OnPolicyEvaluation = Callable[[], dict[str, float]]
"""Type of a function that drafts with the last saved net (on policy) and returns metrics by curve name."""


@dataclass
class TrainingMonitor:
    """Recorder of the curves of a training run, which also starts the on-policy evaluations.

    Attributes:
        name: name of the run in its progress lines.
        clock: clock of the run, which stops during on-policy evaluations.
        on_policy: function that evaluates the last saved net at each checkpoint; None: no on-policy evaluations.
        writer: writer of the curves; None: no curves.
        evaluation_seconds: seconds spent on on-policy evaluations so far.
    """

    name: str
    clock: RunClock
    on_policy: OnPolicyEvaluation | None
    writer: CurveWriter | None
    evaluation_seconds: float = 0.0

    @classmethod
    def of(
        cls, name: str, clock: RunClock, folder: Path | None, on_policy: OnPolicyEvaluation | None, steps: int
    ) -> TrainingMonitor:
        """Return the monitor of a training run that continues after `steps` steps.

        Later points of the curves, which an interrupted run has written, are discarded.

        Raises:
            WorkbenchError: the package that writes event files is not installed.
        """
        if folder is None:
            return cls(name, clock, on_policy, None)
        try:
            points = read_curves(folder).get(EVALUATING, []) if steps else []
            spent = next((value for step, value in reversed(points) if step <= steps), 0.0)
            return cls(name, clock, on_policy, CurveWriter(folder, steps + 1 if steps else 0), spent)
        except ImportError:
            raise WorkbenchError(
                "Training curves need the package tensorboardX, which writes TensorBoard event files and is not "
                "installed.",
                "Run `pip install tensorboardX`, or leave out the option `curves`.",
            ) from None

    def record_losses(self, step: int, losses: Mapping[str, float]) -> None:
        """Write the unsmoothed losses of a training step to the curves."""
        if self.writer is not None:
            seconds = {TRAINING: self.clock.seconds}
            self.writer.add(step, {f"{LOSS}/{name}": value for name, value in losses.items()} | seconds)

    def record_evaluation(self, step: int, held: Mapping[str, float], report: Callable[[str], None]) -> None:
        """Write the metrics on held-out text (`held`) and the on-policy metrics to the curves."""
        if self.writer is None:
            return
        self.writer.add(step, {f"{TEACHER_FORCED}/{_position(name)}": value for name, value in held.items()})
        if self.on_policy is None:
            return
        start = time.monotonic()
        with self.clock.pause():
            figures = self.on_policy()
        self.evaluation_seconds += time.monotonic() - start
        self.writer.add(step, figures | {EVALUATING: self.evaluation_seconds})
        report(f"{self.name}: on policy: " + " ".join(f"{name} {value:.3f}" for name, value in figures.items()))


def _position(name: str) -> str:
    """Return the name of the training curve for a metric such as "agreement 2", whose number is a draft position.

    >>> _position("agreement 2"), _position("agreement")
    ('position 2', 'position 1')
    """
    number = name.split(" ")[-1]
    return f"position {number if number.isdigit() else 1}"
