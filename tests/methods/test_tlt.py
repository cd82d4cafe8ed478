"""TLT: training windows, the times of training, the weights that change, and unchanged text."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import model_helpers
import pytest
import torch
from torch.nn import functional as F

from workbench.core.errors import ModelError, ParameterError
from workbench.decoders.draft_verify import state_actions
from workbench.engine import Engine, Models, Request, Sequence
from workbench.kernels.reduced_vocabulary import KEY
from workbench.methods import registry
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.policies import buckets
from workbench.methods.tlt import spot
from workbench.methods.tlt.drafter import TLT, Batch
from workbench.methods.tlt.spot import OnlineHead, Pool, Text, Window

PROMPTS = [model_helpers.repeating_prompt(9 + i, seed=i, period=3 + i) for i in range(4)]
N = 40
QUICK = {"rate": 3e-3, "every": 1, "texts": 4, "reads": 48}
"""A small head is trained in a few steps."""


@pytest.fixture
def models(tmp_path: Path, device: str) -> Models:
    """Models in float64, with an untrained head."""
    return model_helpers.make_models("llama", noise=None, device=device, heads=tmp_path / "heads")


def run_batch(
    models: Models, method: str = "tlt", n: int | list[int] = N, rows: int = 1, **params: Any
) -> list[Sequence]:
    """Run a batch of sequences that start together; return them."""
    engine, configured = Engine(models), registry.get(method).with_params(**params)
    longest = [n] * rows if isinstance(n, int) else n
    found = [
        engine.submit(Request(prompt, configured, max_new_tokens=most, stop_at_eos=False, paused=True))
        for prompt, most in zip(PROMPTS, longest, strict=False)
    ]
    while not all(row.is_open for row in found):
        engine.step()
    for row in found:
        row.resume()
    while not engine.is_idle:
        engine.step()
    assert not any(row.error for row in found), [row.error for row in found]
    return found


def tokens(rows: list[Sequence]) -> list[list[int]]:
    return [row.trace.token_ids for row in rows if row.trace is not None]


def tau(rows: list[Sequence]) -> float:
    traces = [row.trace for row in rows if row.trace is not None]
    return sum(len(t.token_ids) for t in traces) / sum(len(t.rounds) for t in traces)


def last_training_signals(row: Sequence) -> dict[str, Any]:
    """Return the signals of the last round with a draft."""
    assert row.trace is not None
    return [r.signals for r in row.trace.rounds if "training steps" in r.signals][-1]


def shared_head(models: Models) -> OnlineHead:
    """Return the head that warm sequences share."""
    return TLT(warm=True).online_head(models)


def perturb_target(models: Models, amount: float) -> None:
    """Change the target's weights in place, as training of the target would."""
    model: Any = models.target.model
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
                weight.add_(amount * weight.std() * noise)


# -- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True])
def test_greedy_text_is_the_targets_with_and_without_training(models: Models, warm: bool) -> None:
    wanted = [model_helpers.hf_greedy(models.target.model, prompt, N) for prompt in PROMPTS]
    still = run_batch(models, rows=4, rate=0.0, warm=warm)
    taught = run_batch(models, rows=4, warm=warm, tail=1.0, **QUICK)
    assert tokens(still) == tokens(taught) == wanted
    last = [last_training_signals(row) for row in taught]
    assert min(s["training steps"] for s in last) > 5
    assert all(s["loss of the last training step"] > 0 for s in last)
    assert all(last_training_signals(row)["training steps"] == 0 for row in still)


def test_without_training_it_equals_eagle_2(models: Models) -> None:
    drafts = [
        [(r.nodes.tokens, r.nodes.parents) for row in run_batch(models, **asked) if row.trace for r in row.trace.rounds]
        for asked in ({"method": "eagle-2"}, {"rate": 0.0}, {"rate": 0.0, "warm": True})
    ]
    assert drafts[0] == drafts[1] == drafts[2]
    assert any(nodes for nodes, _ in drafts[0])


