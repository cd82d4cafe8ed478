"""Sequences of the engine: assignment to runs, and release within two seconds in all cases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import CapacityError, WorkbenchError
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.engine import datastore_builder
from workbench.methods.prompt_lookup.drafter import NGram
from workbench.service import Backend, Limits

from .conftest import PROMPT, raise_cpu_out_of_memory, raise_cuda_out_of_memory, rounds, wait_until

EIGHT = [
    ("autoregressive", {}),
    ("draft-model", {"depth": 3}),
    ("draft-tree", {"nodes": 7}),
    ("draft-tree-sampled", {}),
    ("prompt-lookup", {}),
    ("token-recycling", {}),
    ("lookahead-trie", {}),
    ("suffix", {}),
    ("early-exit", {"exit_layer": 2}),
]


def generate_alone(bench: Backend, n: int) -> list[int]:
    return bench.start(PROMPT, "autoregressive", max_new_tokens=n).wait(60).token_ids


def is_sequence_free(bench: Backend) -> bool:
    return bench.health()["rows"] == 0


# -- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_users_get_the_same_text_as_alone_while_another_one_stalls(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=9)
    whole = generate_alone(bench, 40)
    stalled = bench.start(PROMPT, "draft-tree", max_new_tokens=40, user="stalled", lease_s=60)
    paused = bench.start(PROMPT, "draft-model", max_new_tokens=40, user="paused", paused=True)
    runs = [
        bench.start(PROMPT, method, params, max_new_tokens=40, user=f"user {i}", lease_s=60)
        for i, (method, params) in enumerate(EIGHT)
    ]
    follower = iter(stalled)
    next(follower)  # reads once, then stalls
    assert [run.wait(60).token_ids for run in runs] == [whole] * len(EIGHT)
    assert rounds(paused) == 0
    paused.resume()
    assert paused.wait(60).token_ids == whole
    wait_until(lambda: stalled.ended)
    assert stalled.trace is not None
    assert stalled.trace.token_ids == whole


def test_waiting_runs_report_their_position_and_users_take_turns(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1)
    bench.load()
    first = bench.start(PROMPT, "autoregressive", max_new_tokens=30, user="a", paused=True)
    wait_until(lambda: first.state == "paused")
    waiting = {
        name: bench.start(PROMPT, "autoregressive", max_new_tokens=2, user=name[0]) for name in ("b1", "b2", "c1")
    }
    places = {name: run.since(0)["queue"] for name, run in waiting.items()}
    assert places == {"b1": {"position": 1, "of": 3}, "c1": {"position": 2, "of": 3}, "b2": {"position": 3, "of": 3}}
    assert {run.state for run in waiting.values()} == {"queued"}
    assert first.since(0)["queue"] is None
    waiting["c1"].cancel()
    assert waiting["c1"].state == "cancelled"
    assert waiting["b2"].since(0)["queue"] == {"position": 2, "of": 2}
    first.resume()
    assert waiting["b2"].wait(120).footer.reason == "length"
    assert waiting["b1"].ended
    assert waiting["c1"].trace is None
    assert waiting["c1"].since(0)["footer"]["reason"] == "cancelled"


def test_building_a_model_in_another_dtype_does_not_affect_a_run(
    backend: Callable[..., Backend],
) -> None:
    """Transformers sets PyTorch's default dtype, which all threads share, while it builds a model."""
    bench = backend()
    whole = generate_alone(bench, 12)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        runs = [bench.start(PROMPT, method, params, max_new_tokens=12) for method, params in EIGHT]
        assert [run.wait(120).token_ids for run in runs] == [whole] * len(EIGHT)
    finally:
        torch.set_default_dtype(before)


def test_runs_that_waited_for_a_load_are_queued_in_the_order_they_came(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1)
    runs = [bench.start(PROMPT, "autoregressive", paused=True, user="a") for _ in range(4)]
    wait_until(lambda: runs[0].state == "paused" and all(run.state == "queued" for run in runs[1:]))
    assert [run.since(0)["queue"]["position"] for run in runs[1:]] == [1, 2, 3]


