"""Workers that measure the cells of a sweep.

`backend_workers` uses one backend; `workbench.service.workers` uses processes, `workbench.service.ray_workers` a Ray
cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from workbench.bench.comparison import Comparison
from workbench.bench.comparison_figures import estimates
from workbench.bench.conditions import Conditions
from workbench.bench.grid import Cell, SweepBackend
from workbench.bench.retried_action import RetriedAction
from workbench.bench.study import BEGIN, END, STEP, Event, Runner
from workbench.bench.sweepfolder import DONE, FAILED, RUNNING, Result
from workbench.core.errors import WorkbenchError
from workbench.trace.events import Trace

POLL_S = 0.3
"""Seconds between two checks for new cells of a sweep."""


def result_of(cell: Cell, comparison: Comparison, seconds: float, worker: str) -> tuple[Result, Trace | None]:
    """Return the result of a sweep's cell, and for display the trace of its method on the first prompt."""
    lane, plain = _sides(cell, comparison)
    problem = lane.error or ("" if plain is not None or lane.lane.is_plain else "Plain decoding failed.")
    state = FAILED if problem or not lane.samples else DONE
    result = Result(
        cell.id, state, "", estimates(lane, plain), problem, round(seconds, 3), None, worker, comparison.machine
    )
    return result, lane.traces.get(0)


def partial_estimates(cell: Cell, comparison: Comparison) -> dict[str, Any]:
    """Return the metrics of a sweep's cell from the runs so far; empty before both methods have runs."""
    lane, plain = _sides(cell, comparison)
    return estimates(lane, plain) if lane.samples and plain is not None else {}


def _sides(cell: Cell, comparison: Comparison) -> tuple[Any, Any]:
    """Return a comparison's runs of the cell's method and of plain decoding; None for the latter if it has no runs."""
    return next((m for m in comparison.lanes if m.lane == cell.lane), comparison.lanes[-1]), comparison.reference


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """A group of workers that measures the cells of a sweep.

    Attributes:
        measure: runner of a study (`workbench.bench.study`). An event's payload is a text when the cell begins, a
            `Result` for its progress, and (`Result`, trace) at its end.
        conditions: function that returns the conditions under which a cell is measured, or None if the conditions are
            unknown before the models are loaded. A cell that was measured under unknown conditions is not reused.
    """

    measure: Runner[Cell]
    conditions: Callable[[Cell], Conditions | None]


def measure_cell(
    backend: SweepBackend, cell: Cell, stopped: Callable[[], bool], user: str = "local", worker: str = ""
) -> Iterator[Event]:
    """Measure one cell of a sweep on a backend; yield its progress and its result as events of a study."""
    start, comparison, figures = time.monotonic(), None, {}
    yield BEGIN, cell, ""
    try:
        for step in _steps_when_admitted(backend, cell, stopped, user):
            if isinstance(step, str):
                yield STEP, cell, Result(cell.id, RUNNING, step, figures)
                continue
            if step.comparison is not None:
                comparison = step.comparison
                figures = partial_estimates(cell, comparison)
            text = step.waiting or f"{step.done} of {step.total} runs · {step.text}"
            yield STEP, cell, Result(cell.id, RUNNING, text, figures)
    except WorkbenchError as error:
        yield END, cell, (Result(cell.id, FAILED, error=str(error), worker=worker), None)
        return
    if comparison is not None and comparison.complete:
        yield END, cell, result_of(cell, comparison, time.monotonic() - start, worker)


def _steps_when_admitted(backend: SweepBackend, cell: Cell, stopped: Callable[[], bool], user: str) -> Iterator[Any]:
    """Yield the steps of a measurement, and messages while the user's rate limit delays its start.

    Raises:
        WorkbenchError: the measurement cannot start.
    """
    action = RetriedAction(lambda: cell.measure(backend, user, stopped))
    while (steps := action.try_once()) is None:
        yield action.reason
        if stopped():
            return
        time.sleep(POLL_S)
    yield from steps


def backend_workers(backend: SweepBackend, user: str = "local") -> WorkerGroup:
    """Return a worker group that measures a sweep's cells on one backend, one by one, each run alone on the device."""

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        for cell in cells:
            if stopped():
                return
            yield from measure_cell(backend, cell, stopped, user, "this backend")

    return WorkerGroup(work, lambda cell: backend.conditions(cell.lane, cell.plan.target))
