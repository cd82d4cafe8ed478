"""OSD: training positions and labels, improvement, separate or shared training, and unchanged text."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import model_helpers
import pytest
import torch
from engine.test_reduced_vocabulary import trimmed

from workbench.decoders.draft_verify.online_layers import TrainableLayers
from workbench.engine import Engine, Models, Request, Runner, Sequence
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.methods.online.drafter import ALL, REJECTED, Online

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 60


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """Models in float64."""
    return model_helpers.make_models("llama", noise=0.25, device=device)


def submit(models: Models, method: str = "online", n: int = N, **params: Any) -> tuple[Engine, Sequence]:
    engine = Engine(models)
    configured = registry.get(method).with_params(**{"policy": "fixed"} | params)
    return engine, engine.submit(Request(PROMPT, configured, max_new_tokens=n, stop_at_eos=False))


def run_to_end(models: Models, **asked: Any) -> Sequence:
    engine, row = submit(models, **asked)
    while not engine.is_idle:
        engine.step()
    assert not row.error, row.error
    return row


def accepted(row: Sequence) -> tuple[int, int]:
    """Return the numbers of accepted drafts and of rounds."""
    assert row.trace is not None
    return sum(len(r.path) for r in row.trace.rounds), len(row.trace.rounds)


def next_distribution(model: Any, text: list[int]) -> torch.Tensor:
    """Return a model's own distribution after a text, by a full forward pass."""
    with torch.no_grad():
        return model(torch.tensor([text], device=model.device)).logits[0, -1].float().softmax(0)


