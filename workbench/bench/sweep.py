"""Sweeps: one or two axes over any typed setting, with a comparison to plain decoding in every cell.

A sweep is a `Study`: its cells come from `workbench.bench.grid`, its store is `workbench.bench.sweepfolder`, and its
runner is a group of workers: on one backend (`workbench.bench.worker_groups`), in processes
(`workbench.service.workers`) or on a Ray cluster (`workbench.service.ray_workers`). Settings and measuring conditions
identify a cell: a killed sweep continues after its finished cells, and a sweep with extended axes measures only the new
cells.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.bench.comparison_figures import METRICS
from workbench.bench.conditions import canonical_json
from workbench.bench.grid import Axis, Cell, Sweep
from workbench.bench.study import BEGIN, END, STEP, Event, Study
from workbench.bench.sweepfolder import DONE, FAILED, RUNNING, WAITING, Result, SweepFolder, mismatch_note
from workbench.bench.worker_groups import POLL_S, WorkerGroup, backend_workers
from workbench.trace.events import Trace

__all__ = [
    "DONE",
    "END",
    "FAILED",
    "RUNNING",
    "WAITING",
    "Axis",
    "Cell",
    "Event",
    "Result",
    "Sweep",
    "SweepFolder",
    "WorkerGroup",
    "backend_workers",
    "run",
]


@dataclass(slots=True)
class Update:
    """Progress of a sweep. The same object grows from update to update.

    Attributes:
        sweep: definition of the sweep.
        results: results by the cell's id.
        kept: number of cells that an earlier run of the sweep measured.
        text: current action, for display.
        note: note about saved cells that do not count.
        follows: whether another process measures this sweep; cells of that process appear when they are finished.
        changed: ids of the cells that changed since the last update.
        left_s: estimated seconds left, from the cells so far; None before the first cell is done.
        last: whether this is the last update.
    """

    sweep: Sweep
    cells: list[Cell]
    results: dict[str, Result]
    kept: int = 0
    text: str = ""
    note: str = ""
    follows: bool = False
    changed: list[str] = field(default_factory=list)
    left_s: float | None = None
    last: bool = False

    @property
    def total(self) -> int:
        """Return the number of cells of the sweep."""
        return len(self.cells)

    @property
    def done(self) -> int:
        """Return the number of the sweep's cells that are done or failed."""
        return sum(self.results[cell.id].state in (DONE, FAILED) for cell in self.cells)

    @property
    def complete(self) -> bool:
        """Return whether every cell of the sweep was measured."""
        return self.done == self.total

    @property
    def latest_measurement(self) -> dict[str, str]:
        """Return facts about the sweep's newest measurement: `date`, and `on` (device, dtype and machine)."""
        done = [r for r in self.results.values() if r.machine]
        last = max(done, key=lambda r: r.machine.get("date", ""), default=None)
        if last is None:
            return {"date": "", "on": ""}
        conditions, machine = last.conditions or {}, last.machine
        device = [conditions.get("device", "").upper(), conditions.get("dtype") or "dtype not noted"]
        parts = [*device, machine.get("gpu") or machine.get("cpu", "")]
        return {"date": machine.get("date", ""), "on": " · ".join(filter(None, parts))}

    def at(self, *values: Any) -> Result:
        """Return the result of the sweep's cell at the given values of the axes.

        Raises:
            KeyError: no cell has these values.
        """
        for cell in self.cells:
            if tuple(axis.values[i] for axis, i in zip(self.sweep.axes, cell.at, strict=True)) == values:
                return self.results[cell.id]
        raise KeyError(values)

    def rows(self) -> list[dict[str, Any]]:
        """Return one table row per cell that is done or failed: its axis values, its settings and its metrics."""
        entries = []
        for cell in self.cells:
            result = self.results[cell.id]
            if result.state not in (DONE, FAILED):
                continue
            row: dict[str, Any] = {a.name: a.values[i] for a, i in zip(self.sweep.axes, cell.at, strict=True)}
            row |= {"setting": str(cell.lane), "state": result.state, "error": result.error, "seconds": result.seconds}
            for name in METRICS:
                for part, value in (result.figures.get(name) or dict.fromkeys(("value", "low", "high", "n"))).items():
                    row[name if part == "value" else f"{name}_{part}"] = value
            entries.append(row)
        return entries

    def to_wire(self, everything: bool = False) -> dict[str, Any]:
        """Return the sweep's progress as plain JSON, with the changed cells or, if `everything` is set, all cells."""
        changed = set(self.changed)
        cells = [c for c in self.cells if everything or c.id in changed]
        data: dict[str, Any] = {
            "done": self.done, "total": self.total, "kept": self.kept, "text": self.text, "left_s": self.left_s,
            "last": self.last, "complete": self.complete, "note": self.note, "follows": self.follows,
            **self.latest_measurement,
            "cells": [{"at": c.at, "setting": str(c.lane), **self.results[c.id].to_wire()} for c in cells],
        }  # fmt: skip
        if everything:
            data |= {"sweep": self.sweep.to_wire(), "code": self.sweep.code(), "command": self.sweep.command()}
        return data


