"""Record a finished training run as a small file, which the Lab tab shows before the user's first run.

`python -m workbench.ui.recorded_training FOLDER` records the run in a folder (`…/lab/runs/ID`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workbench.core.errors import WorkbenchError
from workbench.models.machine import machine_facts
from workbench.service.lab.runs import DONE, LabRun
from workbench.views import recorded_runs

NAME = "lab"
"""Name of the recorded training run in the folder of recordings."""
DIGITS = 5
"""Significant digits of the values in a recorded training run."""
_NOT_RECORDED = ("folder", "memory", "progress")


def recorded_training() -> dict[str, Any]:
    """Return the recorded training run in the format of `LabRun.details`; an empty dict if there is none."""
    return recorded_runs.example(NAME)


def describe_training(run: LabRun) -> dict[str, Any]:
    """Return the data of a training run that are recorded.

    They are the name of the hardware, and `LabRun.details` without facts about the process.

    Raises:
        WorkbenchError: the training run is not finished.
    """
    if run.state != DONE:
        raise WorkbenchError(f"The run {run.id} is {run.state}.", "Record a finished run.")
    details = {name: value for name, value in run.details().items() if name not in _NOT_RECORDED}
    curves = {tag: [[step, _rounded(value)] for step, value in points] for tag, points in details["curves"].items()}
    facts = machine_facts()
    return details | {"curves": curves, "hardware": facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


if __name__ == "__main__":
    recorded_runs.write_example(NAME, describe_training(LabRun(Path(sys.argv[1]))))
