"""Measure the cells of a parameter sweep on a Ray cluster. If a machine is lost, its cells are measured again."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from workbench.bench.grid import Cell
from workbench.bench.study import BEGIN, END, Event
from workbench.bench.sweepfolder import FAILED, Result
from workbench.bench.worker_groups import WorkerGroup, measure_cell
from workbench.engine.cluster import connect_ray
from workbench.service.workers import conditions_of, make_host

RETRIES = 3
POLL_S = 0.5


def make_ray_workers(address: str | None = "auto", cpus: float = 1, gpus: float = 0, **backend: Any) -> WorkerGroup:
    """Return a pool of workers on a Ray cluster.

    Args:
        address: address of the cluster, such as "ray://head:10001"; "auto": the one that runs on this machine;
            "local": start one on this machine.
        cpus: CPU cores per cell of the sweep; the cluster measures as many cells at once as its resources allow.
        gpus: GPUs per cell.
        backend: options of each worker's `workbench.service.Backend`: target, device, dtype, ….

    Raises:
        WorkbenchError: Ray is not installed, or there is no cluster at the address.
    """
    ray = connect_ray(address, "use --workers")
    from ray.exceptions import RayError

    options = tuple(sorted(backend.items()))

    def work(cells: Iterable[Cell], stopped: Callable[[], bool]) -> Iterator[Event]:
        task = ray.remote(_measure).options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False)
        pending = {task.remote(cell, options): cell for cell in cells}
        try:
            for cell in list(pending.values()):
                yield BEGIN, cell, "submitted to the Ray cluster"
            while pending and not stopped():
                ready, _ = ray.wait(list(pending), timeout=POLL_S)
                for reference in ready:
                    cell = pending.pop(reference)
                    try:
                        outcome = ray.get(reference)
                    except RayError as error:
                        reason = " ".join(str(error).split())[:200]
                        outcome = (
                            Result(cell.id, FAILED, error=f"The cluster could not measure the cell: {reason}"),
                            None,
                        )
                    yield END, cell, outcome
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    return WorkerGroup(work, lambda cell: _conditions(cell, address, backend))


def _conditions(cell: Cell, address: str | None, backend: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the conditions under which a sweep's cell is measured on the Ray cluster, such as device and dtype.

    The whole cluster counts as one machine.

    Args:
        cell: cell of a sweep.
        address: address of the cluster.
        backend: options of each worker's backend.

    Returns:
        The conditions; None if the weights are not on this machine yet.
    """
    conditions = conditions_of(cell, {**backend, "device": "cpu", "dtype": "float32"})
    options = {name: backend.get(name, "auto") for name in ("device", "dtype", "drafter_dtype")}
    return conditions and {**conditions, **options, "machine": {"cluster": address or "auto"}}


def _measure(cell: Cell, options: tuple[tuple[str, Any], ...]) -> tuple[Result, Any]:
    """Measure one cell of a sweep on a machine of the Ray cluster.

    Each worker process keeps its backend for the next cell.
    """
    outcome = None
    for kind, _, content in measure_cell(
        _host(options), cell, lambda: False, worker=f"{socket.gethostname()} {os.getpid()}"
    ):
        outcome = content if kind == END else outcome
    assert outcome is not None, (
        "the measurement of a sweep cell ends with an END event, unless the measurement is stopped"
    )
    return outcome


@lru_cache(maxsize=1)
def _host(options: tuple[tuple[str, Any], ...]) -> Any:
    return make_host(dict(options))