@pytest.mark.parametrize("places", [REJECTED, ALL])
def test_training_step_uses_the_right_positions_and_target_probs(
    models: Models, places: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distribution is one position before its token; the released code leaves this shift to the caller."""
    lessons = []

    def noted(self: TrainableLayers, tokens: Any, start: int, at: Any, distributions: Any, rate: float) -> float:
        lessons.append((list(tokens), start, list(at), distributions.clone()))
        return 0.0

    monkeypatch.setattr(TrainableLayers, "distil_step", noted)
    row = run_to_end(models, places=places, every=1, reads=24)
    assert row.trace is not None
    learnt = set()
    for tokens, start, at, distributions in lessons:
        assert len(tokens) <= 24
        assert tokens == row.committed[start : start + len(tokens)]
        for place, probs in zip(at, distributions, strict=True):
            wanted = next_distribution(models.target.model, row.committed[: start + place + 1])
            torch.testing.assert_close(probs, wanted, atol=1e-5, rtol=1e-4)
            learnt.add(start + place + 1)
    first, wrong, whole = len(PROMPT), set(), set()
    for r in row.trace.rounds[:-1]:
        below = r.path[-1] if r.path else -1
        if below in r.nodes.parents:
            wrong.add(first + len(r.path))
        whole |= set(range(first, first + len(r.emitted))) if r.nodes.tokens else set()
        first += len(r.emitted)
    assert learnt - {*range(first, len(row.committed))} == (wrong if places == REJECTED else whole)
    assert len(wrong) < len(whole)


def test_training_step_reduces_the_mean_divergence(models: Models) -> None:
    assert models.drafter is not None
    trainable, text, at = TrainableLayers(models.drafter), model_helpers.random_prompt(20), [3, 9, 18]
    distributions = torch.stack([next_distribution(models.target.model, text[: i + 1]) for i in at])

    def divergence() -> float:
        with torch.no_grad():
            q = trainable.log_probs(text)[at]
            return float((distributions * (distributions.log() - q)).sum(1).mean())

    before = divergence()
    q = torch.stack([next_distribution(models.drafter.model, text[: i + 1]) for i in at])
    assert before == pytest.approx(float((distributions * (distributions / q).log()).sum(1).mean()), rel=1e-4), (
        "the copy starts equal to the model"
    )
    assert trainable.distil_step(text, 0, at, distributions, 3e-3) == pytest.approx(before, rel=1e-5), (
        "the reported loss is D(p || q)"
    )
    for _ in range(40):
        trainable.distil_step(text, 0, at, distributions, 3e-3)
    assert divergence() < before / 5
    trainable.reset()
    assert divergence() == pytest.approx(before, rel=1e-6)


def test_drafting_uses_the_updated_layers(models: Models) -> None:
    """The fast forward pass and the model's own use the trained layers."""
    assert models.drafter is not None
    trainable, text = TrainableLayers(models.drafter), model_helpers.random_prompt(12)
    distributions = torch.full((1, models.target.vocab_size), 1.0 / models.target.vocab_size)
    for _ in range(3):
        trainable.distil_step(text, 0, [5], distributions, 1e-2)
        slot = models.drafter.open()
        ids = torch.tensor(text, device=models.drafter.device)
        logprobs = (
            models.drafter.forward([Segment(slot, ids)], shared_copy=trainable.shared_copy)
            .logits[0]
            .float()
            .log_softmax(1)
        )
        models.drafter.close(slot)
        with torch.no_grad():
            torch.testing.assert_close(logprobs, trainable.log_probs(text), atol=1e-4, rtol=1e-4)


def test_trimmed_draft_model_is_trained_on_its_own_vocabulary(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.25, device=device)
    assert models.drafter is not None
    kept = list(range(0, models.target.vocab_size, 3))
    models.drafter = Runner(trimmed(models.drafter.model, kept), models.target.context)
    trainable, text = TrainableLayers(models.drafter), model_helpers.random_prompt(20)
    probs = next_distribution(models.target.model, text)
    losses = [trainable.distil_step(text, 0, [19], probs.unsqueeze(0), 3e-3) for _ in range(40)]
    assert 0 <= losses[-1] < losses[0] / 5
    with torch.no_grad():
        q = trainable.log_probs(text)[19]
    assert (q > -torch.inf).nonzero().flatten().tolist() == kept


def test_without_training_it_equals_the_draft_model(models: Models) -> None:
    plain, still = run_to_end(models, method="draft-model"), run_to_end(models, rate=0.0)
    assert plain.trace is not None
    assert still.trace is not None
    drafts = [[r.nodes.tokens for r in row.trace.rounds] for row in (plain, still) if row.trace]
    assert drafts[0] == drafts[1]
    assert still.trace.rounds[-1].signals["training steps"] == 0


def test_training_increases_acceptance_and_keeps_the_text(models: Models) -> None:
    """A small target repeats itself in cycles, which its noisy copy has to learn."""
    text = model_helpers.hf_greedy(models.target.model, PROMPT, 100)
    still, taught = run_to_end(models, n=100, rate=0.0), run_to_end(models, n=100, rate=3e-3, every=1)
    assert still.trace is not None
    assert taught.trace is not None
    assert still.trace.token_ids == taught.trace.token_ids == text
    assert accepted(taught)[1] < 0.9 * accepted(still)[1], "fewer rounds for the same text"


def test_online_training_is_per_sequence_unless_shared(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.25, device=device)
    assert models.drafter is not None
    before = copy.deepcopy(models.drafter.model.state_dict())
    alone = [run_to_end(models, rate=3e-3).trace for _ in range(2)]
    drafts = [[r.nodes.tokens for r in trace.rounds] for trace in alone if trace]
    assert drafts[0] == drafts[1], "nothing of the first run remains"
    first, second = (run_to_end(models, rate=3e-3, warm=True) for _ in range(2))
    assert first.trace is not None
    assert second.trace is not None
    assert first.trace.rounds[0].signals["training steps"] == 0
    assert second.trace.rounds[0].signals["training steps"] >= first.trace.rounds[-1].signals["training steps"] > 0, (
        "it goes on"
    )
    assert first.trace.token_ids == second.trace.token_ids
    after = models.drafter.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), (
        "methods without online training keep the plain model"
    )


def test_each_draft_model_has_its_own_trained_copy(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.25, device=device)
    other = model_helpers.make_models("llama", noise=0.1, device=device)
    engine, row = submit(models)
    while row.trace is None or len(row.trace.rounds) < 5:
        engine.step()
    row.change(models=replace(models, drafter=other.drafter, drafter_name="another"))
    while not engine.is_idle:
        engine.step()
    assert not row.error
    assert row.trace is not None
    assert row.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert models.drafter is not None
    assert other.drafter is not None
    assert not models.drafter.slots, "its slot is released"
    assert not other.drafter.slots
    assert isinstance(row.drafter, Online)