# -- release of sequences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True])
def test_a_sequence_is_free_within_two_seconds_after_a_cancel(backend: Callable[..., Backend], paused: bool) -> None:
    bench = backend()
    run = bench.start(PROMPT, "draft-model", max_new_tokens=110, paused=paused, user="a")
    wait_until(lambda: run.state == "paused" if paused else rounds(run) > 1)
    run.cancel()
    wait_until(lambda: is_sequence_free(bench), seconds=2)
    assert run.state == "cancelled"


def test_a_run_without_followers_frees_its_sequence(backend: Callable[..., Backend]) -> None:
    bench = backend(max_sequences=1)
    bench.load()
    left = bench.start(PROMPT, "autoregressive", max_new_tokens=100, paused=True, user="a", lease_s=0.5)
    also_left = bench.start(PROMPT, "autoregressive", user="a", lease_s=0.5)  # still in the queue
    followed = bench.start(PROMPT, "autoregressive", max_new_tokens=2, user="b", lease_s=0.5)
    wait_until(lambda: followed.since(0)["state"] == "finished")  # polling renews the lease
    assert left.state == also_left.state == "cancelled"
    assert "follow" in left.message
    assert left.trace is not None
    assert [run.since(0)["footer"]["reason"] for run in (left, also_left)] == ["lease", "lease"], (
        "the reason is the lease, not a cancel"
    )


def test_a_run_that_is_followed_keeps_its_lease(backend: Callable[..., Backend]) -> None:
    bench = backend()
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=3, paused=True, lease_s=0.5)
    end = time.monotonic() + 1.2
    wait_until(lambda: run.since(0)["state"] != "cancelled" and time.monotonic() > end)
    run.resume()
    assert run.wait(120).footer.reason == "length"


def test_an_endless_pause_does_not_block_a_sequence(backend: Callable[..., Backend]) -> None:
    bench = backend(limits=Limits(paused_s=0.3))
    run = bench.start(PROMPT, "autoregressive", paused=True, user="a")
    mine = bench.start(PROMPT, "autoregressive", paused=True)  # the only user of a private backend has no time limit
    wait_until(lambda: run.state == "cancelled", seconds=5)
    assert "paused" in run.message
    assert run.since(0)["footer"]["reason"] == "limit"
    assert mine.state == "paused"


# -- a failing run does not affect others ------------------------------------------------------------------------------


def raise_memory_error() -> None:
    raise MemoryError


def raise_bug() -> None:
    raise KeyError("a bug in a drafter")


