"""Jacobi decoding: its iteration by hand, against explicit forwards in a run, and what it cannot lose."""

from __future__ import annotations

import model_helpers
import pytest
import torch
from transformers import LogitsProcessor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.drafters.jacobi import Iterate

pytestmark = pytest.mark.unchecked
PROMPT = model_helpers.random_prompt(9)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device)


@pytest.mark.parametrize(
    ("said", "emitted", "tokens", "stood"),
    [
        ([1, 2, 3, 4, 5], 5, [], []),  # all four are right, and there is one behind them
        ([1, 2, 9, 4, 7], 3, [4, 7], [3, 0]),  # the third was wrong; the fourth stands behind it
        ([8, 2, 3, 6, 7], 1, [2, 3, 6, 7], [3, 3, 0, 0]),  # nothing was kept, two guesses came out again
        ([], 1, [2, 3, 4], [2, 2, 2]),  # another drafter's round
        ([8, 2], 1, [2, 3, 4], [3, 2, 2]),  # a draft of one
    ],
)
def test_golden_iterations(said: list[int], emitted: int, tokens: list[int], stood: list[int]) -> None:
    state = Iterate([1, 2, 3, 4], [2, 2, 2, 2])
    state.step(said, emitted)
    assert (state.tokens, state.stood) == (tokens, stood)


def test_each_round_is_a_step_of_the_iteration(models: Models) -> None:
    """y(i) is what a plain forward says behind the text and y(1) … y(i − 1)."""
    engine, ask = Engine(models), model_helpers.next_logits_function(models.target.model)
    row = engine.submit(Request(PROMPT, registry.get("jacobi"), max_new_tokens=40, stop_at_eos=False))
    for _ in range(8):
        text = list(row.committed)
        engine.step()
        if not row.trace or not row.trace.rounds:
            continue
        r = row.trace.rounds[-1]
        said = [int(ask([*text, *r.nodes.tokens[:i]]).argmax()) for i in range(len(r.nodes.tokens) + 1)]
        assert row.state.drafter.tokens == said[len(r.emitted) :]
    row.cancel()
    engine.step()


class Counts(LogitsProcessor):
    """A world in which a place of the text has its token, whatever was written before."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = torch.tensor([input_ids.shape[1] % 50], device=scores.device)
        return torch.full_like(scores, -20.0).index_fill(1, token, 20.0)


class Adds(Counts):
    """A world in which a token follows from the one before: a wrong guess makes wrong ones behind it."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = (input_ids[0, -1:] + 1) % scores.shape[1]
        return torch.full_like(scores, -20.0).index_fill(1, token, 20.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_gained_depends_on_how_much_a_wrong_guess_spoils(temperature: float, models: Models) -> None:
    """All of a block in its second round where guesses are right behind wrong ones; nothing where none ever is."""
    lengths = {}
    for world in (Counts(), Adds()):
        sampling = SamplingParams(temperature, processors=(world,))
        request = Request([3] * 5, registry.get("jacobi").with_params(depth=4), sampling, 26, stop_at_eos=False)
        lengths[type(world)] = [len(r.emitted) for r in Engine(models).generate(request).rounds]
    assert lengths[Counts] == [1, 5] * 4 + [1, 1]
    assert set(lengths[Adds]) == {1}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_run_says_which_guesses_stood(temperature: float, models: Models) -> None:
    request = Request(model_helpers.repeating_prompt(12), registry.get("jacobi"), SamplingParams(temperature), 40)
    trace = Engine(models).generate(request)
    before: list[int] = []
    for r in trace.rounds:
        if not r.nodes.tokens:
            continue
        assert r.grown is not None
        assert r.signals["guesses that stood"] == sum(bool(n) for n in r.grown.before)
        old = before[: len(r.nodes.tokens)]
        assert [n > 0 for n, _ in zip(r.grown.before, old, strict=False)] == [
            a == b for a, b in zip(r.nodes.tokens, old, strict=False)
        ]
        before = r.nodes.tokens[len(r.emitted) :]
    assert any(r.signals.get("guesses that stood") for r in trace.rounds)
