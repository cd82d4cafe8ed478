"""Penalties, bias, minimum lengths, stop tokens and log-probabilities with speculation equal those of a plain loop."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.request_options import RequestOptions
from workbench.methods import registry
from workbench.trace.events import Trace

SIZE = 8
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1]
METHODS = ("autoregressive", "prompt-lookup", "draft-model", "draft-tree")
OPTIONS = [
    RequestOptions(presence_penalty=0.9),
    RequestOptions(frequency_penalty=0.4),
    RequestOptions(presence_penalty=-0.7, frequency_penalty=1.1, logit_bias=((2, -100.0), (5, 1.5))),
    RequestOptions(min_tokens=9, stop_tokens=(4, 6), frequency_penalty=0.3),
]


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(SIZE)


def penalised_logits(
    logits: torch.Tensor, new: list[int], logit_options: RequestOptions, ends: tuple[int, ...]
) -> torch.Tensor:
    """Apply OpenAI's formula token by token: mu[j] − c[j]·frequency − (c[j] > 0)·presence + bias[j]."""
    out = logits.clone()
    for token, count in Counter(new).items():
        out[token] -= count * logit_options.frequency_penalty + logit_options.presence_penalty
    for token, bias in logit_options.logit_bias:
        out[token] += bias
    if len(new) < logit_options.min_tokens:
        out[list(ends)] = -math.inf
    return out


def plain(models: Models, logit_options: RequestOptions, n: int) -> list[int]:
    """Decode greedily without a cache, drafts or an engine."""
    ask, new = model_helpers.next_logits_function(models.target.model), []
    ends = (*logit_options.stop_tokens, *models.eos)
    while len(new) < n and not (new and new[-1] in logit_options.stop_tokens):
        new.append(int(penalised_logits(ask([*PROMPT, *new]), new, logit_options, ends).argmax()))
    return new


def run(models: Models, method: str, logit_options: RequestOptions, n: int = 14, **more: Any) -> tuple[Trace, Request]:
    request = Request(PROMPT, registry.get(method), max_new_tokens=n, options=logit_options, stop_at_eos=False, **more)
    return Engine(models).generate(request), request


@pytest.mark.parametrize("logit_options", OPTIONS, ids=str)
def test_greedy_text_equals_the_plain_loops_with_every_method(models: Models, logit_options: RequestOptions) -> None:
    wanted = plain(models, logit_options, 14)
    assert wanted != plain(models, RequestOptions(stop_tokens=logit_options.stop_tokens), 14), (
        "the options have no effect here"
    )
    for method in METHODS:
        trace, _ = run(models, method, logit_options)
        assert trace.token_ids == wanted, method


def test_speculation_continues_with_penalties(models: Models) -> None:
    """Every node has its own token counts; with the root's counts, other tokens or none would be accepted."""
    trace, _ = run(models, "draft-tree", OPTIONS[1])
    assert max(len(r.path) for r in trace.rounds) > 1
    assert len({r.nodes.parents[-1] for r in trace.rounds if r.nodes.parents}) > 1


@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "draft-tree-sampled", "prompt-lookup"])
@pytest.mark.parametrize("logit_options", OPTIONS[2:], ids=str)
def test_node_probabilities_equal_those_of_a_plain_loop(
    models: Models, method: str, logit_options: RequestOptions
) -> None:
    """Acceptance rules and residual distributions use each node's own history. That rules preserve the given
    distribution is tested in tests/core/test_rejection.py.
    """
    ask, n_nodes = model_helpers.next_logits_function(models.target.model), 0
    before: list[int] = []
    ends = (*logit_options.stop_tokens, *models.eos)
    trace, _ = run(models, method, logit_options, 10, sampling=SamplingParams(temperature=1.0), seed=3)

    def p_of(new: list[int], token: int) -> float:
        return float(penalised_logits(ask([*PROMPT, *new]), new, logit_options, ends).softmax(0)[token])

    for r in trace.rounds:
        for i, (token, p) in enumerate(zip(r.nodes.tokens, r.nodes.p, strict=True)):
            way = [r.nodes.tokens[j] for j in model_helpers.path_to(r.nodes.parents, i)][:-1]
            assert p == pytest.approx(p_of([*before, *way], token), abs=1e-9)
            n_nodes += 1
        for token in r.emitted:
            assert token.p == pytest.approx(p_of(before, token.token), abs=1e-9)
            before.append(token.token)
    assert n_nodes > 2


def test_change_of_sampling_during_a_run_keeps_the_penalties(models: Models) -> None:
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, registry.get("draft-model"), max_new_tokens=14, options=OPTIONS[2]))
    while not row.n_new:
        engine.step()
    row.change(sampling=SamplingParams(top_k=3))
    while not engine.is_idle:
        engine.step()
    assert row.committed[len(PROMPT) :] == plain(models, OPTIONS[2], 14)


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_token_ends_the_text_before_it(models: Models, method: str) -> None:
    free, _ = run(models, method, RequestOptions())
    stop = free.token_ids[6]
    at = free.token_ids.index(stop)
    trace, _ = run(models, method, RequestOptions(stop_tokens=(stop,)))
    assert trace.footer.reason == "stop-token"
    assert trace.token_ids == free.token_ids[: at + 1]
    assert trace.text == "".join(models.tokenizer.decode([token]) for token in free.token_ids[:at])


