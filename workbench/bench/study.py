"""Studies: measure a list of cells in order, and store each result as soon as it exists.

Comparisons, sweeps, suites, recommendations, claims and boards are declarations of `Study`: cells, a runner, a store. A
cell is measured as a whole: one run of a contender on a prompt, a comparison in a sweep, a row of a board. A stopped
study continues after its stored cells.

`interleaved_runs` defines the order of all timed measurements: every contender, plain decoding among them, runs on a
prompt before the next prompt begins, in changing order. So a slow minute of the machine affects all contenders alike,
and no contender always runs first. With two contenders the order is AB BA AB BA, so that drift affects both.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from workbench.core.errors import WorkbenchError, system_reason

T = TypeVar("T")
C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BEGIN, STEP, END, FAIL = "begin", "step", "end", "fail"
Event = tuple[str, Any, Any]
"""Type of a study's event: (kind, cell, payload). The payload is a text when the cell begins, the runner's progress at
each step, the result at the end, and the error if it fails."""
Runner = Callable[[Iterable[C], Callable[[], bool]], Iterator[Event]]
"""Type of a function (cells, stopped) that measures a study's cells, one by one or several at once, and yields their
events. It takes a cell from the iterable only when it can begin this cell, and ends early once `stopped` returns
True."""


# -- order ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Cell of an interleaved measurement: one run of a contender on a prompt.

    Attributes:
        contender: name or index of the contender.
        prompt: index of the prompt.
        repeat: number of the repetition, from 0; below 0 for a warm-up run.
    """

    contender: Any
    prompt: int
    repeat: int

    @property
    def is_warm_up(self) -> bool:
        """Return whether this is a warm-up run, whose time does not count."""
        return self.repeat < 0


def rotate(items: Sequence[T], number: int) -> list[T]:
    """Return the items in cyclic order, starting with the item at index `number` (modulo the number of items).

    Example:
        >>> [rotate("ABC", n) for n in range(3)]
        [['A', 'B', 'C'], ['B', 'C', 'A'], ['C', 'A', 'B']]
    """
    shift = number % len(items)
    return [*items[shift:], *items[:shift]]


def interleaved_runs(contenders: Sequence[Hashable], prompts: int, repeats: int, warm_up: int = 0) -> list[Run]:
    """Return all runs of an interleaved measurement, in the order in which they are measured.

    Args:
        contenders: names of the contenders.
        prompts: number of prompts.
        repeats: repetitions of each contender on each prompt.
        warm_up: runs of each contender on the first prompt, before all timed runs.

    Example:
        >>> [f"{r.contender}{r.prompt}" for r in interleaved_runs("AB", 2, 2)]
        ['A0', 'B0', 'B0', 'A0', 'B1', 'A1', 'A1', 'B1']
    """
    warm = [Run(name, 0, i - warm_up) for i in range(warm_up) for name in contenders]
    timed = [
        Run(name, prompt, repeat)
        for prompt in range(prompts)
        for repeat in range(repeats)
        for name in rotate(contenders, prompt + repeat)
    ]
    return warm + timed


# -- stores -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class Store(Protocol[C_contra, R_co]):
    """Protocol of a store for the results of a study."""

    def load(self, cell: C_contra) -> R_co | None:
        """Return the stored result of a study's cell; None if the cell must be measured."""
        ...

    def save(self, cell: C_contra, result: Any) -> R_co:
        """Store a cell's result, as the runner returned it; return the result in the form that the study keeps."""
        ...


