"""EAGLE-3: training steps equal drafting steps, only true features stay in the cache, and known traps are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.errors import ModelError, ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.training_time_test import unroll
from workbench.methods.eagle_3.drafter import DraftLMHead, Eagle3Net, default_capture_layers
from workbench.training.family import unrolled
from workbench.training.family.fusing import choose_capture_layers, normalise_inputs
from workbench.training.family.head_training import answer_continues, shift_left
from workbench.training.family.unrolled import Batch, unroll_steps

D, N, STEPS = 8, 4, 3
PROMPT = model_helpers.random_prompt(9)


def net_of(**more: Any) -> Eagle3Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Eagle3Net(D, 2, 12, (1, 2), 5, **more).double()


def layer_of(kind: str) -> FeatureNet:
    """Return a layer of this kind that supports unrolled training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"heads": 2, "ffn": 12, "taps": (1, 2), "draft_vocab_size": 5}
        net = registry.heads()[kind].build(D, sizes).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, std=0.4)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "width"), [("eagle-3", 2 * D), ("mtp", D), ("fspad", D), ("eagle", D)])
def test_unrolled_training_states_equal_those_drafted_token_by_token(kind: str, width: int) -> None:
    """Every column of every step has the same state as after reading the true pairs and drafting after them."""
    net, streams, embeds = layer_of(kind), random_tensor(1, N, width), random_tensor(1, N + STEPS, D, seed=1)
    unrolled = list(unroll(net, lambda step: embeds[:, step : step + N], streams, STEPS))
    for column in range(N):
        entries = DraftKVCache(net.heads, net.head_size, 16, streams)
        pairs = net.make_pairs(embeds[:, : column + 1], net.combine_hidden_states(streams[:, : column + 1]))
        state = net(pairs, torch.arange(column + 1), None, entries)[:, -1:]
        for step, all_at_once in enumerate(unrolled):
            torch.testing.assert_close(all_at_once[:, column], state[:, 0], rtol=0, atol=1e-12)
            place = column + step + 1
            state = net(net.make_pairs(embeds[:, place : place + 1], state), torch.tensor([place]), None, entries)


def test_gradients_of_a_step_reach_earlier_steps_and_no_later_text() -> None:
    net, streams, embeds = net_of(), random_tensor(1, N, 2 * D).requires_grad_(), random_tensor(1, N + STEPS, D, seed=1)
    last = list(unroll(net, lambda step: embeds[:, step : step + N], streams, STEPS))[-1]
    last[:, 1].sum().backward()
    assert streams.grad is not None
    reached = streams.grad.abs().sum(-1)[0] > 0
    assert reached.tolist() == [True, True, False, False], "true pairs up to its own column"