# -- training data -----------------------------------------------------------------------------------------------------


def text(step: int, n: int, n_prompt: int = 3) -> Text:
    """Return a text whose tokens are all equal to its step."""
    return Text(step, n_prompt, [step] * (n + 1), [torch.zeros(n, 2)])


def test_texts_older_than_two_steps_are_never_sampled() -> None:
    pool, seen = Pool(), list[set[int]]()
    for step in range(5):
        for _ in range(3):
            pool.add(text(step, 12))
        drawn = [pool.sample_windows(Random(seed), 4, 8) for seed in range(20)]
        seen.append({token for windows in drawn for w in windows for token in w.tokens})
        pool.next_step()
    assert seen == [{0}, {0, 1}, {1, 2}, {2, 3}, {3, 4}]
    assert {t.step for t in pool.texts} == {4}, "older texts are removed"


def test_pool_is_bounded_and_drops_the_oldest_first() -> None:
    pool = Pool(most=50)
    growing = text(0, 10)
    pool.add(growing)
    for _ in range(20):
        pool.add(text(0, 9))
        assert len(pool) <= 50
    assert growing not in pool.texts
    last = pool.texts[-1]
    last.tokens += [0] * 45
    last.features.append(torch.zeros(45, 2))
    pool.trim()
    assert pool.texts == [last], "a text in progress can grow"


def test_loss_of_a_window_counts_only_positions_of_the_answer() -> None:
    for n_prompt in (1, 2, 20):
        for size in (21, 40):
            pool = Pool()
            pool.add(Text(0, n_prompt, list(range(size + 1)), [torch.arange(size).float()[:, None]]))
            for seed in range(30):
                (window,) = pool.sample_windows(Random(seed), 4, 16)
                assert len(window.tokens) == 16
                assert window.features[:, 0].tolist() == window.tokens, "each feature belongs to its token"
                about = window.tokens[window.first :]
                assert about, "there are labels"
                assert min(about) >= max(1, n_prompt - 1), "positions that decide prompt tokens have no label"
    pool = Pool()
    pool.add(text(0, 4, n_prompt=9))
    assert pool.sample_windows(Random(0), 4, 16) == [], "there is no answer yet"


def test_change_of_the_targets_weights_starts_a_new_step(models: Models) -> None:
    run_batch(models, warm=True, **QUICK)
    mine = shared_head(models)
    assert {t.step for t in mine.pool.texts} == {0}
    perturb_target(models, 0.01)
    run_batch(models, warm=True, **QUICK)
    assert [t.step for t in mine.pool.texts] == [0, 1]
    perturb_target(models, 0.01)
    assert shared_head(models) is mine
    assert (mine.pool.step, [t.step for t in mine.pool.texts]) == (2, [1])
    mine.detect_target_changes()
    assert mine.pool.step == 2, "without a change there is no new step"


# -- training step -----------------------------------------------------------------------------------------------------


def windows_of(models: Models) -> list[Window]:
    """Return windows of different lengths and prompts, with the target's own features."""
    model: Any = models.target.model
    found = []
    for n, first, seed in ((14, 1, 0), (9, 4, 1)):
        ids = model_helpers.random_prompt(n, seed=seed)
        with torch.no_grad():
            found.append(Window(ids, model.model(torch.tensor([ids], device=model.device))[0][0], first))
    return found


