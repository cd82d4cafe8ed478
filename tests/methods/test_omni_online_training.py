"""Online training of a drafter with another vocabulary: positions and losses by hand, better drafts, same text."""

from __future__ import annotations

import copy
import dataclasses
import math
from types import SimpleNamespace

import different_vocabulary
import model_helpers
import pytest
import torch
from different_vocabulary import NAME, needs_bundle
from torch import Tensor

from workbench.decoders.draft_verify import state_actions
from workbench.engine import Engine, Models, Request, Runner
from workbench.methods import registry
from workbench.methods.omni_draft.online_training import (
    Direct,
    OnlineTrainingState,
    SharedTokens,
    Spelt,
    StoppingHead,
    borders,
    hybrid,
    training_positions,
)
from workbench.methods.omni_draft.vocabulary_map import VocabularyMap
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.trace import metrics
from workbench.trace.events import Trace

PIECES = ["", "he", "llo", " ", "world", "!"]
SHARED = SharedTokens(torch.tensor([5, 1, 0]), torch.tensor([9, 3, 2]))
TARGET_PROBS = torch.zeros(12).index_fill_(0, torch.tensor([3, 9, 7]), 0.25)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_borders_are_token_ends() -> None:
    slow = SimpleNamespace(is_fast=False)
    assert borders("hello world!", [1, 2, 3, 4, 5], slow, PIECES) == {2: 1, 5: 2, 6: 3, 11: 4, 12: 5}
    assert borders("hello  world!", [1, 2, 3, 4, 5], slow, PIECES) == {}, "a text of other tokens has no borders"
    letters = model_helpers.byte_tokenizer()
    text = "né"
    ids = letters(text)["input_ids"]
    assert borders(text, ids, letters, []) == {1: 1, 2: len(ids)}, "bytes of one character end together"


def test_training_positions_have_common_token_borders() -> None:
    ends = {2: 1, 5: 2, 6: 3, 11: 4, 12: 5}
    found = [
        (0, 2, TARGET_PROBS, 3),  # the drafter has no token before it
        (2, 5, TARGET_PROBS, 8),  # one of the drafter's tokens: "llo"
        (5, 11, TARGET_PROBS, 7),  # two of the drafter's tokens: " " and "world"
        (11, 11, TARGET_PROBS, 2),  # a special token
        (7, 12, TARGET_PROBS, 3),  # other token borders
        (11, 12, 0 * TARGET_PROBS, 9),  # the target gives shared tokens no probability
    ]
    direct, spelt = training_positions(found, ends, [1, 2, 3, 4, 5], SHARED)
    assert [place.at for place in direct] == [0]
    assert direct[0].probs.tolist() == [0.5, 0.5, 0.0]
    assert spelt == [Spelt(1, (3, 4), 0.25)]


def test_loss_is_the_divergence_over_shared_tokens_and_the_likelihood_of_spellings() -> None:
    logq = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).log_softmax(1)
    p = torch.tensor([0.2, 0.3, 0.5])
    direct, spelt = [Direct(2, p)], [Spelt(3, (1, 4), 0.25), Spelt(0, (2, 2, 6), 0.5)]
    q = [math.exp(logq[2, i]) for i in (5, 1, 0)]
    kl = sum(a * math.log(a / (b / sum(q))) for a, b in zip(p.tolist(), q, strict=True))
    lines = [-0.25 * float(logq[3, 1] + logq[4, 4]), -0.5 * float(logq[0, 2] + logq[1, 2] + logq[2, 6])]
    assert float(hybrid(logq, direct, spelt, SHARED, 0.3)) == pytest.approx(kl + 0.3 * sum(lines) / 2)
    assert float(hybrid(logq, direct, spelt, SHARED, 0.0)) == pytest.approx(kl)
    assert float(hybrid(logq, [], spelt, SHARED, 1.0)) == pytest.approx(sum(lines) / 2)


def test_tokens_outside_a_trimmed_vocabulary_have_no_loss() -> None:
    logq = torch.zeros(4, 7).log_softmax(1)
    logq[:, 1] = -torch.inf
    found = hybrid(logq, [Direct(0, torch.tensor([0.2, 0.6, 0.2]))], [Spelt(1, (1, 2), 0.5)], SHARED, 1.0)
    assert float(found) == pytest.approx(0.0, abs=1e-6), (
        "the two remaining tokens are equally likely in p and q, and the spelling is impossible"
    )


def test_stopping_head_learns_which_states_are_accepted() -> None:
    torch.manual_seed(0)
    good, bad = torch.randn(32), torch.randn(32)
    head = StoppingHead(32)
    assert head.acceptance_prob(good) == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-5), (
        "confident before training, so that it drafts"
    )
    for _ in range(20):
        head.learn(good + 0.1 * torch.randn(32), True)
        head.learn(bad + 0.1 * torch.randn(32), False)
    assert head.acceptance_prob(good) > 0.8
    assert head.acceptance_prob(bad) < 0.2


