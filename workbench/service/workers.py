"""A crew of processes on this machine, each with a backend of its own.

One, unless asked for more: cells that share the cores slow each other down, and a time would then speak of the machine,
not of the method.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from workbench.bench.conditions import conditions
from workbench.bench.crews import END, STEP, Crew, Event, measure_cell
from workbench.bench.grid import Cell
from workbench.bench.sweepfolder import FAILED, RUNNING, Result
from workbench.engine.bundle import DEFAULT_TARGET
from workbench.service.names import Names

ATTEMPTS = 3
"""Times a cell is given to a worker before it counts as failed; a worker that dies gives its cell back."""
POLL_S = 0.2
GRACE_S = 2.0


def processes(workers: int = 1, **backend: Any) -> Crew:
    """A crew of `workers` processes.

    Args:
        workers: cells measured at once. With more than one, times are those of a machine that is shared.
        backend: options of each process's `workbench.service.Backend`: target, device, dtype, ….
    """

    def work(cells: Sequence[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        left = collections.deque(cells)
        attempts: collections.Counter[str] = collections.Counter()
        hands = [_Hand(i, backend) for i in range(max(1, min(workers, len(left))))]
        try:
            while (left or any(hand.cell for hand in hands)) and not stopped():
                for hand in hands:
                    if hand.cell is None and left:
                        cell = left.popleft()
                        attempts[cell.id] += 1
                        hand.give(cell)
                for hand in [h for h in hands if h.pipe in wait([h.pipe for h in hands], POLL_S)]:
                    event = hand.heard()
                    if event is not None:
                        yield event
                        continue
                    cell, hand.cell = hand.cell, None  # the worker has died
                    hand.restart()
                    if cell is None:
                        continue
                    if attempts[cell.id] < ATTEMPTS:
                        left.appendleft(cell)
                        yield STEP, cell, Result(cell.id, RUNNING, "its worker died: once more")
                    else:
                        problem = (
                            f"Its worker died {ATTEMPTS} times (exit status {hand.status}): out of memory, perhaps."
                        )
                        yield END, cell, (Result(cell.id, FAILED, error=problem), None)
        finally:
            for hand in hands:
                hand.end()

    return Crew(work, lambda cell: conditions_of(cell, backend, workers))


def conditions_of(cell: Cell, backend: Mapping[str, Any], workers: int = 1) -> dict[str, Any] | None:
    """The conditions under which a process of this machine measures a cell, from the options of its backend."""
    names = Names(backend.get("target", DEFAULT_TARGET), backend.get("drafter", "auto"), None)
    blind = cell.lane.configured.drafter.blind
    options = {name: backend[name] for name in ("device", "dtype", "drafter_dtype") if name in backend}
    pair = names.pair(cell.plan.target, cell.lane.drafter, blind)
    return conditions(cell.lane, *pair, **options, at_once=workers)


class _Hand:
    """A worker as its master sees it."""

    def __init__(self, number: int, backend: Mapping[str, Any]) -> None:
        self.number, self.backend = number, dict(backend)
        self.cell: Cell | None = None
        self.status: int | None = None
        self.restart()

    def restart(self) -> None:
        """A new process in the place of one that has died, if any."""
        if hasattr(self, "process"):
            self.pipe.close()
            self.process.join()
            self.status = self.process.exitcode
        context = multiprocessing.get_context("spawn")  # a fork would share PyTorch's threads, which did not survive it
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, os.getpid(), self.backend), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, cell: Cell) -> None:
        self.cell = cell
        with contextlib.suppress(OSError):  # it has died: the next look at the pipe says so
            self.pipe.send(cell)

    def heard(self) -> Event | None:
        """What it says; None: it has died."""
        try:
            kind, _, said = self.pipe.recv()
        except (EOFError, OSError):
            return None
        cell = self.cell
        assert cell is not None
        if kind == END:
            self.cell = None
        return kind, cell, said

    def end(self) -> None:
        self.process.terminate()
        self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _work(pipe: Connection, master: int, backend: Mapping[str, Any]) -> None:
    """In the worker: measure what comes through the pipe until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the master's
    host = make_host(backend)
    try:
        while True:
            cell = pipe.recv()
            for event in measure_cell(host, cell, lambda: os.getppid() != master, worker=f"process {os.getpid()}"):
                pipe.send(event)
    except (EOFError, OSError):  # the master is gone
        os._exit(0)


def make_host(backend: Mapping[str, Any]) -> Any:
    """A backend of this process, without the chatter of the libraries that load its models."""
    from transformers.utils import logging

    from workbench.service import Backend

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return Backend(**backend)
