"""Send many requests of users who cancel, pause, switch, hang up and err; then report resources that are still held.

    python tests/server/soak.py --requests 5000 --url http://localhost:7860     # a running app on this machine
    python tests/server/soak.py --requests 5000 --in-process                    # a new backend

Memory (November 2026). The backend alone does not grow: 2,000 requests to tiny models, after the first 800,
left 0.8 MB more resident memory and 0.01 MB more in use of malloc's (`mallinfo2`), with as many Python objects as
before. Through a served app it grew by 5 to 10 MB per thousand requests. Gradio keeps 120 kB for each session, of up to
a thousand, and every user here who leaves, about 45 in a thousand requests, creates a new one: 5.4 MB or more, a cache
without use, not a leak. It keeps a hundred now (see `workbench.ui.LAUNCH`), so that this growth ends at 12 MB.
Other growth is bounded too: kept runs (`Limits.kept_runs`, `trace_bytes`), and Gradio's last 10,000 events.

A short soak is steeper, because it fills the kept runs: eight crowds of 60 requests to one app left 36, 19, 17, 12, 7,
10, 6 and 2 MB more resident. The traces' rounds, phases, tops and lists grew, by 27,000 to 33,000 objects in
each of the first four crowds; the last, with 256 runs kept, left 293 fewer than before. malloc had 5.7 MB more in use
after all eight; the rest is Python's own small objects and pages that are not given back: after a run of 80
requests `malloc_trim` (with MALLOC_ARENA_MAX=2) gave back 29 MB, more than these had added.

Prints JSON: how the requests ended, and rows, threads, open files and memory of the serving process before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import psutil

from workbench.client import RunHandle, Workbench
from workbench.core.errors import WorkbenchError

METHODS = ("autoregressive", "draft-model", "draft-tree", "draft-tree-sampled", "prompt-lookup", "token-recycling",
           "lookahead-trie", "early-exit", "medusa")  # fmt: skip
PROMPTS = ("Once upon a time", "The old lighthouse", "<|user|>What is 2 + 3?<|assistant|>", "one two three " * 40)
WAIT_S = 120.0
SETTLE_S = 15.0


@dataclass(frozen=True)
class HeldResources:
    """Resources of the serving process."""

    runs: int
    rows: int
    threads: int
    files: int
    resident_mb: float


@dataclass(frozen=True)
class Report:
    """Result of a soak.

    Attributes:
        requests: number of requests sent.
        seconds: duration.
        ends: number of requests per outcome.
        before: resources after a warm-up, before the first request.
        after: resources after all users have left.
        mb_per_1000_requests: slope of memory over the second half; None for fewer than eight samples.
    """

    requests: int
    seconds: float
    ends: dict[str, int]
    before: HeldResources
    after: HeldResources
    mb_per_1000_requests: float | None


class Soak:
    """Users of one backend.

    Args:
        url: of a running app; None: a backend in this process.
        seed: seed of all users' actions.
    """

    def __init__(self, url: str | None, seed: int = 0) -> None:
        self.url, self.seed = url, seed
        self.shared = Workbench() if url is None else None
        self.watcher = self.shared or Workbench(url)
        self.process = psutil.Process() if url is None else _process_at(url)
        self.ends: Counter[str] = Counter()
        self.samples: list[tuple[int, float]] = []
        self._left = 0
        self._lock = threading.Lock()

    def run(self, requests: int, users: int = 8) -> Report:
        """Send requests from several users at once."""
        self.watcher.load()
        self._crowd(max(2 * users, requests // 20), users, f"{self.seed} warm")  # pools grow, caches fill
        self._settle()
        self.ends.clear()
        self.samples.clear()
        before, began = self._held(), time.monotonic()
        self._crowd(requests, users, str(self.seed))
        seconds = time.monotonic() - began
        self._settle()
        return Report(requests, round(seconds, 1), dict(sorted(self.ends.items())), before, self._held(), self._slope())

    def close(self) -> None:
        """Close the backend."""
        self.watcher.close()

    def _crowd(self, requests: int, users: int, seed: str) -> None:
        self._left = requests
        threads = [threading.Thread(target=self._user, args=(random.Random(f"{seed} {i}"),)) for i in range(users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _user(self, chance: random.Random) -> None:
        bench = self.shared or Workbench(self.url)
        while self._next():
            act = chance.choices(ACTS, [weight for _, weight in WEIGHTS])[0]
            if act in OVER_HTTP and self.url is None:
                act = follow
            try:
                end = act(self, bench, chance)
            except WorkbenchError as error:
                end = f"{act.__name__}: {type(error).__name__}"
            except Exception as error:
                end = f"{act.__name__}: unexpected {type(error).__name__}: {str(error)[:80]}"
            with self._lock:
                self.ends[end] += 1
            if act is abandon_run:
                bench = self.shared or Workbench(self.url)
        if bench is not self.shared:
            bench.close()

    def _next(self) -> bool:
        with self._lock:
            self._left -= 1
            if self._left % 25 == 0:
                self.samples.append((-self._left, self.process.memory_info().rss / 1e6))
            return self._left >= 0

    def _settle(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while self._held().runs and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)

    def _held(self) -> HeldResources:
        health, process = self.watcher.health(), self.process
        return HeldResources(
            sum(health["runs"].values()), health["rows"], process.num_threads(), process.num_fds(),
            round(process.memory_info().rss / 1e6, 1),
        )  # fmt: skip

    def _slope(self) -> float | None:
        half = self.samples[len(self.samples) // 2 :]
        if len(half) < 4:
            return None
        return round(1000 * statistics.linear_regression(*zip(*half, strict=True)).slope, 2)


# -- actions of users -------------------------------------------------------------------------------------------------


def _start(bench: Workbench, chance: random.Random, **more: Any) -> RunHandle:
    params = {"temperature": chance.choice((0.0, 0.0, 0.8))}
    options = {"params": params, "max_new_tokens": chance.randint(1, 40), "seed": chance.randrange(1000)} | more
    return bench.start(chance.choice(PROMPTS), chance.choice(METHODS), **options)


def _end(run: RunHandle) -> str:
    with contextlib.suppress(WorkbenchError):
        run.wait(WAIT_S)
    return run.state


def follow(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Read all rounds."""
    run = _start(bench, chance)
    n = sum(1 for _ in run)
    same = run.trace is not None and n == len(run.trace.rounds)
    return run.state if same else "follow: rounds are missing"