def test_stopping_head_is_trained_up_to_the_first_rejection() -> None:
    labels: list[tuple[float, bool]] = []
    study = OnlineTrainingState()
    study.stop = StoppingHead(1)
    study.stop.learn = lambda state, kept: labels.append((float(state), kept))  # type: ignore[method-assign]
    written: list[tuple[Tensor, int]] = [(torch.tensor(float(i)), end) for i, end in enumerate((2, 5, 6, 11))]
    study.draft_states = list(written)
    study.train_stopping_head(5, rejected=True)
    assert labels == [(0.0, True), (1.0, True), (2.0, False)]
    assert study.draft_states == [], "and only once"
    labels.clear()
    study.draft_states = list(written)
    study.train_stopping_head(6, rejected=False)
    assert labels == [(0.0, True), (1.0, True), (2.0, True)], "tokens that were not drafted have no label"


# -- in use -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shuffled_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return different_vocabulary.shuffled_vocabulary_models(tmp_path_factory.mktemp("renumbered"))


@pytest.fixture(scope="module")
def degraded_models(shuffled_models: Models) -> Models:
    """The copy with other token ids and perturbed layers, which can be improved by training."""
    assert shuffled_models.other_vocabulary_drafter is not None
    shared_copy = copy.deepcopy(shuffled_models.other_vocabulary_drafter.runner.model)
    generator = torch.Generator().manual_seed(0)
    for name, weight in shared_copy.named_parameters():
        if "layers" in name and weight.ndim > 1:
            weight.data += 0.7 * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    models = Models(shuffled_models.target, shuffled_models.tokenizer, "text-drafter")
    models.other_vocabulary_drafter = OtherVocabularyDrafter(
        Runner(shared_copy), shuffled_models.other_vocabulary_drafter.tokenizer, "worse"
    )
    return models


def write(models: Models, prompt: str, n: int = 60, **params: object) -> Trace:
    method = registry.get(NAME).with_params(policy="fixed", depth=4, **params)
    trace = Engine(models).generate(Request(prompt, method, max_new_tokens=n, stop_at_eos=False))
    assert trace.footer.error == ""
    return trace


@needs_bundle
def test_online_training_improves_drafts_and_keeps_the_text(degraded_models: Models) -> None:
    assert degraded_models.other_vocabulary_drafter is not None
    before = [p.clone() for p in degraded_models.other_vocabulary_drafter.runner.model.parameters()]
    prompts = ("Once upon a time there was a fox", "The king had a son", "One day a girl went to the")
    plain = [
        Engine(degraded_models)
        .generate(Request(p, registry.get("autoregressive"), max_new_tokens=60, stop_at_eos=False))
        .token_ids
        for p in prompts
    ]
    tau = {}
    for rate in (0.0, 1e-3):
        degraded_models.shared.pop(("omnidraft online training", "worse"), None)
        for _ in range(3 if rate else 1):
            traces = [write(degraded_models, p, rate=rate, warm=True) for p in prompts]
            assert [t.token_ids for t in traces] == plain
        tau[rate] = sum(metrics.tau(t.rounds) or 0 for t in traces) / 3
        if rate:
            assert traces[-1].rounds[-1].signals["training steps"] > 100
            assert traces[-1].rounds[-1].signals["loss of the last training step, nats"] < 1.0
        else:
            assert "training steps" not in traces[-1].rounds[-1].signals
    assert tau[1e-3] > 1.3 * tau[0.0]
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, degraded_models.other_vocabulary_drafter.runner.model.parameters(), strict=True)
    )
    assert not degraded_models.other_vocabulary_drafter.runner.slots
    cold = write(degraded_models, prompts[0], rate=1e-3)
    assert cold.rounds[0].signals["training steps"] == 0, "a run without shared training starts untrained"


