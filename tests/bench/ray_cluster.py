"""A local Ray cluster of two machines, one of which is killed with a cell in hand. Says how the sweep on it ended.

A script of its own, for `test_sweep`. Nothing happens at import: pytest looks for doctests in this file as in all
others, in each of its processes.
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
"""Of either machine. What starts beside a machine competes with it for the cores, and Ray gives it 15 s to start."""
HEAD = LEAN | {"include_dashboard": False, "no_monitor": True, "_system_config": {"health_check_period_ms": 500}}
"""It looks often whether the other one is there. One that is slow to answer has its usual ten seconds each time."""
TASK = b"ray::_measure"
"""How Ray calls a process that measures a cell."""


def children(pid: int) -> set[int]:
    """Processes that a process, or one of its threads, started."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= set(map(int, path.read_text().split()))
    return found


def measuring(raylet: int) -> set[int]:
    """Of a machine's processes those that are at a cell."""
    found = set()
    for pid in children(raylet):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TASK):
                found.add(pid)
    return found


def machine(cluster: Any, options: dict[str, Any], tries: int = 4) -> Any:
    """One more machine. A busy computer may start it too late for Ray: then what there is of it goes, and once more."""
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
    from workbench.service.on_ray import on_ray

    cluster: Any = Cluster()
    machine(cluster, HEAD)
    second = machine(cluster, LEAN)
    raylet = second.all_processes["raylet"][0].process.pid
    crew = on_ray(cluster.address)
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
    while alive() == before and time.monotonic() < deadline:  # the head notices it a little later
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