def test_stop_strings_do_not_count_before_the_minimum_length(models: Models) -> None:
    free, _ = run(models, "draft-model", RequestOptions())
    stop = free.text[1]
    trace, _ = run(models, "draft-model", RequestOptions(min_tokens=5), stop=(stop,))
    later = free.text.find(stop, 5)
    assert trace.text == (free.text[:later] if later >= 0 else free.text)
    assert run(models, "draft-model", RequestOptions(), stop=(stop,))[0].text == free.text[: free.text.index(stop)]


@pytest.mark.parametrize("method", METHODS)
def test_log_probabilities_are_the_targets_own(models: Models, method: str) -> None:
    """Before penalties and temperature, for prompt and text, compared with whole forward passes without a cache."""
    logit_options = RequestOptions(logprobs=3, prompt_logprobs=2, frequency_penalty=0.4)
    trace, request = run(models, method, logit_options, sampling=SamplingParams(temperature=0.7, top_k=3), seed=5)
    ask = model_helpers.next_logits_function(models.target.model)
    everything = [*PROMPT, *trace.token_ids]
    scores = [*request.prompt_logprobs, *request.logprobs]
    assert [one.token for one in scores] == everything[1:]
    for i, one in enumerate(scores, 1):
        probs = ask(everything[:i]).log_softmax(0)
        n_top = 2 if i < len(PROMPT) else 3
        assert one.logprob == pytest.approx(float(probs[one.token]), abs=1e-9)
        assert [top.token for top in one.top] == probs.topk(n_top).indices.tolist()
        assert [top.logprob for top in one.top] == pytest.approx(probs.topk(n_top).values.tolist(), abs=1e-9)
        assert one.rank == 1 + int((probs > probs[one.token]).sum())
        assert [top.rank for top in one.top] == list(range(1, n_top + 1))
        assert one.data.decode() == models.tokenizer.decode([one.token])


def test_long_prompt_scored_in_chunks_has_the_same_scores(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def scores() -> list[Any]:
        logit_options = RequestOptions(prompt_logprobs=1)
        request = Request(PROMPT * 3, registry.get("autoregressive"), max_new_tokens=2, options=logit_options)
        Engine(models).generate(request)
        return request.prompt_logprobs

    whole = scores()
    monkeypatch.setattr("workbench.engine.request_options.CHUNK", 4)
    parts = scores()
    assert [one.token for one in parts] == (PROMPT * 3)[1:]
    assert [one.logprob for one in parts] == pytest.approx([one.logprob for one in whole], abs=1e-9)


def test_prompt_is_truncated_to_its_last_tokens(models: Models) -> None:
    trace, _ = run(models, "draft-model", RequestOptions(truncate_prompt=4))
    assert trace.header.prompt_tokens == PROMPT[-4:]


def test_text_of_a_truncated_prompt_is_that_of_its_tokens(models: Models) -> None:
    header = run(models, "draft-model", RequestOptions(truncate_prompt=4))[0].header
    assert header.prompt == models.tokenizer.decode(PROMPT[-4:])


def test_request_that_runs_again_has_the_scores_of_one_run(models: Models) -> None:
    logit_options = RequestOptions(logprobs=0, prompt_logprobs=0)
    trace, request = run(models, "draft-model", logit_options)
    first = [*request.logprobs], [*request.prompt_logprobs]
    assert len(first[0]) == len(trace.token_ids)
    Engine(models).generate(request)
    assert (request.logprobs, request.prompt_logprobs) == first


def test_minimum_length_forbids_eos_only_where_it_ends_the_text(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, _ = run(models, "autoregressive", RequestOptions())
    monkeypatch.setattr(Models, "eos", property(lambda _: frozenset({free.token_ids[2]})))
    for stops in (True, False):
        request = Request(
            PROMPT,
            registry.get("draft-model"),
            max_new_tokens=14,
            options=RequestOptions(min_tokens=6),
            stop_at_eos=stops,
        )
        ids = Engine(models).generate(request).token_ids
        assert (free.token_ids[2] in ids[:6]) is not stops
        assert (ids == free.token_ids) is not stops


def test_invalid_token_ids_are_refused(models: Models) -> None:
    invalid_options = {
        "stop_token_ids": RequestOptions(stop_tokens=(SIZE,)),
        "logit_bias": RequestOptions(logit_bias=((-1, 1.0),)),
    }
    for name, logit_options in invalid_options.items():
        with pytest.raises(ParameterError, match=name):
            run(models, "autoregressive", logit_options)
