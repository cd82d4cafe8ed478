"""Measure the cells of a parameter sweep in worker processes on this machine, each with its own backend.

By default there is one worker: cells that are measured at the same time compete for the CPU cores, which distorts their
times.
"""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from workbench.bench.conditions import conditions
from workbench.bench.grid import Cell
from workbench.bench.study import END, STEP, Event
from workbench.bench.sweepfolder import FAILED, RUNNING, Result
from workbench.bench.worker_groups import WorkerGroup, measure_cell
from workbench.models.bundle import DEFAULT_TARGET
from workbench.service.names import Names

ATTEMPTS = 3
"""Maximum number of attempts to measure a sweep's cell. If a worker process dies, its cell is measured again."""
POLL_S = 0.2
GRACE_S = 2.0


def processes(workers: int = 1, **backend: Any) -> WorkerGroup:
    """Return a pool of worker processes that measure the cells of a sweep.

    Args:
        workers: number of cells measured at once. With more than one, times include their competition for the CPU.
        backend: options of each process's `workbench.service.Backend`: target, device, dtype, ….
    """

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        remaining = collections.deque(cells)
        attempts: collections.Counter[str] = collections.Counter()
        pool = [_Worker(i, backend) for i in range(max(1, min(workers, len(remaining))))]
        try:
            while (remaining or any(worker.cell for worker in pool)) and not stopped():
                for worker in pool:
                    if worker.cell is None and remaining:
                        cell = remaining.popleft()
                        attempts[cell.id] += 1
                        worker.give(cell)
                for worker in [h for h in pool if h.pipe in wait([h.pipe for h in pool], POLL_S)]:
                    event = worker.receive()
                    if event is not None:
                        yield event
                        continue
                    cell, worker.cell = worker.cell, None  # the worker has died
                    worker.restart()
                    if cell is None:
                        continue
                    if attempts[cell.id] < ATTEMPTS:
                        remaining.appendleft(cell)
                        yield STEP, cell, Result(cell.id, RUNNING, "its worker process died; measuring the cell again")
                    else:
                        problem = (
                            f"The worker process of this cell died {ATTEMPTS} times (exit status "
                            f"{worker.status}), perhaps out of memory."
                        )
                        yield END, cell, (Result(cell.id, FAILED, error=problem), None)
        finally:
            for worker in pool:
                worker.end()

    return WorkerGroup(work, lambda cell: conditions_of(cell, backend, workers))


def conditions_of(cell: Cell, backend: Mapping[str, Any], workers: int = 1) -> dict[str, Any] | None:
    """Return the conditions under which a worker on this machine measures a cell, such as dtype and device.

    Args:
        cell: cell of a sweep.
        backend: options of the worker's backend.
        workers: number of worker processes.

    Returns:
        The conditions; None if the weights are not on this machine yet.
    """
    names = Names(backend.get("target", DEFAULT_TARGET), backend.get("drafter", "auto"), None)
    blind = cell.lane.configured.drafter.ignores_images
    options = {name: backend[name] for name in ("device", "dtype", "drafter_dtype") if name in backend}
    pair = names.resolve_pair(cell.plan.target, cell.lane.drafter, blind)
    return conditions(cell.lane, *pair, **options, at_once=workers)


class _Worker:
    """Object by which the main process controls one worker process."""

    def __init__(self, number: int, backend: Mapping[str, Any]) -> None:
        self.number, self.backend = number, dict(backend)
        self.cell: Cell | None = None
        self.status: int | None = None
        self.restart()

    def restart(self) -> None:
        """Start the worker process, or a new one if the previous one has died."""
        if hasattr(self, "process"):
            self.pipe.close()
            self.process.join()
            self.status = self.process.exitcode
        context = multiprocessing.get_context("spawn")  # PyTorch's threads do not survive a fork
        self.pipe, child_pipe = context.Pipe()
        self.process = context.Process(target=_work, args=(child_pipe, os.getpid(), self.backend), daemon=True)
        self.process.start()
        child_pipe.close()

    def give(self, cell: Cell) -> None:
        self.cell = cell
        with contextlib.suppress(OSError):  # the process has died, which `receive` reports
            self.pipe.send(cell)

    def receive(self) -> Event | None:
        """Receive an event from the worker process; return None if the process has died."""
        try:
            kind, _, content = self.pipe.recv()
        except (EOFError, OSError):
            return None
        cell = self.cell
        assert cell is not None
        if kind == END:
            self.cell = None
        return kind, cell, content

    def end(self) -> None:
        self.process.terminate()
        self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _work(pipe: Connection, master: int, backend: Mapping[str, Any]) -> None:
    """Measure the cells of a sweep that arrive through a pipe. This is the main function of a worker process.

    Args:
        pipe: connection to the main process.
        master: id of the main process; the worker ends when that process has ended.
        backend: options of the worker's `workbench.service.Backend`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    host = make_host(backend)
    try:
        while True:
            cell = pipe.recv()
            for event in measure_cell(host, cell, lambda: os.getppid() != master, worker=f"process {os.getpid()}"):
                pipe.send(event)
    except (EOFError, OSError):  # the main process has ended
        os._exit(0)


def make_host(backend: Mapping[str, Any]) -> Any:
    """Return a backend in this process, with the output of the libraries turned off."""
    from transformers.utils import logging

    from workbench.service import Backend

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return Backend(**backend)
