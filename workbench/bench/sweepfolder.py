"""The folder of a sweep: its definition, one file per finished cell, and their traces.

A cell's file is named after its settings and its measuring conditions (`workbench.bench.conditions`), so that a sweep
reuses only cells measured under the same conditions. Files of older workbenches are named after the settings alone:
they can be opened, but are never reused. One writer at a time holds the folder's lock; other processes that need the
same sweep read its results.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from workbench.bench.conditions import canonical_json, describe_differences, measurement_id
from workbench.bench.grid import Cell, Sweep
from workbench.core.errors import WorkbenchError, system_reason
from workbench.trace.events import Trace
from workbench.trace.files import read_regular, write_atomically

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Result:
    """State and result of one cell of a sweep.

    Attributes:
        id: id of the cell, from its settings.
        state: waiting, running, done or failed.
        text: progress while it runs.
        figures: by metric: value, low, high (95 %), n; None if a denominator is 0. While the cell runs, the metrics
            of its runs so far.
        error: reason of the failure; empty if there is none.
        seconds: duration of the measurement.
        run: id of the run in the sweep's store that is saved as the cell's trace.
        worker: name of the worker that measured the cell.
        machine: machine and date of the measurement.
        conditions: everything that affects a measured value besides the settings, see `workbench.bench.conditions`;
            None: not recorded.
    """

    id: str
    state: str = WAITING
    text: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    run: str | None = None
    worker: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the state and result of the sweep's cell as plain JSON."""
        return asdict(self)


class SweepFolder:
    """The folder of a sweep: `sweep.json`, one file per finished cell, and their traces as a `RunStore`.

    Reading creates nothing; `begin` creates the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # -- one writer ----------------------------------------------------------------------------------------------

    @contextmanager
    def try_lock(self) -> Iterator[bool]:
        """Take the lock of the sweep's folder if it is free; yield whether it was taken.

        A process that dies releases its lock.

        Raises:
            WorkbenchError: the folder cannot be written.
        """
        lock = FileLock(self.folder / LOCK, thread_local=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            yield False
            return
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        try:
            yield True
        finally:
            lock.release()

    @property
    def is_locked(self) -> bool:
        """Return whether a process holds the lock of the sweep's folder now."""
        if not (self.folder / LOCK).exists():
            return False
        try:
            with self.try_lock() as has_lock:
                return not has_lock
        except WorkbenchError:
            return False

    # -- writing -------------------------------------------------------------------------------------------------

    def begin(self, sweep: Sweep) -> None:
        """Create the sweep's folder and write the sweep's definition.

        Only the holder of the folder's lock may call this.

        Raises:
            WorkbenchError: the file cannot be written.
        """
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
            write_atomically(
                self.folder / "sweep.json", json.dumps(sweep.to_wire(), ensure_ascii=False, indent=2).encode()
            )
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    def save(self, result: Result, trace: Trace | None, cell: Cell) -> Result:
        """Save a cell's trace, then its result, so that every saved cell has a trace.

        Only the holder of the folder's lock may call this.

        Raises:
            WorkbenchError: the file cannot be written.
        """
        if trace is not None:
            from workbench.trace.store import RunStore  # imports Polars

            result = replace(
                result, run=RunStore(self.folder).save(trace, tags=["sweep", cell.id], note=cell.lane.title)
            )
        path = self._path(measurement_id(result.id, result.conditions))
        try:
            write_atomically(path, json.dumps(result.to_wire(), ensure_ascii=False).encode())
        except OSError as error:
            raise _unwritable(path, error) from None
        return result

    # -- reading -------------------------------------------------------------------------------------------------

    def load(self, cell: str, conditions: Mapping[str, Any] | None) -> Result | None:
        """Return a cell's result that was measured under these conditions; None if no such result can be read.

        Conditions are device, versions, weights, and so on. Unknown conditions (None) never match.
        """
        return None if conditions is None else _read(self._path(measurement_id(cell, conditions)))

    def results(self) -> list[Result]:
        """Return the results of all saved cells of the sweep, measured under any conditions."""
        loaded = (_read(path) for path in sorted((self.folder / "cells").glob("*.json")))
        return [result for result in loaded if result is not None]

    def trace(self, result: Result) -> Trace | None:
        """Return the saved trace of a finished cell of the sweep; None if it has none."""
        from workbench.trace.store import RunStore

        return None if result.run is None else RunStore(self.folder).load(result.run)

    @property
    def sweep(self) -> Sweep:
        """Return the sweep that was last started in this folder.

        Raises:
            WorkbenchError: the folder contains no sweep.
        """
        try:
            return Sweep.from_wire(json.loads(read_regular(self.folder / "sweep.json")))
        except (OSError, ValueError, KeyError) as error:
            raise WorkbenchError(
                f"{self.folder} contains no sweep.", "Give the folder of a sweep, or axes for a new sweep."
            ) from error

    def _path(self, name: str) -> Path:
        return self.folder / "cells" / f"{name}.json"