@pytest.fixture
def after_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Return a function that makes prompt lookup fail in its n-th round."""
    propose = NGram.propose_one

    def arm(n: int, fail: Callable[[], None]) -> None:
        def propose_one(self: NGram, row: Any, plan: Any) -> Any:
            if len(row.trace.rounds) == n:
                fail()
            return propose(self, row, plan)

        monkeypatch.setattr(NGram, "propose_one", propose_one)

    return arm


@pytest.mark.parametrize("fail", [raise_cpu_out_of_memory, raise_cuda_out_of_memory, raise_memory_error])
def test_out_of_memory_ends_one_run_and_reports_the_length_that_fits(
    backend: Callable[..., Backend], after_rounds: Callable[..., None], fail: Callable[[], None]
) -> None:
    after_rounds(3, fail)
    bench = backend()
    bench.load()
    runs = [
        bench.start(PROMPT, m, max_new_tokens=40, paused=True) for m in ("prompt-lookup", "draft-model", "draft-tree")
    ]
    for run in runs:
        wait_until(lambda run=run: run.state == "paused")
    for run in runs:
        run.resume()
    with pytest.raises(CapacityError, match="out of memory"):
        runs[0].wait(120)
    assert runs[0].trace is not None
    assert len(runs[0].trace.rounds) == 3
    assert f"max_new_tokens={len(runs[0].trace.token_ids)}" in runs[0].message
    assert runs[0].since(0)["footer"]["error"] == runs[0].message
    texts = [run.wait(120).token_ids for run in runs[1:]]
    assert texts == [generate_alone(bench, 40)] * 2
    assert is_sequence_free(bench)


def test_a_bug_in_a_round_ends_one_run_with_its_trace_kept(
    backend: Callable[..., Backend], after_rounds: Callable[..., None]
) -> None:
    after_rounds(2, raise_bug)
    bench = backend()
    broken, other = (bench.start(PROMPT, m, max_new_tokens=30) for m in ("prompt-lookup", "draft-model"))
    assert other.wait(120).token_ids == generate_alone(bench, 30)
    wait_until(lambda: broken.ended)
    assert broken.state == "error"
    assert rounds(broken) == 2
    assert "KeyError" in broken.message


def test_a_failed_engine_is_replaced(backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = backend()
    whole = generate_alone(bench, 20)
    run = bench.start(PROMPT, "draft-model", max_new_tokens=20, paused=True)
    wait_until(lambda: run.state == "paused")
    run.step()
    wait_until(lambda: rounds(run) == 1)

    def broken(self: DraftVerify, *args: object) -> None:
        raise RuntimeError("not in any row")

    with monkeypatch.context() as patch:
        patch.setattr(DraftVerify, "accept", broken)
        run.resume()
        with pytest.raises(WorkbenchError, match="engine failed"):
            run.wait(120)
    assert rounds(run) == 1
    assert run.since(0)["footer"]["text"] == "".join(e.text for e in run.trace.rounds[0].emitted)  # type: ignore[union-attr]
    (loaded,) = bench._pool.targets()
    assert [len(runner.slots) for _, runner in loaded.runners()] == [0, 0]
    assert generate_alone(bench, 20) == whole
    assert bench.health()["status"] == "ok"


def test_nothing_stays_behind(backend: Callable[..., Backend]) -> None:
    before = threading.active_count()
    bench = backend(max_sequences=3)
    for i in range(12):
        run = bench.start(PROMPT, EIGHT[i % 8][0], max_new_tokens=12, user=f"user {i % 4}", lease_s=5)
        if i % 3 == 0:
            run.cancel()
        else:
            run.wait(120)
    wait_until(lambda: is_sequence_free(bench))
    (loaded,) = bench._pool.targets()
    assert [len(runner.slots) for _, runner in loaded.runners()] == [0, 0]
    assert len(loaded.queue) == 0
    bench.close()
    wait_until(lambda: threading.active_count() <= before, seconds=10)


def test_cancelling_a_run_that_loads_ends_it_at_once(backend: Callable[..., Backend]) -> None:
    bench = backend()
    run = bench.start(PROMPT, "autoregressive")
    run.cancel()
    assert run.state == "cancelled"
    with pytest.raises(WorkbenchError, match="cancelled before it started"):
        run.wait(1)


def test_the_bundled_texts_are_loaded_before_the_run_reaches_the_engine(
    backend: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizing and sorting them takes half a second, during which the engine would run no round."""
    bench = backend()
    models, readers = bench.load(), list[str]()

    def read(*_: Any) -> Any:
        readers.append(threading.current_thread().name)
        return model_helpers.random_datastore(models)

    monkeypatch.setattr(datastore_builder, "own_texts", read)
    bench.start(PROMPT, "rest", max_new_tokens=3).wait(60)
    assert readers
    models.shared.pop("datastore")
    run = bench.start(PROMPT, "autoregressive", max_new_tokens=30, paused=True)
    wait_until(lambda: run.state == "paused")
    run.change("rest")
    run.resume()
    assert any(r.method == "rest" for r in run.wait(60).rounds)
    assert len(readers) == 2
    assert "workbench-engine" not in readers