@pytest.mark.parametrize("name", ["eagle-3", "mtp", "fspad", "pard"])
def test_kv_cache_equals_a_fresh_prefill_after_every_round(name: str, tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    engine, method = Engine(models), registry.get(name).with_params(depth=3)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        with torch.inference_mode():
            mine, fresh = row.state.drafter.catch_up(), row.drafter.init_state(row, models)
        torch.testing.assert_close(mine, fresh.guess, rtol=0, atol=1e-10)
        assert row.state.drafter.position == fresh.position == len(row.committed) - 1
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


@pytest.mark.parametrize("layers", range(3, 9))
def test_taps_of_a_shallow_target_are_distinct(layers: int) -> None:
    """The released code uses layers 2, L/2 and L − 3, which for four or six layers are only two different ones."""
    taps = default_capture_layers(layers)
    assert len(taps) == len(set(taps)) == min(3, layers - 1)
    assert list(taps) == sorted(taps)
    assert 1 <= taps[0] < taps[-1] < layers
    Eagle3Net(D, 2, 12, taps, 5)


def test_equal_taps_are_refused() -> None:
    for taps in ((2, 2, 3), (3, 2), (2,), (0, 1)):
        with pytest.raises(ValueError, match="ascending and distinct"):
            Eagle3Net(D, 2, 12, taps, 5)
    with pytest.raises(ParameterError, match="no low, middle and high"):
        choose_capture_layers(type("O", (), {"taps": ()}), 2)


def test_invalid_draft_vocabulary_is_refused() -> None:
    net = net_of()
    assert DraftLMHead(net, 5).to_token_ids(torch.arange(5)).tolist() == [0, 1, 2, 3, 4]
    net.d2t += torch.tensor([0, 0, 1, 1, 4])
    head = DraftLMHead(net, 9)
    assert head.to_token_ids(torch.arange(5)).tolist() == [0, 1, 3, 4, 8]
    whole = head.full_logits(random_tensor(2, D))
    assert torch.isinf(whole).nonzero()[:, 1].tolist() == [2, 5, 6, 7] * 2, (
        "tokens outside the draft vocabulary have probability 0"
    )
    for wrong in (torch.tensor([0, 0, 1, 1, 5]), torch.tensor([0, 0, 1, 0, 4])):  # beyond the end; 3 twice
        net.d2t.copy_(wrong)
        with pytest.raises(ModelError, match="d2t"):
            DraftLMHead(net, 9)


def test_tokens_after_the_end_of_a_text_are_never_labels() -> None:
    """Released trainers roll their labels, so that the last positions are trained on the first tokens."""
    ids = torch.arange(1, 7)[None]
    assert shift_left(ids, 2).tolist() == [[3, 4, 5, 6, 0, 0]]
    answer = torch.tensor([[True, False, True, True, True, False]])
    assert answer_continues(answer, 2).tolist() == [[True, False, True, False, False, False]]
    assert not (answer_continues(answer, 2) & (shift_left(ids, 2) == 0)).any()


def test_run_records_how_many_tokens_are_outside_the_draft_vocabulary(tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, heads=tmp_path / "heads")  # it contains five of six tokens
    method = registry.get("eagle-3")
    trace = Engine(models).generate(Request([3, 1, 4, 1], method, SamplingParams(1.5), 40, seed=1, stop_at_eos=False))
    counts = [r.signals["outside the draft vocabulary"] for r in trace.rounds[1:]]
    assert counts == [sum(e.token == 5 for e in r.emitted) for r in trace.rounds[:-1]]
    assert sum(counts) > 0


# -- fusion during training -------------------------------------------------------------------------------------------


def test_fusion_normalises_its_inputs_in_training_and_is_saved_for_use() -> None:
    net, used = net_of(), net_of()
    size = torch.tensor([2.0**n for n in (5, -3, 0, 8)]).repeat(D // 2).double()
    streams = torch.randn(7, 2 * D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * size
    inside = net.fuse.weight.detach().clone()
    normalise_inputs(net.fuse, size)
    assert torch.equal(net.combine_hidden_states(streams), (streams / size) @ inside.T)
    (by_hand,) = torch.autograd.grad(net.combine_hidden_states(streams).square().sum(), net.fuse.weight)
    one = inside.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(((streams / size) @ one.T).square().sum(), one)
    torch.testing.assert_close(by_hand, wanted, rtol=1e-12, atol=1e-12)
    saved = net.state_dict()
    assert torch.equal(net.fuse.weight, inside), "the trained weights are unchanged"
    used.load_state_dict(saved)
    torch.testing.assert_close(
        used.combine_hidden_states(streams), net.combine_hidden_states(streams), rtol=1e-12, atol=1e-12
    )
    with torch.no_grad():
        net.fuse.weight.zero_()
    net.load_state_dict(saved)
    assert torch.equal(net.fuse.weight, inside), "a resumed run has the same weights bit for bit"
    assert torch.equal(saved["fuse.weight"], inside / size), "and the saved weights are unchanged"


def test_each_state_is_compared_with_the_position_that_decides_its_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Step i after the pair at s is compared with position s + 1 + i if all positions up to there are in the answer."""
    net, found = net_of(), list[Any]()
    monkeypatch.setattr(unrolled, "train_drafts", lambda course, net, drafts, *_, **__: found.append(drafts))
    nothing: Any = None
    unrolled.train_unrolled(nothing, net, lambda _, features: features, net.logits, [1.0] * STEPS)
    answer = torch.zeros(2, 12, dtype=torch.bool)
    answer[0, 2:7] = answer[1, 8:11] = True
    streams, ids = torch.randn(2, 12, 2 * D, dtype=torch.float64), torch.arange(24).view(2, 12)
    batch = Batch([0, 1], ids, torch.randn(2, 12, D, dtype=torch.float64), streams, answer, ids)
    whole = [state for state, _ in unroll_steps(net, batch.embeds, batch.features, answer, STEPS)]
    for step, (states, at) in enumerate(found[0](batch, None)):
        behind = [(b, s) for b in range(2) for s in range(11) if answer[b, s + 1 : s + 2 + step].sum() == step + 1]
        assert at.tolist() == [b * 12 + s + 1 + step for b, s in behind]
        torch.testing.assert_close(states, torch.stack([whole[step][b, s] for b, s in behind]), rtol=0, atol=0)