def fingerprint(*values: Any) -> str:
    """Return a hash of plain values and dataclasses as a key, equal for equal values in every process."""
    content = json.dumps(values, sort_keys=True, default=_plain, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a dataclass as plain values, and any other object as text."""
    names = getattr(value, "__dataclass_fields__", None)
    return str(value) if names is None else {name: getattr(value, name) for name in names}


class JsonLines(Generic[R]):
    """Append-only file of results: one JSON object per line, with the fingerprint of its cell and settings.

    A killed process can leave an incomplete last line, which is ignored. If a cell has several results, the last
    counts.

    Args:
        path: the file; created with the first result.
        settings: everything apart from the cell that affects a result. Results with other settings stay in the file and
            do not count.
        encode: function that returns a result as plain JSON.
        decode: the inverse of `encode`.

    Raises:
        WorkbenchError: the file cannot be read.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        encode: Callable[[R], Any],
        decode: Callable[[Any], R],
    ) -> None:
        self._path, self._settings, self._encode = path, fingerprint(settings), encode
        try:
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
        except (OSError, ValueError) as error:
            raise WorkbenchError(f"{path} cannot be read: {error}.", "Choose another file.") from None
        self._has_partial_line = bool(lines[-1])
        self._results: dict[str, R] = {}
        for line in lines[:-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self._results[entry["key"]] = decode(entry["result"])

    def load(self, cell: Any) -> R | None:
        """Return the stored result of a cell (measurement); None if the file has no result with the same settings."""
        return self._results.get(fingerprint(cell, self._settings))

    def save(self, cell: Any, result: R) -> R:
        """Append a cell's result to the file, and wait until it is on the disk.

        Raises:
            WorkbenchError: the file cannot be written.
        """
        key = fingerprint(cell, self._settings)
        line = json.dumps(
            {"key": key, "cell": cell, "result": self._encode(result)}, default=_plain, ensure_ascii=False
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(("\n" if self._has_partial_line else "") + line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WorkbenchError(
                f"{self._path} cannot be written: {system_reason(error)}.", "Choose another file."
            ) from None
        self._has_partial_line = False
        self._results[key] = result
        return result


@dataclass(frozen=True)
class Rows(Generic[C]):
    """Store of rows that are read and saved by their keys, such as those of a board.

    Attributes:
        key: function that returns the key of a cell's row.
        finished: rows that are not measured again.
        save_row: function that is called with the key and the row of each measured cell.
    """

    key: Callable[[C], str]
    finished: Mapping[str, Any] = field(default_factory=dict[str, Any])
    save_row: Callable[[str, Any], None] = lambda key, row: None

    def load(self, cell: C) -> Any:
        """Return the finished row of a study's cell (one measurement); None if the cell must be measured."""
        return self.finished.get(self.key(cell))

    def save(self, cell: C, result: Any) -> Any:
        """Save the row that was measured for a study's cell (one measurement)."""
        self.save_row(self.key(cell), result)
        return result


# -- runner and study -------------------------------------------------------------------------------------------------


def in_turn(
    measure: Callable[[C], Generator[Any, None, R] | R], failures: type[Exception] | tuple[type[Exception], ...] = ()
) -> Runner[C]:
    """Return a runner that measures one cell after the other in this process.

    Args:
        measure: function that measures a cell and returns its result, or a generator that yields progress and returns
            the result. `stopped` is checked between cells only.
        failures: types of errors that end the cell's measurement, but not the study.
    """

    def run(cells: Iterable[C], stopped: Callable[[], bool]) -> Iterator[Event]:
        for cell in cells:
            if stopped():
                return
            yield BEGIN, cell, ""
            try:
                result: Any = measure(cell)
                if inspect.isgenerator(result):
                    with contextlib.closing(result) as steps:
                        result = yield from _steps(cell, steps)
            except failures as error:
                yield FAIL, cell, error
            else:
                yield END, cell, result

    return run


def _steps(cell: object, steps: Generator[Any, Any, R]) -> Generator[Event, None, R]:
    """Yield the progress of a cell's measurement (a generator) as events of the study; return its result."""
    while True:
        try:
            progress = next(steps)
        except StopIteration as ended:
            return ended.value
        yield STEP, cell, progress


class Study(Generic[C, R]):
    """Measurement of a list of cells, such as runs, whose results are stored one by one.

    Args:
        cells: all cells in order, or an iterator that chooses the next cell from the results so far.
        runner: measures the cells without a stored result.
        store: store that keeps the results; None: this process's memory only.
        key: function that returns a cell's key; by default the cell itself. Equal keys are measured once.
        contender: function that returns a cell's contender. Once a cell of a contender fails, the other cells of this
            contender are left out.

    Attributes:
        results: results by the cell's key, in the order in which they became known.
        failures: messages of errors by contender. An error itself would keep the failed cell's tensors in memory.
        total: number of cells to measure; None if an iterator chooses the cells.
        done: number of cells that are measured, failed or left out.
    """

    def __init__(
        self,
        cells: Sequence[C] | Iterator[C],
        runner: Runner[C],
        store: Store[C, R] | None = None,
        *,
        key: Callable[[C], Any] = lambda cell: cell,
        contender: Callable[[C], Hashable] | None = None,
    ) -> None:
        self._cells, self._runner, self._store = cells, runner, store
        self._key, self._contender = key, contender or key
        self.results: dict[Any, R] = {}
        self.failures: dict[Hashable, str] = {}
        self.total: int | None = None
        self.done, self._taken, self._is_exhausted, self._start, self._first = 0, 0, False, 0.0, 0

    def load(self) -> list[C]:
        """Read the stored results of the study's cells; return the cells whose results were not read before."""
        return [cell for cell in self._cells if self._is_new(cell)] if isinstance(self._cells, Sequence) else []

    def run(
        self, stopped: Callable[[], bool] = lambda: False, seconds: float = math.inf
    ) -> Generator[Event, None, None]:
        """Measure the cells without a stored result; yield the study's events. Closing the iterator ends the study.

        Args:
            stopped: function that is called often; once it returns True, the study ends.
            seconds: time limit in seconds, after which the study ends as if it were stopped.
        """
        self.load()
        if isinstance(self._cells, Sequence):
            self.total = len({self._key(cell) for cell in self._cells} - self.results.keys())
        self.restart_clock()
        end = self._start + seconds
        with contextlib.closing(self._events(lambda: stopped() or time.monotonic() >= end)) as events:
            for kind, cell, payload in events:
                if kind == FAIL:
                    self.failures.setdefault(self._contender(cell), str(payload))
                elif kind == END:
                    payload = payload if self._store is None else self._store.save(cell, payload)
                    self.results[self._key(cell)] = payload
                self.done += kind in (END, FAIL)
                yield kind, cell, payload

    @property
    def is_complete(self) -> bool:
        """Return whether every cell of the study was measured, failed or left out."""
        return self._is_exhausted and self.done == self._taken

    @property
    def left_s(self) -> float | None:
        """Return the estimated seconds left, from the cells since the clock was started; None before the first cell."""
        n = self.done - self._first
        if self.total is None or n <= 0:
            return None
        return (time.monotonic() - self._start) / n * (self.total - self.done)

    def restart_clock(self) -> None:
        """Estimate the remaining time only from the cells after this call: warm-up runs before it are not typical."""
        self._start, self._first = time.monotonic(), self.done

    def _events(self, stopped: Callable[[], bool]) -> Generator[Event, None, None]:
        """Yield the runner's events, as a generator, so that closing it ends the runner."""
        yield from self._runner(self._remaining(), stopped)

    def _remaining(self) -> Iterator[C]:
        """Yield each cell (measurement) without a result once, except the cells of contenders that have failed."""
        seen = set[Any]()
        for cell in self._cells:
            key = self._key(cell)
            if key in seen or key in self.results or self._is_new(cell):
                continue
            seen.add(key)
            self._taken += 1
            if self._contender(cell) in self.failures:
                self.done += 1
            else:
                yield cell
        self._is_exhausted = True

    def _is_new(self, cell: C) -> bool:
        """Read the stored result of a study's cell; return whether the store has a result that was not read before."""
        key = self._key(cell)
        if self._store is None or key in self.results or (result := self._store.load(cell)) is None:
            return False
        self.results[key] = result
        return True
