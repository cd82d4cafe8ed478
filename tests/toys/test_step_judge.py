"""A verifier that revokes accepted tokens, from one file: revoked tokens never appear in any text."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import model_helpers
import pytest

from toys.test_mask_filling import check_trace
from workbench.core.sampling import SamplingParams
from workbench.decoders import Method
from workbench.decoders.draft_verify import tentative_tokens
from workbench.decoders.draft_verify.parts import TentativeDecision
from workbench.decoders.draft_verify.tentative_tokens import TentativeToken
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import CANCELLED, ENDED, FINISHED
from workbench.engine.request_options import RequestOptions
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Round, list_tentative_tokens

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 40
EASY, SEVERE = {"easy": 0.0, "enough": 0.0}, {"easy": 0.0, "enough": 1.0}
"""All drafts are accepted; every step is generated twice, the second time with the target's own tokens."""


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


@pytest.fixture(scope="module")
def toy(load_toy: Callable[[str], Method]) -> Method:
    return load_toy("step_judge")


@pytest.fixture(scope="module")
def plain(models: Models) -> list[int]:
    return model_helpers.hf_greedy(models.target.model, PROMPT, N)


def make_request(method: Any, **more: Any) -> Request:
    return Request(PROMPT, method, **{"max_new_tokens": N, "stop_at_eos": False, **more})


def count_revoked(rounds: list[Round]) -> int:
    return sum(len(r.revoked) for r in rounds)


@pytest.mark.parametrize(
    "drafter", ["draft-model", "draft-tree", "suffix", "token-recycling", "early-exit", "autoregressive"]
)
def test_revoked_step_leaves_no_state_in_cache_or_drafter(
    models: Models, toy: Method, plain: list[int], drafter: str
) -> None:
    """Every step is revoked once and replaced by the target's own tokens, with any drafter."""
    theirs = registry.get(drafter)
    method = replace(toy, drafter=theirs.drafter, policies=theirs.policies, tree_builders=theirs.tree_builders)
    trace = check_trace(Engine(models).generate(make_request(method.with_params(**SEVERE))))
    assert trace.token_ids == plain
    assert count_revoked(trace.rounds) > N // 3
    assert list_tentative_tokens(trace.rounds) == []
    assert [e.position for r in trace.rounds for e in r.emitted] == [*range(len(PROMPT), len(PROMPT) + N)]
    for r in trace.rounds:
        own = [e for e in r.emitted if e.node is not None]
        assert all(r.nodes.tokens[e.node] == e.token for e in own if e.node is not None), (
            "a node belongs to its own round"
        )
        assert (r.bonus is None) == (not r.emitted or r.emitted[-1].node is not None or r.bonus_kind is None)
    assert trace.footer.text == models.tokenizer.decode(plain)


