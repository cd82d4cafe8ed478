"""Gradio's session data of departed visitors, and its work while the app is idle."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from gradio import queueing
from gradio.state_holder import SessionState, StateHolder

from workbench.ui import LAUNCH, build

from .fake_client import FakeWorkbench

MOST_BYTES = 24 << 20


@pytest.fixture(scope="module")
def demo() -> Any:
    return build(FakeWorkbench())


def test_session_data_of_departed_visitors_is_limited_to_a_few_megabytes(demo: Any) -> None:
    SessionState(demo)  # create everything that is created once
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [SessionState(demo) for _ in range(8)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert 0 < each * LAUNCH["state_session_capacity"] < MOST_BYTES


def test_a_removed_session_is_created_again_when_its_page_returns(demo: Any) -> None:
    holder = StateHolder()
    holder.blocks, holder.capacity = demo, 2
    first = list(holder["first"].config_values)
    assert [list(holder[name].config_values) for name in ("second", "third")] == [first, first]
    assert "first" not in holder
    assert list(holder["first"].config_values) == first
    assert len(holder.session_data) == 2


def test_an_idle_app_polls_its_queue_at_most_a_hundred_times_per_second(
    demo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Gradio's default pause each idle app uses 6 % of a core."""
    pauses: list[float] = []
    here, wait = threading.get_ident(), asyncio.sleep

    async def rest(seconds: float) -> None:
        if threading.get_ident() != here:  # another test's server polls in its own thread
            return await wait(seconds)
        pauses.append(seconds)
        demo._queue.stopped = len(pauses) >= 3

    own = SimpleNamespace(**vars(asyncio) | {"sleep": rest})
    monkeypatch.setattr(queueing, "asyncio", own)
    demo._queue.stopped = False
    asyncio.run(demo._queue.start_processing())
    assert len(pauses) == 3
    assert min(pauses) >= 0.01