def run(
    sweep: Sweep, workers: WorkerGroup, folder: Path | str | None = None, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Update]:
    """Measure a sweep. Closing the iterator, or Ctrl-C, ends it; finished cells stay.

    Args:
        sweep: definition of the sweep.
        workers: workers that measure the cells.
        folder: folder in which finished cells and their traces are looked up first, and saved; None: no folder. If
            another process writes to the folder, this process reads the cells that the other process finishes, and
            measures the missing cells afterwards.
        stopped: function that is called often; once it returns True, the sweep ends with a last update.

    Yields:
        the same `Update` object after each change.

    Raises:
        WorkbenchError: the folder cannot be used, or the workers cannot run.
    """
    cells = sweep.cells()
    update = Update(sweep, cells, {cell.id: Result(cell.id) for cell in cells})
    store = _CellStore(None if folder is None else SweepFolder(Path(folder)), workers)
    study = Study[Cell, Result](cells, workers.measure, store, key=lambda cell: cell.id)
    with contextlib.suppress(KeyboardInterrupt):
        yield from (_measure if folder is None else _measure_with_lock)(update, study, store, stopped)
    for id_, result in update.results.items():
        if result.state == RUNNING:
            update.results[id_] = Result(id_)
    update.text, update.changed = "done" if update.complete else "stopped", list(update.results)
    update.last, update.left_s, update.follows = True, None, False
    yield update


@dataclass(frozen=True, slots=True)
class _CellStore:
    """Store of a sweep's cells, in a folder if any; only cells measured under the same conditions (device, …) count."""

    folder: SweepFolder | None
    workers: WorkerGroup

    def load(self, cell: Cell) -> Result | None:
        """Return a cell's saved result if it was measured under the workers' conditions and did not fail, else None."""
        result = None if self.folder is None else self.folder.load(cell.id, self.workers.conditions(cell))
        return result if result is not None and result.state == DONE else None

    def save(self, cell: Cell, result: tuple[Result, Trace | None]) -> Result:
        """Save a cell and its trace with the conditions of the measurement."""
        finished = replace(result[0], conditions=self.workers.conditions(cell))
        return finished if self.folder is None else self.folder.save(finished, result[1], cell)

    def note(self, cells: list[Cell]) -> str:
        """Return a note on the folder's finished cells that were measured under other conditions; "" if none."""
        conditions = {cell.id: self.workers.conditions(cell) for cell in cells}
        return "" if self.folder is None else mismatch_note(self.folder.results(), cells, conditions)


def _measure_with_lock(
    update: Update, study: Study[Cell, Result], store: _CellStore, stopped: Callable[[], bool]
) -> Iterator[Update]:
    """Measure the sweep once this process holds the folder's lock; until then, read what the other process measures."""
    assert store.folder is not None
    while True:
        with store.folder.try_lock() as has_lock:
            if has_lock:
                store.folder.begin(update.sweep)
                yield from _measure(update, study, store, stopped)
                return
        update.follows, update.text = (
            True,
            ("another process is measuring this sweep; each cell appears when it is finished"),
        )
        update.changed = _load_finished(update, study)
        yield update
        if stopped() or update.complete:
            return
        time.sleep(POLL_S)


def _load_finished(update: Update, study: Study[Cell, Result]) -> list[str]:
    """Load finished cells that were measured under the workers' conditions; return the new cells' ids.

    Conditions are device, versions, weights, and so on.
    """
    new = list(dict.fromkeys(cell.id for cell in study.load()))
    update.results |= study.results
    update.kept += len(new)
    return new


def _measure(
    update: Update, study: Study[Cell, Result], store: _CellStore, stopped: Callable[[], bool]
) -> Iterator[Update]:
    """Load the saved cells of the sweep, and measure the remaining cells."""
    update.follows = False
    _load_finished(update, study)
    update.note = store.note(update.cells)
    update.changed = list(update.results)
    update.text = f"{update.kept} of {update.total} cells were already measured" if update.kept else "starting"
    yield update
    with contextlib.closing(study.run(stopped)) as events:
        for kind, cell, payload in events:
            update.results[cell.id] = Result(cell.id, RUNNING, payload) if kind == BEGIN else payload
            update.left_s = study.left_s if kind == END else update.left_s
            update.text = f"{cell.lane.title}: {payload.text}" if kind == STEP else update.text
            update.changed = [cell.id]
            yield update


def load_updates(sweep_folder: SweepFolder) -> list[Update]:
    """Return the contents of a sweep's folder without measuring: an `Update` per set of conditions, the newest first.

    Raises:
        WorkbenchError: the folder contains no sweep.
    """
    sweep, groups = sweep_folder.sweep, dict[str, list[Result]]()
    for result in sorted(sweep_folder.results(), key=lambda r: r.machine.get("date", "")):
        groups.setdefault(_conditions_key(result), []).append(result)
    updates = []
    for results in sorted(groups.values(), key=lambda group: group[-1].machine.get("date", ""), reverse=True):
        cells = sweep.cells()
        by_id = {cell.id: Result(cell.id) for cell in cells} | {r.id: r for r in results}
        update = Update(sweep, cells, {cell.id: by_id[cell.id] for cell in cells}, text="opened", last=True)
        update.kept, update.changed = update.done, [cell.id for cell in cells]
        if update.done:
            updates.append(update)
    return updates


def _conditions_key(result: Result) -> str:
    """Return a key of a result's measuring conditions, without the weights, which an axis of the sweep may vary."""
    return canonical_json(result.conditions and {**result.conditions, "weights": None, "drafter_dtype": None})