def test_final_tokens_are_emitted_once_and_counted_once(models: Models, toy: Method, plain: list[int]) -> None:
    """Figures count the rounds of both passes over a step, and the tokens of one."""
    easy = check_trace(Engine(models).generate(make_request(toy.with_params(**EASY))))
    assert easy.token_ids != plain, "the drafts were not the target's"
    assert count_revoked(easy.rounds) == 0
    assert len(easy.rounds) == -(-N // 5), "all drafts of 4 tokens were accepted"
    severe = Engine(models).generate(make_request(toy.with_params(**SEVERE)))
    for trace in (easy, severe):
        assert metrics.count_emitted(trace.rounds) == N == len(trace.token_ids)
        assert metrics.tau(trace.rounds) == N / len(trace.rounds)
    assert metrics.acceptance_rate(easy.rounds) == 1.0
    assert len(severe.rounds) > len(easy.rounds)


def test_other_sequences_of_the_batch_are_not_affected(models: Models, toy: Method, plain: list[int]) -> None:
    engine, severe, draft_model = Engine(models), toy.with_params(**SEVERE), registry.get("draft-model")
    rows = [engine.submit(make_request(m)) for m in (severe, draft_model, toy.with_params(**EASY), severe)]
    while any(row.status not in ENDED for row in rows):
        engine.step()
    traces = [check_trace(row.trace) for row in rows if row.trace is not None]
    assert [traces[i].token_ids for i in (0, 1, 3)] == [plain] * 3
    assert traces[2].token_ids == Engine(models).generate(make_request(toy.with_params(**EASY))).token_ids
    assert models.drafter is not None
    assert not models.target.slots
    assert not models.drafter.slots


def tentative(row: Sequence) -> list[TentativeToken]:
    """Return a sequence's tentative tokens; none before its prefill ends."""
    return row.state.tentative if row.state is not None else []


def test_run_cancelled_within_a_step_has_the_text_before_it(models: Models, toy: Method, plain: list[int]) -> None:
    engine, seen = Engine(models), []
    row = engine.submit(make_request(toy.with_params(step=12, **SEVERE), on_round=lambda r: seen.extend(r.emitted)))
    while not seen or not tentative(row):
        engine.step()
    row.cancel()
    engine.step()
    assert row.status == CANCELLED
    assert row.trace is not None
    assert len(list_tentative_tokens(row.trace.rounds)) > 0
    assert row.trace.token_ids == [e.token for e in seen] == plain[: len(seen)]
    assert row.trace.footer.text == models.tokenizer.decode(plain[: len(seen)])
    assert not models.target.slots


def test_stream_contains_no_revoked_token(models: Models, toy: Method, plain: list[int]) -> None:
    """A stream gets each token once, with text and log-probabilities, at most a step late."""
    got, scores = list[int](), list[int]()
    request = make_request(toy.with_params(**SEVERE), options=RequestOptions(logprobs=1))

    def follow(r: Round) -> None:
        got.extend(e.token for e in r.emitted)
        scores.append(len(request.logprobs))
        assert scores[-1] == len(got), "all scored tokens have been sent"

    request.on_round = follow
    trace = Engine(models).generate(request)
    assert got == plain
    assert [s.token for s in request.logprobs] == plain
    assert trace.text == "".join(e.text for r in trace.rounds for e in r.emitted)


@pytest.mark.parametrize("at", [3, 9, 17])
def test_stop_string_counts_only_in_a_final_step(models: Models, toy: Method, plain: list[int], at: int) -> None:
    """In a revoked step it has no effect; in a final step it cuts the text at the same place as with any verifier."""
    text = models.tokenizer.decode(plain)
    begin = len(models.tokenizer.decode(plain[:at]))
    stop = text[begin : begin + 2]
    whole = Engine(models).generate(make_request(registry.get("draft-model"), stop=(stop,)))
    trace = check_trace(Engine(models).generate(make_request(toy.with_params(**SEVERE), stop=(stop,))))
    assert whole.footer.reason == trace.footer.reason == "stop-string"
    assert trace.footer.text == whole.footer.text
    assert trace.token_ids == whole.token_ids
    assert list_tentative_tokens(trace.rounds) == []


def test_stop_token_is_judged_with_its_step(models: Models, toy: Method, plain: list[int]) -> None:
    stop = RequestOptions(stop_tokens=(plain[9],))
    trace = check_trace(Engine(models).generate(make_request(toy.with_params(**SEVERE), options=stop)))
    assert trace.footer.reason == "stop-token"
    assert trace.token_ids == plain[: plain.index(plain[9]) + 1]
    assert list_tentative_tokens(trace.rounds) == []


def test_another_verifier_in_the_middle_of_a_step(models: Models, toy: Method, plain: list[int]) -> None:
    """After a change of verifier, its tentative tokens become final and the text continues after them."""
    strict = toy.with_params(step=12, easy=1.0, enough=0.0)
    for method in ("draft-model", "autoregressive"):
        engine = Engine(models)
        row = engine.submit(make_request(strict))
        while not tentative(row):
            engine.step()
        held = [h.token.token for h in tentative(row)]
        row.change(method=registry.get(method))
        engine.step()
        assert row.trace is not None
        assert [e.token for e in row.trace.rounds[-1].emitted][: len(held)] == held
        assert not tentative(row)
        while row.status not in ENDED:
            engine.step()
        assert check_trace(row.trace).token_ids == plain


def test_change_to_another_decoder_revokes_tentative_tokens(
    models: Models, toy: Method, load_toy: Callable[[str], Method], plain: list[int]
) -> None:
    engine = Engine(models)
    row = engine.submit(make_request(toy.with_params(step=12, easy=0.0, enough=0.0)))
    while not tentative(row):
        engine.step()
    row.change(method=load_toy("mask_filling"))
    while row.status not in ENDED:
        engine.step()
    assert row.status == FINISHED
    assert row.trace is not None
    assert check_trace(row.trace).token_ids == plain, "no tentative token remained"
    assert count_revoked(row.trace.rounds) > 0


def test_number_of_revocations_of_a_step_is_limited(models: Models, toy: Method) -> None:
    verifier = toy.verifier

    class Never(type(verifier)):
        def decide_tentative(self, row: Any, held: Any, ends: bool) -> TentativeDecision:
            return TentativeDecision(n_revoked=len(held))

    method = replace(toy, verifier=Never())
    trace = check_trace(Engine(models).generate(make_request(method.with_params())))
    assert trace.footer.reason == "length"
    assert len(trace.token_ids) == N
    runs = [len(list(g)) for empty, g in itertools.groupby(not r.emitted for r in trace.rounds) if empty]
    assert max(runs) == tentative_tokens.MAX_RETRACTIONS


def test_tokens_beyond_the_tentative_limit_become_final(models: Models, toy: Method, plain: list[int]) -> None:
    class Window(type(toy.verifier)):
        def max_tentative(self) -> int:
            return 3

        def decide_tentative(self, row: Any, held: Any, ends: bool) -> TentativeDecision:
            return TentativeDecision()

    method = replace(toy, verifier=Window())
    trace = check_trace(Engine(models).generate(make_request(method.with_params(easy=1.0))))
    assert trace.token_ids == plain
    assert all(len(list_tentative_tokens(trace.rounds[:n])) <= 3 for n in range(len(trace.rounds) + 1))
    assert any(len(list_tentative_tokens(trace.rounds[:n])) == 3 for n in range(len(trace.rounds)))


def test_revoked_step_is_sampled_again_with_other_random_numbers(models: Models, toy: Method) -> None:
    """Without drafts, both passes over a step would use the same random numbers; one seed still gives one text."""
    alone = registry.get("autoregressive")
    method = replace(toy, drafter=alone.drafter, policies=alone.policies).with_params(**SEVERE)
    warm = SamplingParams(temperature=1.0)
    traces = [Engine(models).generate(make_request(method, sampling=warm, seed=seed)) for seed in (5, 5, 6)]
    assert traces[0].token_ids == traces[1].token_ids != traces[2].token_ids
    rounds = traces[0].rounds
    first = next(i for i, r in enumerate(rounds) if r.revoked)
    was = [p.token for p in list_tentative_tokens(rounds[:first])]
    assert was != traces[0].token_ids[: len(was)]
