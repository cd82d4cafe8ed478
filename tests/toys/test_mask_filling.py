"""A decoder without draft and verification, from one file: it runs, records, replays, changes and ends as others do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import model_helpers
import pytest

from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.decoders import Method
from workbench.engine import Engine, Models, Request
from workbench.engine.request import CANCELLED, ENDED, FINISHED
from workbench.engine.request_options import RequestOptions
from workbench.interop import speculative
from workbench.methods import registry
from workbench.trace import export, metrics
from workbench.trace.events import Trace, list_tentative_tokens
from workbench.trace.tokens import PLAIN

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 24


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


@pytest.fixture(scope="module")
def toy(load_toy: Callable[[str], Method]) -> Method:
    return load_toy("mask_filling")


@pytest.fixture(scope="module")
def plain(models: Models) -> list[int]:
    return model_helpers.hf_greedy(models.target.model, PROMPT, N)


def make_request(method: Any, **more: Any) -> Request:
    return Request(PROMPT, method, **{"max_new_tokens": N, "stop_at_eos": False, **more})


def check_trace(trace: Trace) -> Trace:
    """Check a trace of any decoder: positions follow from its rounds, and it is read back unchanged."""
    begin = len(trace.header.prompt_tokens)
    for n, r in enumerate(trace.rounds, 1):
        end = begin + sum(len(before.emitted) for before in trace.rounds[:n])
        stands = list_tentative_tokens(trace.rounds[:n])
        assert all(placed.position >= end for placed in stands), "emitted tokens are no longer tentative"
        before = {placed.position for placed in list_tentative_tokens(trace.rounds[: n - 1])}
        assert set(r.revoked) <= before, "only positions that were set can be revoked"
    assert export.read_json_lines(export.to_json_lines(trace)) == trace
    assert export.read_parquet(export.to_parquet(trace)) == trace
    return trace


@pytest.mark.parametrize("values", [{}, {"places": 2, "sure": 1.0}, {"places": 17, "sure": 0.0}], ids=str)
def test_text_is_the_targets_own(models: Models, toy: Method, plain: list[int], values: dict[str, Any]) -> None:
    trace = check_trace(Engine(models).generate(make_request(toy.with_params(**values))))
    assert trace.token_ids == plain
    assert list_tentative_tokens(trace.rounds) == []
    assert {e.kind for r in trace.rounds for e in r.emitted} == {PLAIN}
    assert metrics.acceptance_rate(trace.rounds) is None, "nothing is drafted"
    assert not trace.footer.warnings, "and this gives no warning"


def test_positions_are_set_out_of_order_and_revoked(models: Models, toy: Method) -> None:
    trace = Engine(models).generate(make_request(toy.with_params(places=12, sure=0.08)))
    stretches = [[p.position for p in list_tentative_tokens(trace.rounds[:n])] for n in range(1, len(trace.rounds))]
    assert any(s and s[-1] - s[0] >= len(s) for s in stretches), "there is a masked position between two that are set"
    assert sum(len(r.revoked) for r in trace.rounds) > 0


def test_sampled_text_depends_on_the_seed_and_not_on_the_parameters(models: Models, toy: Method) -> None:
    warm = SamplingParams(temperature=0.8, top_k=20)
    texts = [
        Engine(models).generate(make_request(toy.with_params(**v), sampling=warm, seed=5)).token_ids
        for v in ({"places": 2}, {"places": 13, "sure": 0.0})
    ]
    assert texts[0] == texts[1] != Engine(models).generate(make_request(toy, sampling=warm, seed=6)).token_ids


def test_it_runs_in_a_batch_with_switches_and_cancellation(models: Models, toy: Method, plain: list[int]) -> None:
    engine, draft_model = Engine(models), registry.get("draft-model")
    filling = toy.with_params(places=12, sure=0.0)
    stays, leaves, comes, ends = (engine.submit(make_request(m)) for m in (filling, filling, draft_model, filling))
    while leaves.n_new < 3 or comes.n_new < 3 or ends.n_new < 3:
        engine.step()
    leaves.change(method=draft_model)
    comes.change(method=toy, params={"places": 12, "sure": 0.0})
    ends.cancel()
    while any(row.status not in ENDED for row in (stays, leaves, comes, ends)):
        engine.step()
    traces = [check_trace(row.trace) for row in (stays, leaves, comes, ends) if row.trace is not None]
    assert [row.status for row in (stays, leaves, comes, ends)] == [FINISHED] * 3 + [CANCELLED]
    assert [trace.token_ids for trace in traces[:3]] == [plain] * 3
    assert traces[3].token_ids == plain[: ends.n_new]
    switch = next(r for r in traces[1].rounds if r.changes)
    assert switch.revoked, "tentative tokens are revoked in the first round of the new method"
    assert {r.method for r in traces[1].rounds} == {r.method for r in traces[2].rounds} == {toy.name, "draft-model"}
    assert not models.target.slots
    assert models.drafter is not None
    assert not models.drafter.slots


def test_unsupported_options_are_refused_by_name(models: Models, toy: Method, plain: list[int]) -> None:
    engine = Engine(models)
    with pytest.raises(MethodUnavailableError, match=r"Mask filling.*log-probabilities.*repetition penalty"):
        engine.submit(
            make_request(toy, options=RequestOptions(logprobs=2), sampling=SamplingParams(repetition_penalty=1.2))
        )
    row = engine.submit(make_request(toy))
    while row.n_new < 3:
        engine.step()
    row.change(sampling=SamplingParams(repetition_penalty=1.2))
    while row.status not in ENDED:
        engine.step()
    assert row.trace is not None
    assert "repetition penalty" in row.trace.footer.warnings[0]
    assert row.trace.token_ids == plain


def test_generate_refuses_it_by_name(toy: Method) -> None:
    with pytest.raises(MethodUnavailableError, match=r"Mask filling.*one by one"):
        speculative(toy.name)
    assert "draft-model" in repr(speculative("draft-model"))


def test_no_tentative_tokens_remain_at_the_end_of_a_text(models: Models, toy: Method, plain: list[int]) -> None:
    stop = RequestOptions(stop_tokens=(plain[9],))
    trace = check_trace(Engine(models).generate(make_request(toy.with_params(places=17, sure=0.0), options=stop)))
    assert trace.footer.reason == "stop-token"
    assert trace.token_ids == plain[: plain.index(plain[9]) + 1]
    assert list_tentative_tokens(trace.rounds) == []
