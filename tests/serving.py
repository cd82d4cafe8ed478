"""The whole app with the bundled models in this process: pages, Gradio's API, `/v1`, `/health`, `/metrics`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from starlette.middleware import Middleware

from workbench.client import Workbench
from workbench.server.guard import Guard
from workbench.server.routes import router
from workbench.ui import LAUNCH, build

STORY = "Once upon a time, there was a little fox called Pip."


@dataclass(frozen=True)
class App:
    """Address and backend of a running app."""

    url: str
    bench: Workbench


@lru_cache(maxsize=1)
def app() -> App:
    """Return the app; the first call starts it, and it runs until the process ends.

    It uses float64, so that a text does not depend on other requests in the batch.
    """
    bench = Workbench(dtype="float64", device="cpu", allow_models=())
    bench.load()
    middleware = [*LAUNCH["app_kwargs"]["middleware"], Middleware(Guard)]
    _, url, _ = build(bench).launch(
        server_name="127.0.0.1",
        server_port=free_port(),
        prevent_thread_lock=True,
        quiet=True,
        **LAUNCH | {"app_kwargs": {"routes": list(router(bench).routes), "middleware": middleware}},
    )
    return App(url.rstrip("/"), bench)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def n_unfinished_runs(bench: Workbench) -> int:
    """Return the number of runs that are in the batch or in the queue."""
    health = bench.health()
    return health["rows"] + health["queue"] + sum(health["runs"].values())


def wait_until(true: Callable[[], Any], seconds: float = 10.0) -> bool:
    """Return whether a condition becomes true within the time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def thread_names() -> list[str]:
    """Return the names of this process's threads, without numbers."""
    return sorted(thread.name.rstrip("0123456789_") for thread in threading.enumerate())