def mismatch_note(results: Sequence[Result], cells: Sequence[Cell], conditions_by_cell: Mapping[str, Any]) -> str:
    """Return a note on finished cells of a sweep that do not count because they were measured under other conditions.

    The note is empty if there are none.

    Args:
        results: results of a folder.
        cells: cells of the sweep.
        conditions_by_cell: conditions by the cell's id.
    """
    ids = {cell.id for cell in cells}
    matching_ids = {
        r.id for r in results if r.state == DONE and r.id in ids and _same(r.conditions, conditions_by_cell.get(r.id))
    }
    mismatched = [r for r in results if r.state == DONE and r.id in ids and r.id not in matching_ids]
    if not mismatched:
        return ""
    reasons = dict.fromkeys(
        reason for r in mismatched for reason in describe_differences(r.conditions, conditions_by_cell.get(r.id))
    )
    n = len({r.id for r in mismatched})
    return (
        f"{n} saved cell{'s were' if n > 1 else ' was'} measured under other conditions ({'; '.join(reasons)}) "
        f"and {'are' if n > 1 else 'is'} not used in this sweep."
    )


def _same(recorded: Mapping[str, Any] | None, requested: Mapping[str, Any] | None) -> bool:
    return recorded is not None and canonical_json(recorded) == canonical_json(requested)


def _read(path: Path) -> Result | None:
    try:
        return Result(**json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError):
        return None


def _unwritable(path: Path, error: OSError) -> WorkbenchError:
    return WorkbenchError(
        f"{path} cannot be written: {system_reason(error)}.", "Free disk space, or choose another folder."
    )


# -- many sweeps ------------------------------------------------------------------------------------------------------


def generations(base: Path) -> list[Path]:
    """Return the folders in which one sweep was measured, in order: `base`, then `base.2` and so on."""
    folders = [path for path in base.parent.glob(f"{base.name}*") if _number(base, path)]
    return sorted(folders, key=lambda path: _number(base, path))


def next_generation(base: Path) -> Path:
    """Create an empty folder to measure a sweep again; the folders of earlier or running measurements stay.

    Raises:
        WorkbenchError: the folder cannot be created.
    """
    number = max((_number(base, path) for path in generations(base)), default=0)
    while True:
        number += 1
        path = base if number == 1 else base.with_name(f"{base.name}.{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:  # another process has just created it
            continue
        except OSError as error:
            raise _unwritable(path, error) from None


def _number(base: Path, path: Path) -> int:
    """Return the number of a sweep's folder in the order of measurements, from 1; 0 if its name has another form."""
    rest = path.name.removeprefix(base.name)
    return 1 if not rest else int(rest[1:]) if rest.startswith(".") and rest[1:].isdecimal() else 0


def delete_oldest(folder: Path, most: int) -> None:
    """Delete the oldest sweeps of a folder, so that `most` remain. Sweeps that are being written are not deleted."""
    folders = sorted(
        (p for p in folder.glob("*") if (p / "sweep.json").is_file()), key=lambda p: (p / "sweep.json").stat().st_mtime
    )
    for oldest in folders[: max(0, len(folders) - most)]:
        with SweepFolder(oldest).try_lock() as has_lock:
            if has_lock:
                shutil.rmtree(oldest, ignore_errors=True)