def cancel(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Cancel at a random moment."""
    run = _start(bench, chance, max_new_tokens=300)
    time.sleep(chance.random() * 0.2)
    run.cancel()
    return _end(run)


def pause(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Start paused, step, pause, resume."""
    run = _start(bench, chance, paused=True)
    run.step()
    run.pause()
    run.resume()
    return _end(run)


def switch(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Change method and parameters in mid-run."""
    run = _start(bench, chance)
    run.change(method=chance.choice(METHODS), params={"temperature": chance.choice((0.0, 1.0))})
    return _end(run)


def send_bad_request(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Send an invalid request."""
    wrong: dict[str, Any] = chance.choice(
        [{"method": "nonsense"}, {"params": {"depth": -1}}, {"max_new_tokens": 0}, {"target": "../x"}, {"stop": ("",)}]
    )
    options = {"method": "draft-model", **wrong}
    bench.start("x", **options).wait(WAIT_S)
    return "err: not refused"


def abandon_run(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Leave during the run without closing it."""
    run = _start(bench, chance, max_new_tokens=300)
    if bench is soak.shared:
        run.cancel()
    else:
        bench.close()
    return "left"


def _body(chance: random.Random, **more: Any) -> dict[str, Any]:
    speculation = {"method": chance.choice(METHODS)}
    tokens = chance.randint(1, 40)
    return {"prompt": chance.choice(PROMPTS), "max_tokens": tokens, "speculation": speculation, "temperature": 0} | more


def complete(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Send an OpenAI client's request."""
    return f"v1: {httpx.post(f'{soak.url}/v1/completions', json=_body(chance), timeout=WAIT_S).status_code}"


def stream(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Send the same request, streamed to its end."""
    with httpx.stream("POST", f"{soak.url}/v1/completions", json=_body(chance, stream=True), timeout=WAIT_S) as answer:
        lines = list(answer.iter_lines())
    return f"v1 stream: {answer.status_code}" + ("" if "data: [DONE]" in lines or answer.is_error else " broken off")


def hang_up(soak: Soak, bench: Workbench, chance: random.Random) -> str:
    """Send the same request and hang up during the stream."""
    body = _body(chance, stream=True, max_tokens=300)
    with httpx.stream("POST", f"{soak.url}/v1/completions", json=body, timeout=WAIT_S) as answer:
        for _ in zip(range(chance.randint(1, 10)), answer.iter_lines(), strict=False):
            pass
    return f"v1 hung up: {answer.status_code}"


WEIGHTS: tuple[tuple[Callable[[Soak, Workbench, random.Random], str], int], ...] = (
    (follow, 4),
    (cancel, 3),
    (pause, 2),
    (switch, 3),
    (send_bad_request, 2),
    (abandon_run, 1),
    (complete, 3),
    (stream, 2),
    (hang_up, 2),
)
ACTS = [act for act, _ in WEIGHTS]
OVER_HTTP = (complete, stream, hang_up)


def _process_at(url: str) -> psutil.Process:
    """Return the process on this machine that listens at an address.

    Raises:
        WorkbenchError: no process listens there.
    """
    port = httpx.URL(url).port or 80
    for connection in psutil.net_connections("tcp"):
        address: Any = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address.port == port and connection.pid:
            return psutil.Process(connection.pid)
    raise WorkbenchError(f"No process on this machine listens on port {port}.", "Give the address of a server here.")


def main(argv: list[str] | None = None) -> int:
    """Run a soak and print its report. Status 1 when something is left behind or something unexpected happened."""
    parser = argparse.ArgumentParser(description="Send many requests, then report resources that are still held.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a running app on this machine")
    where.add_argument("--in-process", action="store_true", help="use a new backend in this process")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    soak = Soak(args.url and args.url.rstrip("/"), args.seed)
    with contextlib.closing(soak):
        report = soak.run(args.requests, args.users)
    sys.stdout.write(json.dumps(asdict(report), indent=2) + "\n")
    return int(bool(problems(report)))


def problems(report: Report) -> list[str]:
    """Return the problems: runs or sequences left, more threads or files than a pool keeps, unexpected errors."""
    found = [end for end in report.ends if "unexpected" in end or "missing" in end or "broken" in end or "not " in end]
    found += [f"{report.after.runs} runs, {report.after.rows} rows"] if report.after.runs or report.after.rows else []
    for name in ("threads", "files"):
        grown = getattr(report.after, name) - getattr(report.before, name)
        found += [f"{grown} more {name}"] if grown > 8 else []
    return found


if __name__ == "__main__":
    raise SystemExit(main())
