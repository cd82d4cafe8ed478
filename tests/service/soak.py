"""Send many requests with random cancels, pauses, switches and lost followers; then report resources still held.

python tests/service/soak.py 5000
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workbench.core.errors import WorkbenchError
from workbench.service import Backend, Run

METHODS = (
    "autoregressive", "draft-model", "draft-tree", "draft-tree-sampled", "prompt-lookup", "token-recycling",
    "lookahead-trie", "no-such-method",
)  # fmt: skip
PROMPTS = ("abcabcabc", "aaaa", "x", "the quick brown fox", "", "y" * 500)


@dataclass(frozen=True)
class HeldResources:
    """Resources of a backend after its users have left."""

    rows: int
    slots: int
    queued: int
    active: int
    threads: int
    files: int
    resident_bytes: int

    @classmethod
    def measure(cls, bench: Backend) -> HeldResources:
        """Return the current resources."""
        gc.collect()
        health, process = bench.health(), psutil.Process()
        slots = sum(len(runner.slots) for loaded in bench._pool.targets() for _, runner in loaded.runners())
        files = len(list(Path("/proc/self/fd").iterdir()))
        return cls(
            health["rows"], slots, health["queue"], sum(health["runs"].values()), threading.active_count(), files,
            process.memory_info().rss,
        )  # fmt: skip


def user(bench: Backend, name: str, n: int, seed: int, ends: Counter[str]) -> None:
    """Send `n` requests of one user, each followed by a random action."""
    chance = random.Random(f"{seed} {name}")
    for _ in range(n):
        options: dict[str, Any] = {
            "params": {"temperature": chance.choice((0.0, 0.8))},
            "max_new_tokens": chance.randint(1, 20),
            "seed": chance.randrange(1000),
            "paused": chance.random() < 0.1,
        }
        try:
            run = bench.start(chance.choice(PROMPTS), chance.choice(METHODS), user=name, lease_s=1.0, **options)
        except WorkbenchError as error:
            ends[type(error).__name__] += 1
            continue
        ends[act_on_run(run, chance)] += 1


def act_on_run(run: Run, chance: random.Random) -> str:
    """Follow, cancel, steer or forget a run."""
    what = chance.choice(("follow", "follow", "follow", "cancel", "switch", "forget"))
    if what == "cancel":
        time.sleep(chance.random() * 0.05)
        run.cancel()
    elif what == "switch":
        with contextlib.suppress(WorkbenchError):
            run.change(method=chance.choice(METHODS), params={"depth": 2})
    if what == "forget":
        return what
    run.resume()
    with contextlib.suppress(WorkbenchError):
        run.wait(60)
    return run.state


def warm(bench: Backend) -> None:
    """Run every method once, so that caches reach their final size."""
    user(bench, "warm", 20, 0, Counter())
    rows = [bench.start("a", "draft-model", paused=True) for _ in range(bench.max_sequences)]
    for row in rows:
        row.step()
    while any(run.trace is None or not run.trace.rounds for run in rows):
        time.sleep(0.05)
    for row in rows:
        row.cancel()
    settle(bench)


def soak(bench: Backend, n: int, users: int = 8, seed: int = 0) -> Counter[str]:
    """Send `n` requests of `users` users at once, and wait for the end of all. Returns how they ended."""
    ends = Counter[str]()
    threads = [threading.Thread(target=user, args=(bench, f"u{i}", n // users, seed, ends)) for i in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle(bench)
    return ends


def settle(bench: Backend) -> None:
    """Wait until every run has ended, those that nobody follows too."""
    deadline = time.monotonic() + 30
    while bench._runs.active() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)


if __name__ == "__main__":
    with contextlib.closing(Backend()) as served:
        warm(served)
        print("before ", HeldResources.measure(served))
        for part in range(10):
            began = time.monotonic()
            how = soak(served, int(sys.argv[1]) // 10, seed=part)
            print(f"{sum(how.values())} requests, {time.monotonic() - began:.0f} s: {dict(how)}")
            print("after  ", HeldResources.measure(served), flush=True)
        print(f"traces kept: {served.health()['memory']['traces'] / 1e6:.1f} MB in {len(served._runs)} runs")
