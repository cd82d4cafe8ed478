"""Jacobi decoding: its iteration by hand, its rounds compared with explicit forward passes, and its limits."""

from __future__ import annotations

import model_helpers
import pytest
import torch
from transformers import LogitsProcessor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.jacobi.drafter import Iterate

pytestmark = pytest.mark.unchecked
PROMPT = model_helpers.random_prompt(9)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device)


@pytest.mark.parametrize(
    ("said", "emitted", "tokens", "confirmed"),
    [
        ([1, 2, 3, 4, 5], 5, [], []),  # all four are correct, followed by one more token
        ([1, 2, 9, 4, 7], 3, [4, 7], [3, 0]),  # the third was wrong; the fourth follows it
        ([8, 2, 3, 6, 7], 1, [2, 3, 6, 7], [3, 3, 0, 0]),  # nothing was accepted, two predictions came out again
        ([], 1, [2, 3, 4], [2, 2, 2]),  # a round of another drafter
        ([8, 2], 1, [2, 3, 4], [3, 2, 2]),  # a draft of one token
    ],
)
def test_golden_iterations(said: list[int], emitted: int, tokens: list[int], confirmed: list[int]) -> None:
    state = Iterate([1, 2, 3, 4], [2, 2, 2, 2])
    state.step(said, emitted)
    assert (state.tokens, state.stood) == (tokens, confirmed)


def test_each_round_is_a_step_of_the_iteration(models: Models) -> None:
    """y(i) is the result of a plain forward pass after the text and y(1) … y(i − 1)."""
    engine, ask = Engine(models), model_helpers.next_logits_function(models.target.model)
    row = engine.submit(Request(PROMPT, registry.get("jacobi"), max_new_tokens=40, stop_at_eos=False))
    for _ in range(8):
        text = list(row.committed)
        engine.step()
        if not row.trace or not row.trace.rounds:
            continue
        r = row.trace.rounds[-1]
        predicted = [int(ask([*text, *r.nodes.tokens[:i]]).argmax()) for i in range(len(r.nodes.tokens) + 1)]
        assert row.state.drafter.tokens == predicted[len(r.emitted) :]
    row.cancel()
    engine.step()


class PositionWorld(LogitsProcessor):
    """Force tokens that depend on their position only, independent of earlier tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = torch.tensor([input_ids.shape[1] % 50], device=scores.device)
        return torch.full_like(scores, -20.0).index_fill(1, token, 20.0)


class SuccessorWorld(PositionWorld):
    """Force tokens that depend on the previous token, so that a wrong prediction makes the following ones wrong."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = (input_ids[0, -1:] + 1) % scores.shape[1]
        return torch.full_like(scores, -20.0).index_fill(1, token, 20.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_gain_depends_on_the_effect_of_wrong_predictions(temperature: float, models: Models) -> None:
    """If predictions after wrong ones are correct, round two accepts the whole block; otherwise nothing is gained."""
    lengths = {}
    for world in (PositionWorld(), SuccessorWorld()):
        sampling = SamplingParams(temperature, processors=(world,))
        request = Request([3] * 5, registry.get("jacobi").with_params(depth=4), sampling, 26, stop_at_eos=False)
        lengths[type(world)] = [len(r.emitted) for r in Engine(models).generate(request).rounds]
    assert lengths[PositionWorld] == [1, 5] * 4 + [1, 1]
    assert set(lengths[SuccessorWorld]) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_run_records_which_predictions_were_confirmed(temperature: float, models: Models) -> None:
    request = Request(model_helpers.repeating_prompt(12), registry.get("jacobi"), SamplingParams(temperature), 40)
    trace = Engine(models).generate(request)
    before: list[int] = []
    for r in trace.rounds:
        if not r.nodes.tokens:
            continue
        assert r.grown is not None
        assert r.signals["unchanged guesses"] == sum(bool(n) for n in r.grown.before)
        old = before[: len(r.nodes.tokens)]
        assert [n > 0 for n, _ in zip(r.grown.before, old, strict=False)] == [
            a == b for a, b in zip(r.nodes.tokens, old, strict=False)
        ]
        before = r.nodes.tokens[len(r.emitted) :]
    assert any(r.signals.get("unchanged guesses") for r in trace.rounds)
