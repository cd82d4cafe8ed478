"""The fair lock for work outside of rounds: addresses take turns, and work ends when its caller leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from workbench.core.errors import CapacityError, MethodUnavailableError
from workbench.decoders.draft_verify import part_changes
from workbench.methods import registry
from workbench.service import Backend, Limits, run_control
from workbench.service.fairlock import FairLock
from workbench.service.request_context import DISCONNECTED, DisconnectedError
from workbench.ui.session import Session

from .conftest import PROMPT, rounds, wait_until


def test_the_lock_goes_to_the_next_address_and_few_requests_per_address_may_wait() -> None:
    lock, held, free = FairLock(waiting=3), [], threading.Event()

    def hold(user: str, wait: bool = False) -> None:
        with lock.hold(user):
            held.append(user)
            if wait:
                free.wait(120)

    threads = [threading.Thread(target=hold, args=("a.0", True))]
    threads[0].start()
    wait_until(lambda: bool(held))
    for user in ("a.1", "a.2", "a.3", "b.0"):
        threads.append(threading.Thread(target=hold, args=(user,)))
        threads[-1].start()
        wait_until(lambda: len(lock._queue) == len(threads) - 1)
    with pytest.raises(CapacityError, match="3 requests of this kind from your address"):
        hold("a.4")
    free.set()
    for thread in threads:
        thread.join(30)
    assert held == ["a.0", "a.1", "b.0", "a.2", "a.3"]


def test_a_caller_who_leaves_stops_waiting() -> None:
    lock = FairLock()

    def gone() -> None:
        raise DisconnectedError

    with lock.hold("a"):
        with pytest.raises(DisconnectedError), lock.hold("b", gone):
            pass
        assert len(lock._queue) == 0
    with lock.hold("b"):
        pass


@contextmanager
def caller_left() -> Iterator[None]:
    """Simulate a request whose caller has left."""
    event = threading.Event()
    event.set()
    token = DISCONNECTED.set(event)
    try:
        yield
    finally:
        DISCONNECTED.reset(token)


def test_an_explanation_is_counted_and_cancelled_when_its_caller_leaves(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = backend(limits=Limits(requests_per_minute=4))
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=2, user="a")
    run.wait(120)
    run.request.image_inputs = {}
    event = threading.Event()

    def explain(models: Any, request: Any, trace: Any, drafter: Any, on_progress: Callable[[float], None]) -> Any:
        on_progress(0.5)
        event.set()
        on_progress(0.6)
        return {"done": True}

    monkeypatch.setattr(run_control, "explain", explain)
    token = DISCONNECTED.set(event)
    with pytest.raises(DisconnectedError):
        run.explain()
    DISCONNECTED.reset(token)
    assert (run.explain_progress, run.trace.attribution) == (None, None)  # type: ignore[union-attr]
    assert run.explain() == {"done": True}
    run.explain()
    with pytest.raises(CapacityError, match="4 requests per minute"):
        run.explain()


def test_an_explanation_uses_the_current_drafter_after_a_refused_switch(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = (bench := backend()).start(PROMPT, "prompt-lookup", max_new_tokens=20, paused=True, drafter="none")
    wait_until(lambda: run.state == "paused")
    asked: list[Any] = []

    def refuse(*_: Any) -> None:
        raise MethodUnavailableError("It cannot be primed here.")

    monkeypatch.setattr(part_changes, "init_drafter_state", refuse)
    monkeypatch.setattr(
        run_control,
        "explain",
        lambda models, request, trace, drafter, on_progress: asked.append((models.drafter_name, drafter)),
    )
    run.change("draft-model", drafter=bench._names.drafter)
    run.step()
    wait_until(lambda: rounds(run) == 1)
    run.request.image_inputs = {}
    run.explain()
    run.resume()
    run.wait(120)
    run.explain()
    drafter = registry.get("prompt-lookup").with_params().drafter
    assert asked == [(None, drafter)] * 2
    assert "It cannot be primed here" in run.trace.footer.warnings[0]  # type: ignore[union-attr]


def test_no_explanation_is_computed_for_a_caller_who_has_left() -> None:
    session = Session(client=None)
    with caller_left(), pytest.raises(DisconnectedError):
        session.whatif({"trace": {}})
    with pytest.raises(Exception, match="trace"):
        session.whatif({"trace": {}})
