"""What Gradio keeps of visitors who have gone, and what it does while nobody asks for anything."""

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


def test_visitors_who_have_gone_fill_no_more_than_a_few_megabytes(demo: Any) -> None:
    SessionState(demo)  # what is made once is made
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [SessionState(demo) for _ in range(8)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert 0 < each * LAUNCH["state_session_capacity"] < MOST_BYTES


def test_a_page_that_was_forgotten_is_known_again_when_it_comes_back(demo: Any) -> None:
    holder = StateHolder()
    holder.blocks, holder.capacity = demo, 2
    first = list(holder["first"].config_values)
    assert [list(holder[name].config_values) for name in ("second", "third")] == [first, first]
    assert "first" not in holder
    assert list(holder["first"].config_values) == first
    assert len(holder.session_data) == 2


def test_an_idle_page_looks_for_work_a_hundred_times_a_second_at_most(
    demo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio's own pause costs 6 % of a core for each page that nobody uses."""
    pauses: list[float] = []
    here, wait = threading.get_ident(), asyncio.sleep

    async def rest(seconds: float) -> None:
        if threading.get_ident() != here:  # another test's server, which looks for work in a thread of its own
            return await wait(seconds)
        pauses.append(seconds)
        demo._queue.stopped = len(pauses) >= 3

    own = SimpleNamespace(**vars(asyncio) | {"sleep": rest})
    monkeypatch.setattr(queueing, "asyncio", own)
    demo._queue.stopped = False
    asyncio.run(demo._queue.start_processing())
    assert len(pauses) == 3
    assert min(pauses) >= 0.01
