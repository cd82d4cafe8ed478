"""Explaining a run through Gradio's queue, as API clients do; it ends if no client waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import serving
from ui.fake_client import FakeWorkbench

from workbench.client.remote import RemoteBackend
from workbench.core.errors import PromptError, WorkbenchError
from workbench.service.request_context import make_disconnect_check
from workbench.ui import build, space

FOUND = {"parts": [0.25, 0.75]}


class SlowRun:
    """A run whose explanation ends when the test allows it."""

    id, state = "r", "finished"

    def __init__(self) -> None:
        self.explain_progress: float | None = None
        self.done, self.ended = threading.Event(), threading.Event()
        self.problem: Exception | None = None

    def explain(self) -> dict[str, Any]:
        gone, self.explain_progress = make_disconnect_check(), 0.25
        self.ended.clear()
        try:
            while not self.done.wait(0.02):
                gone()
            if self.problem is not None:
                raise self.problem
            return FOUND
        finally:
            self.explain_progress = None
            self.ended.set()


@pytest.fixture(scope="module")
def run() -> SlowRun:
    return SlowRun()


@pytest.fixture(scope="module")
def app(run: SlowRun) -> Iterator[Any]:
    client = FakeWorkbench()
    client.run = lambda run_id: run  # type: ignore[method-assign,assignment]
    demo, port = build(client), serving.free_port()
    demo.launch(server_port=port, quiet=True, **space.launch_options(client))
    yield demo, f"http://localhost:{port}"
    run.done.set()
    demo.close()


def test_a_client_that_leaves_ends_the_explanation(app: Any, run: SlowRun) -> None:
    demo, url = app
    index = next(i for i, f in demo.fns.items() if f.api_name == "explain")
    with httpx.Client(base_url=f"{url}/gradio_api", timeout=30) as http:
        http.post("/queue/join", json={"data": ["r"], "fn_index": index, "session_hash": "s"}).raise_for_status()
        with http.stream("GET", "/queue/data", params={"session_hash": "s"}) as heard:
            for line in heard.iter_lines():
                assert "process_completed" not in line, line
                if '["replace",["done"],0.25]' in line:  # a progress message
                    break
        assert run.explain_progress is not None
    assert run.ended.wait(30), "the explanation continues without a client"
    assert run.explain_progress is None


def test_a_remote_client_gets_the_explanation_or_the_error(app: Any, run: SlowRun) -> None:
    remote = RemoteBackend(app[1])
    try:
        threading.Thread(target=lambda: (time.sleep(0.7), run.done.set()), daemon=True).start()
        assert remote.fetch_attribution("r") == FOUND
        run.problem = PromptError("There is nothing to explain yet.", "Wait.")
        with pytest.raises(WorkbenchError, match="nothing to explain yet"):
            remote.fetch_attribution("r")
    finally:
        remote.close()
