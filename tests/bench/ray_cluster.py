"""A local Ray cluster of two machines, one of which is killed while a sweep runs on it. Says how the sweep ended."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from workbench.bench.on_ray import on_ray  # noqa: E402
from workbench.bench.sweep import FAILED, Sweep, run  # noqa: E402

MEMORY = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def machine(cluster: Any, tries: int = 4, **options: Any) -> Any:
    """One more machine. Ray gives each 30 s to start, which a busy computer may not have."""
    for left in reversed(range(tries)):
        try:
            return cluster.add_node(**options)
        except Exception:  # noqa: PERF203
            if not left:
                raise


def main() -> None:
    cluster: Any = Cluster()
    machine(cluster, **MEMORY)
    second = machine(cluster, num_cpus=1, object_store_memory=80 << 20)
    crew = on_ray(cluster.address)
    sweep = Sweep.of({"depth": [1, 2, 3, 4]}, prompts=["Once upon a time"], max_new_tokens=4, repeats=1)
    before, left, update = alive(), 0, None
    with tempfile.TemporaryDirectory() as folder:
        for update in run(sweep, crew, folder):
            if update.done and not left:
                left = update.total - update.done
                cluster.remove_node(second, allow_graceful=False)
    assert update is not None
    for result in update.results.values():
        if result.state == FAILED:
            print(result.error, file=sys.stderr)
    deadline = time.monotonic() + 60
    while alive() == before and time.monotonic() < deadline:  # the head notices it a little later
        time.sleep(0.2)
    nodes = [before, alive()]
    states = [result.state for result in update.results.values()]
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps({"states": states, "nodes": nodes, "left_at_kill": left}))


main()
