"""Run a sweep on a local Ray cluster of two nodes, kill one while it measures a cell, and print how the sweep ended.

A script for `test_sweep`. It does nothing at import, because every pytest process imports it to look for doctests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEAN: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}
"""Options of both nodes: few processes, because they compete for the cores, and Ray allows 15 s for the start."""
HEAD = LEAN | {"include_dashboard": False, "no_monitor": True, "_system_config": {"health_check_period_ms": 500}}
"""Options of the head node: frequent health checks of the other node, each with the usual timeout of ten seconds."""
TASK = b"ray::_measure"
"""Name that Ray gives to a process that measures a cell."""


def children(pid: int) -> set[int]:
    """Return the ids of the child processes of a process."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= set(map(int, path.read_text().split()))
    return found


def measuring(raylet: int) -> set[int]:
    """Return the processes of a node that are measuring a cell."""
    found = set()
    for pid in children(raylet):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TASK):
                found.add(pid)
    return found


def machine(cluster: Any, options: dict[str, Any], tries: int = 4) -> Any:
    """Add a node to the cluster. If it starts too late for Ray on a busy machine, kill its processes and try again."""
    for left in reversed(range(tries)):
        before = children(os.getpid())
        try:
            return cluster.add_node(**options)
        except Exception:
            for pid in children(os.getpid()) - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                raise


def main() -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    import ray
    from ray.cluster_utils import Cluster

    from workbench.bench.sweep import FAILED, Sweep, run
    from workbench.service.ray_workers import make_ray_workers

    cluster: Any = Cluster()
    machine(cluster, HEAD)
    second = machine(cluster, LEAN)
    raylet = second.all_processes["raylet"][0].process.pid
    crew = make_ray_workers(cluster.address)
    sweep = Sweep.of({"depth": [1, 2, 3]}, prompts=["Once upon a time"], max_new_tokens=4, repeats=1)
    in_hand: set[int] = set()

    def kill() -> None:
        while not in_hand:
            in_hand.update(measuring(raylet))
            time.sleep(0.02)
        cluster.remove_node(second, allow_graceful=False)

    def alive() -> int:
        return sum(node["Alive"] for node in ray.nodes())

    before = alive()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with tempfile.TemporaryDirectory() as folder:
        *_, update = run(sweep, crew, folder)
    for result in update.results.values():
        if result.state == FAILED:
            print(result.error, file=sys.stderr)
    deadline = time.monotonic() + 60
    while alive() == before and time.monotonic() < deadline:  # the head node detects it a little later
        time.sleep(0.1)
    said = {
        "states": [result.state for result in update.results.values()],
        "nodes": [before, alive()],
        "in_hand": sorted(in_hand),
        "workers": sorted({int(result.worker.split()[-1]) for result in update.results.values() if result.worker}),
    }
    killer.join(60)
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