def test_training_loss_is_the_sum_of_eagles_two_losses(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: feature s and token s + 1 predict the feature at s + 1 and the distribution of the token after it."""
    mine, windows = shared_head(models), windows_of(models)
    guesses, truths = [], []
    with torch.no_grad():
        for w in windows:
            ids = torch.tensor(w.tokens, device=models.target.device)
            x = mine.origin.make_pairs(models.target.embed(ids[1:]), w.features[:-1])[None]
            guess = mine.origin(x, torch.arange(len(ids) - 1, device=ids.device))[0]
            guesses.append(guess[w.first - 1 :])
            truths.append(w.features[w.first :])
        guess, truth = torch.cat(guesses), torch.cat(truths)
        p, q = (F.linear(x, models.target.lm_head.get_parameter("weight")) for x in (truth, guess))
        wanted = F.smooth_l1_loss(guess, truth) + 0.1 * F.cross_entropy(q, p.softmax(-1))
    monkeypatch.setattr(Pool, "sample_windows", lambda self, random, n, longest: windows)
    assert mine.train_step(2, 16, 1e-3)
    assert mine.loss == pytest.approx(float(wanted), rel=1e-6)


def test_training_changes_only_the_online_head(models: Models) -> None:
    model: Any = models.target.model
    run_batch(models, rate=0.0, warm=True)
    mine = shared_head(models)
    model.requires_grad_(True)  # as in its own training
    before = [copy.deepcopy(module.state_dict()) for module in (model, mine.origin)]
    assert TLT(warm=True, rate=3e-3).train_between_batches(models, 5) == 5
    for was, module in zip(before, (model, mine.origin), strict=True):
        assert all(torch.equal(was[name], weight) for name, weight in module.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert min(mine.relative_changes().values()) > 0, "all weights of the layer change"
    assert all(torch.equal(a, b) for a, b in zip(mine.net.parameters(), mine._student.parameters(), strict=True))


def test_gradients_are_clipped_to_norm_one_half(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = []
    step = torch.optim.AdamW.step

    def noted(self: Any, *args: Any) -> Any:
        grads = [w.grad for group in self.param_groups for w in group["params"]]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    monkeypatch.setattr(spot, "FEATURE_LOSS_WEIGHT", 100.0)
    run_batch(models, rate=0.0, warm=True)
    TLT(warm=True).train_between_batches(models, 3)
    assert norms == pytest.approx([0.5] * 3, rel=1e-4)


def test_texts_are_read_again_only_if_requested(models: Models) -> None:
    """With `again`, the drafter's KV cache is recomputed with its newest weights."""
    for again in (True, False):
        engine, configured = Engine(models), registry.get("tlt").with_params(again=again, tail=1.0, **QUICK)
        row = engine.submit(Request(PROMPTS[0], configured, max_new_tokens=N, stop_at_eos=False))
        while row.trace is None or len(row.trace.rounds) < 8:
            engine.step()
        state = row.state.drafter
        with torch.inference_mode():
            state.use_newest_weights(state.inspectable.trainable, again)
            state.catch_up()
            net, ids = state.net, torch.tensor(row.committed, device=models.target.device)
            features = models.target.model.model(ids[None, :-1])[0][0]
            entries = DraftKVCache(net.heads, net.head_size, len(ids), features)
            net(net.make_pairs(models.target.embed(ids[1:]), features)[None], torch.arange(len(ids) - 1), None, entries)
            mine, wanted = (
                e.append(features.new_empty(2, 1, net.heads, 0, net.head_size)) for e in (state.kv_cache, entries)
            )
        same = [torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, wanted, strict=True)]
        assert same == [again, again]


def test_online_head_recovers_acceptance_after_the_target_changes(models: Models) -> None:
    """After training, the target's weights change: a head that is trained again recovers, a frozen one does not."""
    options = {"warm": True, "tail": 1.0, **QUICK}
    run_batch(models, n=60, rows=4, **options)
    TLT(warm=True, rate=3e-3, texts=4, reads=48).train_between_batches(models, 150)
    before_change = tau(run_batch(models, n=60, rows=4, warm=True, rate=0.0))
    perturb_target(models, 0.35)
    frozen = run_batch(models, n=60, rows=4, warm=True, rate=0.0)
    assert tau(frozen) < before_change, "the earlier training no longer fits"
    TLT(warm=True, rate=3e-3, texts=4, reads=48).train_between_batches(models, 150)
    adaptive = run_batch(models, n=60, rows=4, warm=True, rate=0.0)
    assert tokens(adaptive) == tokens(frozen)
    assert tau(adaptive) > 1.15 * tau(frozen)


