"""What a drafter of another vocabulary learns: places and losses by hand, then better drafts and no other text."""

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
from workbench.methods.drafters.omni_online_training import (
    Direct,
    OnlineTrainingState,
    SharedTokens,
    Spelt,
    StoppingHead,
    borders,
    hybrid,
    training_positions,
)
from workbench.methods.drafters.vocabulary_map import VocabularyMap
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.trace import metrics
from workbench.trace.events import Trace

PIECES = ["", "he", "llo", " ", "world", "!"]
SHARED = SharedTokens(torch.tensor([5, 1, 0]), torch.tensor([9, 3, 2]))
TARGET_PROBS = torch.zeros(12).index_fill_(0, torch.tensor([3, 9, 7]), 0.25)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_borders_are_where_tokens_end() -> None:
    slow = SimpleNamespace(is_fast=False)
    assert borders("hello world!", [1, 2, 3, 4, 5], slow, PIECES) == {2: 1, 5: 2, 6: 3, 11: 4, 12: 5}
    assert borders("hello  world!", [1, 2, 3, 4, 5], slow, PIECES) == {}, "a text that they do not make has none"
    letters = model_helpers.byte_tokenizer()
    text = "né"
    ids = letters(text)["input_ids"]
    assert borders(text, ids, letters, []) == {1: 1, 2: len(ids)}, "bytes of one character end together"


def test_places_are_where_both_cut_before_and_behind() -> None:
    ends = {2: 1, 5: 2, 6: 3, 11: 4, 12: 5}
    found = [
        (0, 2, TARGET_PROBS, 3),  # nothing stands before it that the drafter could have read
        (2, 5, TARGET_PROBS, 8),  # one of its tokens: "llo"
        (5, 11, TARGET_PROBS, 7),  # two of its: " " and "world"
        (11, 11, TARGET_PROBS, 2),  # a mark
        (7, 12, TARGET_PROBS, 3),  # cut elsewhere
        (11, 12, 0 * TARGET_PROBS, 9),  # the target says nothing that both have
    ]
    direct, spelt = training_positions(found, ends, [1, 2, 3, 4, 5], SHARED)
    assert [place.at for place in direct] == [0]
    assert direct[0].probs.tolist() == [0.5, 0.5, 0.0]
    assert spelt == [Spelt(1, (3, 4), 0.25)]


def test_the_loss_is_the_divergence_among_shared_tokens_and_the_likelihood_of_spellings() -> None:
    logq = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).log_softmax(1)
    p = torch.tensor([0.2, 0.3, 0.5])
    direct, spelt = [Direct(2, p)], [Spelt(3, (1, 4), 0.25), Spelt(0, (2, 2, 6), 0.5)]
    q = [math.exp(logq[2, i]) for i in (5, 1, 0)]
    kl = sum(a * math.log(a / (b / sum(q))) for a, b in zip(p.tolist(), q, strict=True))
    lines = [-0.25 * float(logq[3, 1] + logq[4, 4]), -0.5 * float(logq[0, 2] + logq[1, 2] + logq[2, 6])]
    assert float(hybrid(logq, direct, spelt, SHARED, 0.3)) == pytest.approx(kl + 0.3 * sum(lines) / 2)
    assert float(hybrid(logq, direct, spelt, SHARED, 0.0)) == pytest.approx(kl)
    assert float(hybrid(logq, [], spelt, SHARED, 1.0)) == pytest.approx(sum(lines) / 2)


def test_what_a_trimmed_drafter_cannot_say_is_not_asked_of_it() -> None:
    logq = torch.zeros(4, 7).log_softmax(1)
    logq[:, 1] = -torch.inf
    found = hybrid(logq, [Direct(0, torch.tensor([0.2, 0.6, 0.2]))], [Spelt(1, (1, 2), 0.5)], SHARED, 1.0)
    assert float(found) == pytest.approx(0.0, abs=1e-6), "0.2 and 0.2 of what is left, as it says, and no spelling"


def test_the_head_that_stops_learns_which_states_end_well() -> None:
    torch.manual_seed(0)
    good, bad = torch.randn(32), torch.randn(32)
    head = StoppingHead(32)
    assert head.acceptance_prob(good) == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-5), "sure at first: it drafts"
    for _ in range(20):
        head.learn(good + 0.1 * torch.randn(32), True)
        head.learn(bad + 0.1 * torch.randn(32), False)
    assert head.acceptance_prob(good) > 0.8
    assert head.acceptance_prob(bad) < 0.2


