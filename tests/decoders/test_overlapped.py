"""The overlapped schedule: exact, also under shuffled delays; both lanes in the trace; changes of the method."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import model_helpers
import pytest

from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.drafter_lifetime import release_drafter
from workbench.decoders.draft_verify.round_state import RoundState
from workbench.decoders.overlapped.decoder import DISCARDED, USED, AheadDraft, OverlappedDecoder, draft_ahead
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.trace import export
from workbench.trace.events import Phase, Round, Trace

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 40
AMUSD = registry.get("amusd")


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A drafter of medium quality."""
    return model_helpers.make_models("llama", noise=0.05, device=device)


def make_request(method: Any, **more: Any) -> Request:
    return Request(PROMPT, method, max_new_tokens=N, stop_at_eos=False, **more)


def phase(r: Round, name: str, lane: str) -> Phase | None:
    return next((p for p in r.phases if (p.name, p.lane) == (name, lane)), None)


def total(trace: Trace, name: str) -> float:
    return sum(r.signals.get(name, 0) for r in trace.rounds)


def test_greedy_text_is_the_targets_own_and_both_lanes_are_in_the_trace(models: Models) -> None:
    trace = Engine(models).generate(make_request(AMUSD))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert total(trace, USED) > 0
    assert total(trace, DISCARDED) > 0, "wasted drafts are counted"
    overlapped = 0
    for r in trace.rounds:
        ahead, verify = phase(r, "draft", "drafter"), phase(r, "verify", "device")
        assert verify is not None
        if ahead is not None:
            assert verify.start_s <= ahead.start_s <= verify.end_s
            overlapped += 1
    assert overlapped > 0
    assert export.read_json_lines(export.to_json_lines(trace)) == trace


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_draft_with_a_correct_assumption_is_used_in_the_next_round(models: Models, temperature: float) -> None:
    """A drafter equal to the target: with greedy decoding every assumption is correct and no round drafts again."""
    sampling = SamplingParams(temperature=temperature)
    shared_copy = model_helpers.make_models("llama", noise=0.0, device=str(models.target.device))
    trace = Engine(shared_copy).generate(make_request(AMUSD, sampling=sampling, seed=3))
    assert total(trace, USED) > 0
    if temperature == 0:
        assert total(trace, DISCARDED) == 0
        assert trace.token_ids == model_helpers.hf_greedy(shared_copy.target.model, PROMPT, N)
    assert all(r.nodes.status.count("rejected") == 0 for r in trace.rounds), (
        "the draft distributions still belong to the drafts"
    )


def test_sequences_in_a_batch_can_switch_to_it_and_away(models: Models) -> None:
    engine, plain = Engine(models), model_helpers.hf_greedy(models.target.model, PROMPT, N)
    rows = [
        engine.submit(make_request(m))
        for m in (AMUSD, AMUSD, registry.get("draft-model"), registry.get("autoregressive"))
    ]
    while any(row.n_new < 3 for row in rows):
        engine.step()
    rows[1].change(method=registry.get("prompt-lookup"))
    rows[2].change(method=AMUSD)
    while any(row.status not in ENDED for row in rows):
        engine.step()
    assert [row.trace.token_ids for row in rows if row.trace is not None] == [plain] * 4
    assert not models.target.slots
    assert models.drafter is not None
    assert not models.drafter.slots


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_text_does_not_depend_on_the_order_of_the_threads(
    models: Models, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random delays before and after each thread's work change no token. (Sampled text differs from a run without a
    second thread, as drafts then use other random numbers; its distribution is tested in `test_exact_sampling.py`.)"""

    def generate() -> list[list[int]]:
        requests = [make_request(AMUSD, sampling=SamplingParams(temperature), seed=seed) for seed in range(3)]
        return [trace.token_ids for trace in Engine(models).generate_all(requests)]

    undelayed = generate()
    delays, threads = random.Random(5), set[str]()
    for name in ("_draft_ahead", "together"):
        whole = getattr(OverlappedDecoder, name)

        def delayed(self: OverlappedDecoder, *args: Any, whole: Any = whole, **named: Any) -> None:
            threads.add(threading.current_thread().name)
            time.sleep(delays.choice((0, 0, 0.002, 0.006)))
            whole(self, *args, **named)
            time.sleep(delays.choice((0, 0.002)))

        monkeypatch.setattr(OverlappedDecoder, name, delayed)
    for _ in range(3):
        assert generate() == undelayed
    assert len(threads) > 1, "the drafter has a thread of its own"


def test_a_drafter_that_fails_ahead_costs_only_its_draft(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: Any) -> None:
        raise RuntimeError("no draft")

    monkeypatch.setattr("workbench.decoders.overlapped.decoder.draft_ahead", broken)
    trace = Engine(models).generate(make_request(AMUSD))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert total(trace, USED) == 0


def test_a_sequence_that_fails_keeps_its_cache_until_its_draft_is_made(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, is_released = list[str](), threading.Event()

    def slow(r: RoundState) -> AheadDraft:
        is_released.wait(0.5)  # a close that does not wait comes first
        events.append("drafted")
        return draft_ahead(r)

    def fail(*args: Any) -> None:
        raise RuntimeError("no forward")

    def release(sequence: Any) -> None:
        events.append("released")
        is_released.set()
        release_drafter(sequence)

    engine = Engine(models)
    sequence = engine.submit(make_request(AMUSD))
    while sequence.n_new < 2:
        engine.step()
    monkeypatch.setattr("workbench.decoders.overlapped.decoder.draft_ahead", slow)
    monkeypatch.setattr("workbench.decoders.draft_verify.decoder.run_target", fail)
    monkeypatch.setattr("workbench.decoders.draft_verify.decoder.release_drafter", release)
    while sequence.status not in ENDED:
        engine.step()
    assert "no forward" in str(sequence.error)
    assert events == ["drafted", "released"]
    assert models.drafter is not None
    assert not models.drafter.slots