@needs_bundle
def test_online_training_state_is_inspectable_savable_and_survives_a_switch(degraded_models: Models) -> None:
    """The change of method keeps the training state; a run that loads the saved state starts with it."""
    learning = registry.get(NAME).with_params(policy="fixed", depth=4, rate=1e-3)
    request = Request("Once upon a time there was a fox", learning, max_new_tokens=40, stop_at_eos=False)
    engine = Engine(degraded_models)
    row = engine.submit(request)
    for change in ({}, {"method": registry.get("autoregressive")}, {"method": learning.method, **learning.values}):
        if change:
            row.change(change.pop("method"), change | ({"rate": 2e-3} if change else {}))
        for _ in range(4):
            engine.step()
        if "rate" not in change:
            mine = row.state.drafter if row.state.drafter is not None else next(iter(row.state.inactive.values())).state
    assert row.state.drafter is mine
    shown = state_actions.inspect_state(row, engine.token_text)
    assert shown["kind"] == NAME
    assert shown["entries"] == row.state.drafter.training.trainable.n_steps >= 3
    assert shown["top"], "no layer has changed"
    saved = state_actions.save(row)
    while not engine.is_idle:
        engine.step()
    fresh, taught = (
        Engine(degraded_models).generate(dataclasses.replace(request, drafter_state=data)) for data in (None, saved)
    )
    assert fresh.rounds[0].signals["training steps"] == 0
    assert taught.rounds[0].signals["training steps"] == shown["entries"]
    assert taught.token_ids == fresh.token_ids
    unlearnt = registry.get(NAME).with_params(rate=0.0)
    assert unlearnt.drafter.state_key() is None, "without trained layers there is no state to save"


@needs_bundle
def test_each_drafter_has_its_own_online_training(degraded_models: Models, shuffled_models: Models) -> None:
    engine = Engine(degraded_models)
    method = registry.get(NAME).with_params(policy="fixed", depth=4, rate=1e-3)
    row = engine.submit(Request("The king had a son", method, max_new_tokens=40, stop_at_eos=False))
    for _ in range(6):
        engine.step()
    first = row.state.drafter.training.trainable
    assert first.n_steps
    other = dataclasses.replace(degraded_models, other_vocabulary_drafter=shuffled_models.other_vocabulary_drafter)
    row.change(models=other)
    while row.trace is None or not row.trace.rounds[-1].changes:
        engine.step()
    assert row.state.drafter.training.trainable is not first
    assert row.state.drafter.training.trainable.runner is other.draft_model
    while not engine.is_idle:
        engine.step()
    assert degraded_models.other_vocabulary_drafter is not None
    assert not degraded_models.other_vocabulary_drafter.runner.slots
    assert other.draft_model is not None
    assert not other.draft_model.slots


@needs_bundle
def test_stopping_head_shortens_drafts_where_few_are_accepted(degraded_models: Models, shuffled_models: Models) -> None:
    prompt = "Once upon a time there was a fox"
    trained, untrained = write(degraded_models, prompt, stop=0.4), write(degraded_models, prompt)
    assert trained.token_ids == untrained.token_ids

    def drafted_and_accepted(trace: Trace) -> tuple[float, float]:
        """Return drafted tokens per round and their accepted share, after the first ten rounds."""
        rounds = [r for r in trace.rounds[10:] if "drafter tokens" in r.signals]
        written = sum(r.signals["drafter tokens"] for r in rounds)
        return written / len(rounds), sum(len(r.emitted) - 1 for r in rounds) / written

    assert drafted_and_accepted(trained)[0] < 0.7 * drafted_and_accepted(untrained)[0]
    assert drafted_and_accepted(trained)[1] > 1.2 * drafted_and_accepted(untrained)[1]
    predictions = [
        r.signals["predicted probability that the whole draft is accepted"]
        for r in trained.rounds
        if "predicted probability that the whole draft is accepted" in r.signals
    ]
    assert predictions
    assert all(0 < chance <= 1 for chance in predictions)
    sure = write(shuffled_models, prompt, stop=0.4, merge=False)
    assert {len(r.emitted) for r in sure.rounds[:-1]} == {5}, "drafts are complete where all are accepted"


@needs_bundle
def test_cache_equals_the_committed_text_after_every_stop(shuffled_models: Models) -> None:
    method = registry.get(NAME).with_params(policy="fixed", depth=4, stop=0.85)
    engine = Engine(shuffled_models)
    row = engine.submit(Request("The king", method, max_new_tokens=40, seed=3, stop_at_eos=False))
    stopped = 0
    while not engine.is_idle:
        engine.step()
        if row.state.drafter is None or row.trace is None or not row.trace.rounds:
            continue
        state = row.state.drafter
        stopped += row.trace.rounds[-1].signals["drafter tokens"] < 4
        assert state.slot.scratch == 0, "no scratch entries remain"
        text = state.tokenise_committed(row)
        state.catch_up(row)
        assert state.cached_ids == text[:-1]
        assert state.slot.length == len(text) - 1
    assert stopped > 2


def test_first_of_several_equal_tokens_is_shared() -> None:
    words = VocabularyMap(["", "a", "b", "a"], {"a": 5, "c": 6}, frozenset({0}), 2)
    assert words.shared.drafter_ids.tolist() == [1, 0]
    assert words.shared.target_ids.tolist() == [5, 2]
