"""Loops of page calls from one address against a running public app, beside completions from another.

    python app.py --public --port 7987
    python tests/server/attack_page_calls.py http://127.0.0.1:7987

Prints JSON: how the calls ended, and how long a completion took before and during the attack. On Linux every address
of 127.0.0.0/8 is this machine's own, so that attacker and users have different addresses.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

ATTACKER, USER = "127.0.0.2", "127.0.0.1"
LOOPS, CALLS = 30, 100
"""Loops that run at once, and the maximum number of answered calls of each."""
FUNCTIONS = ("boards", "matrix", "catalogue")
ANSWERED, WAITING, BUDGET, OTHER = "answered", "too many waiting", "over the budget", "other"
BODY = {"model": "text-target", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


def http(url: str, address: str) -> httpx.Client:
    """Return a client that sends from an address of this machine."""
    return httpx.Client(base_url=url, timeout=200, transport=httpx.HTTPTransport(local_address=address))


def component_ids(client: httpx.Client) -> dict[str, int]:
    """Return the component of each function of the pages."""
    components = client.get("/config").json()["components"]
    return {name: c["id"] for c in components for name in c["props"].get("server_fns") or ()}


def call(client: httpx.Client, component: int, name: str) -> dict[str, Any]:
    """Return the answer of a page's function."""
    body = {"session_hash": "s", "component_id": component, "fn_name": name, "data": {"target": "text-target"}}
    return client.post("/gradio_api/component_server", json=body).json()


def outcome(answer: Any) -> str:
    """Return how a call ended."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if error is None:
        return ANSWERED
    reasons = {"are already waiting": WAITING, "CPU seconds per minute": BUDGET}
    return next((name for words, name in reasons.items() if words in error["message"]), OTHER)


@dataclass
class Attack:
    """Loops of page calls. Each loop ends when its address is over its budget, or after `CALLS` answers."""

    url: str
    address: str = ATTACKER
    outcomes: Counter[str] = field(default_factory=Counter)
    has_begun: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[Attack]:
        """Attack during the block; afterwards wait for all loops."""
        threads = [threading.Thread(target=self._loop, args=(i,), daemon=True) for i in range(LOOPS)]
        for thread in threads:
            thread.start()
        assert self.has_begun.wait(200), "no call was answered"
        yield self
        for thread in threads:
            thread.join()

    def _loop(self, i: int) -> None:
        with http(self.url, self.address) as client:
            ids, counts = component_ids(client), Counter[str]()
            while counts[ANSWERED] < CALLS:
                name = FUNCTIONS[(i + counts[ANSWERED]) % len(FUNCTIONS)]
                counts[outcome(call(client, ids[name], name))] += 1
                self.has_begun.set()
                if counts[BUDGET]:
                    break
        self.outcomes.update(counts)


def complete(url: str, address: str = USER) -> httpx.Response:
    """Return a completion."""
    with http(url, address) as client:
        return client.post("/v1/completions", json=BODY)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 3)


def main(url: str) -> None:
    complete(url)  # compiles
    before = [_seconds(lambda: complete(url)) for _ in range(5)]
    start = time.perf_counter()
    with Attack(url).running() as attack:
        during = [_seconds(lambda: complete(url)) for _ in range(5)]
    report = {"before_s": before, "during_s": during, "attack_s": round(time.perf_counter() - start, 1)}
    print(json.dumps(report | {"calls": dict(attack.outcomes)}, indent=2))


if __name__ == "__main__":
    main(sys.argv[1])
