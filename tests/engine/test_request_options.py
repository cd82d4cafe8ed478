"""Penalties, bias, least lengths, stop tokens and log-probabilities, under speculation: as a plain loop has them."""

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


def penalised_logits(logits: torch.Tensor, new: list[int], wish: RequestOptions, ends: tuple[int, ...]) -> torch.Tensor:
    """OpenAI's formula, token by token: mu[j] − c[j]·frequency − (c[j] > 0)·presence + bias[j]."""
    out = logits.clone()
    for token, count in Counter(new).items():
        out[token] -= count * wish.frequency_penalty + wish.presence_penalty
    for token, bias in wish.logit_bias:
        out[token] += bias
    if len(new) < wish.min_tokens:
        out[list(ends)] = -math.inf
    return out


def plain(models: Models, wish: RequestOptions, n: int) -> list[int]:
    """Greedy decoding without a cache, a draft or an engine."""
    ask, new = model_helpers.next_logits_function(models.target.model), []
    ends = (*wish.stop_tokens, *models.eos)
    while len(new) < n and not (new and new[-1] in wish.stop_tokens):
        new.append(int(penalised_logits(ask([*PROMPT, *new]), new, wish, ends).argmax()))
    return new


def run(models: Models, method: str, wish: RequestOptions, n: int = 14, **more: Any) -> tuple[Trace, Request]:
    request = Request(PROMPT, registry.get(method), max_new_tokens=n, options=wish, stop_at_eos=False, **more)
    return Engine(models).generate(request), request


@pytest.mark.parametrize("wish", OPTIONS, ids=str)
def test_greedy_text_is_the_plain_loops_under_every_method(models: Models, wish: RequestOptions) -> None:
    wanted = plain(models, wish, 14)
    assert wanted != plain(models, RequestOptions(stop_tokens=wish.stop_tokens), 14), "the wish changes nothing here"
    for method in METHODS:
        trace, _ = run(models, method, wish)
        assert trace.token_ids == wanted, method


def test_speculation_goes_on_under_penalties(models: Models) -> None:
    """Every node has its own counts; a tree that shared the root's would accept another text, or nothing."""
    trace, _ = run(models, "draft-tree", OPTIONS[1])
    assert max(len(r.path) for r in trace.rounds) > 1
    assert len({r.nodes.parents[-1] for r in trace.rounds if r.nodes.parents}) > 1


@pytest.mark.parametrize("method", ["draft-model", "draft-tree", "draft-tree-sampled", "prompt-lookup"])
@pytest.mark.parametrize("wish", OPTIONS[2:], ids=str)
def test_node_probabilities_equal_those_of_a_plain_loop(models: Models, method: str, wish: RequestOptions) -> None:
    """What the rules of acceptance read, and what is drawn from after a rejection: each from its own history. That the
    rules keep the law they are given is tested, to the last digit, in tests/core/test_rejection.py."""
    ask, n_nodes = model_helpers.next_logits_function(models.target.model), 0
    before: list[int] = []
    ends = (*wish.stop_tokens, *models.eos)
    trace, _ = run(models, method, wish, 10, sampling=SamplingParams(temperature=1.0), seed=3)

    def p_of(new: list[int], token: int) -> float:
        return float(penalised_logits(ask([*PROMPT, *new]), new, wish, ends).softmax(0)[token])

    for r in trace.rounds:
        for i, (token, p) in enumerate(zip(r.nodes.tokens, r.nodes.p, strict=True)):
            way = [r.nodes.tokens[j] for j in model_helpers.path_to(r.nodes.parents, i)][:-1]
            assert p == pytest.approx(p_of([*before, *way], token), abs=1e-9)
            n_nodes += 1
        for token in r.emitted:
            assert token.p == pytest.approx(p_of(before, token.token), abs=1e-9)
            before.append(token.token)
    assert n_nodes > 2


def test_a_change_of_sampling_in_mid_run_keeps_the_penalties(models: Models) -> None:
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


def test_stop_strings_do_not_count_before_the_least_length(models: Models) -> None:
    free, _ = run(models, "draft-model", RequestOptions())
    stop = free.text[1]
    trace, _ = run(models, "draft-model", RequestOptions(min_tokens=5), stop=(stop,))
    later = free.text.find(stop, 5)
    assert trace.text == (free.text[:later] if later >= 0 else free.text)
    assert run(models, "draft-model", RequestOptions(), stop=(stop,))[0].text == free.text[: free.text.index(stop)]


@pytest.mark.parametrize("method", METHODS)
def test_log_probabilities_are_the_targets_own(models: Models, method: str) -> None:
    """Before penalties and temperature, for prompt and text, by whole forwards without a cache."""
    wish = RequestOptions(logprobs=3, prompt_logprobs=2, frequency_penalty=0.4)
    trace, request = run(models, method, wish, sampling=SamplingParams(temperature=0.7, top_k=3), seed=5)
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


def test_a_long_prompt_is_scored_in_pieces_as_at_once(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def scores() -> list[Any]:
        wish = RequestOptions(prompt_logprobs=1)
        request = Request(PROMPT * 3, registry.get("autoregressive"), max_new_tokens=2, options=wish)
        Engine(models).generate(request)
        return request.prompt_logprobs

    whole = scores()
    monkeypatch.setattr("workbench.engine.request_options.CHUNK", 4)
    parts = scores()
    assert [one.token for one in parts] == (PROMPT * 3)[1:]
    assert [one.logprob for one in parts] == pytest.approx([one.logprob for one in whole], abs=1e-9)


def test_a_prompt_is_cut_to_its_last_tokens(models: Models) -> None:
    trace, _ = run(models, "draft-model", RequestOptions(truncate_prompt=4))
    assert trace.header.prompt_tokens == PROMPT[-4:]


def test_the_text_of_a_prompt_that_is_cut_is_that_of_its_tokens(models: Models) -> None:
    header = run(models, "draft-model", RequestOptions(truncate_prompt=4))[0].header
    assert header.prompt == models.tokenizer.decode(PROMPT[-4:])


def test_a_request_that_is_run_again_has_the_scores_of_one_run(models: Models) -> None:
    wish = RequestOptions(logprobs=0, prompt_logprobs=0)
    trace, request = run(models, "draft-model", wish)
    first = [*request.logprobs], [*request.prompt_logprobs]
    assert len(first[0]) == len(trace.token_ids)
    Engine(models).generate(request)
    assert (request.logprobs, request.prompt_logprobs) == first


def test_a_least_length_bars_the_models_end_only_where_it_ends_the_text(
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


def test_token_ids_that_the_target_does_not_have_are_refused(models: Models) -> None:
    wishes = {
        "stop_token_ids": RequestOptions(stop_tokens=(SIZE,)),
        "logit_bias": RequestOptions(logit_bias=((-1, 1.0),)),
    }
    for name, wish in wishes.items():
        with pytest.raises(ParameterError, match=name):
            run(models, "autoregressive", wish)