def test_stop_head_learns_up_to_the_first_rejection() -> None:
    told: list[tuple[float, bool]] = []
    study = OnlineTrainingState()
    study.stop = StoppingHead(1)
    study.stop.learn = lambda state, kept: told.append((float(state), kept))  # type: ignore[method-assign]
    written: list[tuple[Tensor, int]] = [(torch.tensor(float(i)), end) for i, end in enumerate((2, 5, 6, 11))]
    study.draft_states = list(written)
    study.train_stopping_head(5, rejected=True)
    assert told == [(0.0, True), (1.0, True), (2.0, False)]
    assert study.draft_states == [], "and not again"
    told.clear()
    study.draft_states = list(written)
    study.train_stopping_head(6, rejected=False)
    assert told == [(0.0, True), (1.0, True), (2.0, True)], "of what was kept back nothing is known"


# -- in use -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shuffled_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return different_vocabulary.shuffled_vocabulary_models(tmp_path_factory.mktemp("renumbered"))


@pytest.fixture(scope="module")
def degraded_models(shuffled_models: Models) -> Models:
    """The copy in other tokens, its layers moved: it has something to learn again."""
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
    assert cold.rounds[0].signals["training steps"] == 0, "another run that does not share begins anew"


@needs_bundle
def test_online_training_state_is_inspectable_savable_and_survives_a_switch(degraded_models: Models) -> None:
    """And of the learning rate; a run that begins with the file begins with what was learnt."""
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
    assert shown["top"], "layers that moved"
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
    assert unlearnt.drafter.state_key() is None, "whose layers do not learn has nothing to keep"


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
def test_the_head_that_stops_writes_less_where_little_is_kept(degraded_models: Models, shuffled_models: Models) -> None:
    prompt = "Once upon a time there was a fox"
    taught, wild = write(degraded_models, prompt, stop=0.4), write(degraded_models, prompt)
    assert taught.token_ids == wild.token_ids

    def kept_of(trace: Trace) -> tuple[float, float]:
        """Tokens written a round, and of the written ones the share that was kept, once something was learnt."""
        rounds = [r for r in trace.rounds[10:] if "tokens written" in r.signals]
        written = sum(r.signals["tokens written"] for r in rounds)
        return written / len(rounds), sum(len(r.emitted) - 1 for r in rounds) / written

    assert kept_of(taught)[0] < 0.7 * kept_of(wild)[0]
    assert kept_of(taught)[1] > 1.2 * kept_of(wild)[1]
    said = [
        r.signals["predicted acceptance of the whole draft"]
        for r in taught.rounds
        if "predicted acceptance of the whole draft" in r.signals
    ]
    assert said
    assert all(0 < chance <= 1 for chance in said)
    sure = write(shuffled_models, prompt, stop=0.4, merge=False)
    assert {len(r.emitted) for r in sure.rounds[:-1]} == {5}, "where all is kept it goes on writing"


@needs_bundle
def test_its_cache_is_the_committed_text_whenever_it_stopped(shuffled_models: Models) -> None:
    method = registry.get(NAME).with_params(policy="fixed", depth=4, stop=0.85)
    engine = Engine(shuffled_models)
    row = engine.submit(Request("The king", method, max_new_tokens=40, seed=3, stop_at_eos=False))
    stopped = 0
    while not engine.is_idle:
        engine.step()
        if row.state.drafter is None or row.trace is None or not row.trace.rounds:
            continue
        state = row.state.drafter
        stopped += row.trace.rounds[-1].signals["tokens written"] < 4
        assert state.slot.scratch == 0, "nothing half read is left"
        text = state.tokenise_committed(row)
        state.catch_up(row)
        assert state.cached_ids == text[:-1]
        assert state.slot.length == len(text) - 1
    assert stopped > 2


def test_of_several_spellings_of_a_token_the_first_is_shared() -> None:
    words = VocabularyMap(["", "a", "b", "a"], {"a": 5, "c": 6}, frozenset({0}), 2)
    assert words.shared.drafter_ids.tolist() == [1, 0]
    assert words.shared.target_ids.tolist() == [5, 2]