# -- training times ----------------------------------------------------------------------------------------------------


@pytest.fixture
def training_batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return, filled in later, the running and the peak number of sequences at each training step."""
    found: list[tuple[int, int]] = []
    lesson, of = OnlineHead.train_step, Batch.of
    batches: dict[int, Batch] = {}

    def noted(self: OnlineHead, *args: Any) -> bool:
        (batch,) = batches.values()
        found.append((batch.running, batch.peak))
        return lesson(self, *args)

    def known(models: Models) -> Batch:
        return batches.setdefault(id(models), of(models))

    monkeypatch.setattr(OnlineHead, "train_step", noted)
    monkeypatch.setattr(Batch, "of", known)
    return found


def test_training_runs_in_the_tail_of_a_batch(models: Models, training_batches: list[tuple[int, int]]) -> None:
    run_batch(models, n=[12, 24, 50, 60], warm=True, tail=0.5, **QUICK)
    assert {running for running, _ in training_batches} == {1, 2}
    assert {began for _, began in training_batches} == {4}
    training_batches.clear()
    run_batch(models, n=[12, 24, 50, 60], warm=True, tail=0.25, **QUICK)
    assert {running for running, _ in training_batches} == {1}
    training_batches.clear()
    run_batch(models, n=[12, 24, 50, 60], warm=True, tail=0.2, **QUICK)
    assert training_batches == [], "one of four is more than a fifth"


def test_single_sequence_is_trained_every_n_rounds(models: Models, training_batches: list[tuple[int, int]]) -> None:
    (row,) = run_batch(models, every=5, tail=0.0)
    assert row.trace is not None
    assert len(training_batches) == (len(row.trace.rounds) - 1) // 5 > 1, (
        "there is no training in the last round: the text has ended"
    )


def test_sequences_that_share_a_head_count_rounds_together(
    models: Models, training_batches: list[tuple[int, int]]
) -> None:
    rows = run_batch(models, n=30, rows=4, warm=True, tail=1.0, **QUICK | {"every": 3})
    rounds = max(len(row.trace.rounds) for row in rows if row.trace)
    assert 0 < len(training_batches) <= rounds // 3 + 1


def test_batch_ends_with_its_last_sequence() -> None:
    batch = Batch()
    for _ in range(3):
        batch.enter()
    assert (batch.is_tail(1.0), batch.is_tail(0.4)) == (True, False)
    batch.leave()
    batch.leave()
    assert batch.is_tail(0.4)
    batch.enter()
    assert not batch.is_tail(0.4), "two of three"
    batch.leave()
    batch.leave()
    batch.enter()
    assert (batch.peak, batch.is_tail(0.0)) == (1, True), "the next sequence is alone"


def test_batch_does_not_wait_for_a_failed_sequence(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch(models, rows=2, warm=True)
    assert (models.shared["tlt batch"].running, models.shared["tlt batch"].peak) == (0, 0)
    monkeypatch.setattr(TLT, "begin", lambda self, row: 1 / 0)
    with pytest.raises(AssertionError):
        run_batch(models, rows=2, warm=True)
    assert models.shared["tlt batch"].running == 0


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_online_training_is_per_sequence_unless_shared(models: Models) -> None:
    alone = [run_batch(models, **QUICK) for _ in range(2)]
    drafts = [[r.nodes.tokens for r in row.trace.rounds] for (row,) in alone if row.trace]
    assert drafts[0] == drafts[1], "nothing of the first run remains"
    (first,), (second,) = (run_batch(models, warm=True, **QUICK) for _ in range(2))
    assert first.trace is not None
    assert second.trace is not None
    assert first.trace.rounds[0].signals["training steps"] == 0
    assert second.trace.rounds[0].signals["training steps"] >= last_training_signals(first)["training steps"] > 0, (
        "it goes on"
    )


def test_shared_head_is_trained_between_batches(models: Models) -> None:
    with pytest.raises(ParameterError, match="each sequence has its own"):
        TLT().train_between_batches(models, 3)
    assert TLT(warm=True).train_between_batches(models, 3) == 0, "there is no text yet"
    run_batch(models, warm=True, rate=0.0)
    assert TLT(warm=True).train_between_batches(models, 3) == shared_head(models).n_steps == 3


def test_each_head_has_its_own_trained_copy(models: Models, tmp_path: Path) -> None:
    engine, configured = Engine(models), registry.get("tlt").with_params(**QUICK)
    row = engine.submit(Request(PROMPTS[0], configured, max_new_tokens=N, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 5:
        engine.step()
    first = row.state.drafter.inspectable.trainable
    others = model_helpers.write_random_heads(tmp_path / "others", models, seed=1)
    another = dataclasses.replace(others["eagle"], name="another")
    row.change(models=dataclasses.replace(models, heads=models.heads | {"eagle": another}))
    engine.step()
    assert row.state.drafter.inspectable.trainable is not first
    assert row.state.drafter.inspectable.trainable.info is another
    while not engine.is_idle:
        engine.step()
    assert not row.error
    assert tokens([row]) == [model_helpers.hf_greedy(models.target.model, PROMPTS[0], N)]
    assert models.shared["tlt batch"].running == 0


def test_head_follows_the_targets_present_weights(models: Models) -> None:
    """With a reduced vocabulary, rows of the LM head are copied: they must come from the present weights."""
    models.heads["eagle"].config[KEY] = [1, 2, 5]
    mine, x = (
        shared_head(models),
        torch.randn(2, models.target.hidden_size, dtype=torch.float64, device=models.target.device),
    )
    mine.head(x)
    perturb_target(models, 0.1)
    weight = models.target.lm_head.get_parameter("weight")
    torch.testing.assert_close(shared_head(models).head(x), x @ weight[[1, 2, 5]].T)
    assert shared_head(models).compiled_net is None
    assert run_batch(models, warm=True, **QUICK)[0].trace is not None, "training uses the same rows"


def test_saved_training_of_another_head_is_refused(models: Models, tmp_path: Path) -> None:
    engine, configured = Engine(models), registry.get("tlt").with_params(**QUICK)
    row = engine.submit(Request(PROMPTS[0], configured, max_new_tokens=N, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 5:
        engine.step()
    saved = state_actions.save(row)
    before = row.state.drafter.inspectable.trainable.relative_changes()
    state_actions.load(row, saved)
    after = row.state.drafter.inspectable.trainable.relative_changes()
    assert all(after[name] == pytest.approx(2 * share, rel=1e-2) for name, share in before.items() if share > 1e-4)
    models.heads = models.heads | model_helpers.write_random_heads(tmp_path / "others", models, seed=1)
    models.shared.pop(("eagle", models.heads["eagle"].name), None)
    other = engine.submit(Request(PROMPTS[0], configured, max_new_tokens=N, stop_at_eos=False))
    while not other.is_open:
        engine.step()
    with pytest.raises(ModelError, match="belongs to another head"):
        state_actions.load(other, saved)


def test_larger_batches_verify_fewer_tokens_and_keep_the_text(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in TLT, the strategy depends on the number of running sequences."""
    monkeypatch.setattr(buckets, "BUDGETS", ((1, 9), (2, 4)))
    rows = run_batch(models, n=[48, 16, 16], rows=3, policy="buckets", depth=4, nodes=12)
    plain = run_batch(models, "autoregressive", n=[48, 16, 16], rows=3)
    assert tokens(rows) == tokens(plain)
    together, alone = set[int](), set[int]()
    assert rows[0].trace is not None
    for r in rows[0].trace.rounds:
        (together if r.signals["sequences in the batch"] > 1 else alone).add(len(r.nodes.tokens))
    assert 1 < max(together) <= 4 < max(alone) <= 9
