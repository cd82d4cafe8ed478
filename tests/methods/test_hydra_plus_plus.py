"""Hydra++: the prefix attention's state equals a fresh prefill after every round, and layers have separate weights."""

from __future__ import annotations

from pathlib import Path

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.hydra.train import guesses
from workbench.methods.hydra_plus_plus.drafter import HydraPlusPlusHeads
from workbench.training.family.options import find_kind_module

D, C, BLOCKS, N = 12, 8, 3, 5
PROMPT = model_helpers.random_prompt(9)


def net_of(seed: int = 0) -> HydraPlusPlusHeads:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = HydraPlusPlusHeads(D, BLOCKS, C, deep=3, prefix_heads=2, ffn=16).double()
        torch.nn.init.normal_(net.leave.weight)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_fresh_head_repeats_the_targets_prediction() -> None:
    net, features = HydraPlusPlusHeads(D, BLOCKS, C).double(), random_tensor(1, N, D)
    read = net.head_inputs(features)[0]
    for block in range(BLOCKS):
        states = net(read, net.project(random_tensor(N, block + 1, D, seed=1)).flatten(1), block)
        torch.testing.assert_close(states, features[0], rtol=0, atol=0)


def test_head_depends_on_earlier_features_and_later_draft_tokens() -> None:
    net, features, tokens = (
        net_of(),
        random_tensor(1, N, D).requires_grad_(),
        random_tensor(2, D, seed=1).requires_grad_(),
    )
    net(net.head_inputs(features)[:, 2], net.project(tokens).flatten()[None], 1).sum().backward()
    assert features.grad is not None
    assert tokens.grad is not None
    assert (features.grad[0].abs().sum(-1) > 0).tolist() == [True, True, True, False, False]
    assert (tokens.grad.abs().sum(-1) > 0).all()


def test_layers_have_separate_weights() -> None:
    """In the released code, further layers are one repeated block and share their weights."""
    net = net_of()
    layers = [*net.first, *net.around, *(layer for stack in net.further for layer in stack)]  # type: ignore[union-attr]
    assert len({layer.get_parameter("weight").data_ptr() for layer in layers}) == len(layers) == BLOCKS * 4


def test_gradients_reach_the_whole_text_and_labels_are_in_the_answer() -> None:
    """Predictions of an answer have gradients at features before it, and through each layer of the prefix attention."""
    assert find_kind_module(HydraPlusPlusHeads.kind) is not None
    net, features, embedding = (
        net_of().float(),
        random_tensor(1, 8, D).float().requires_grad_(),
        random_tensor(8, D, seed=1).float(),
    )
    answer = torch.zeros(1, 8, dtype=torch.bool)
    answer[0, 4:7] = True
    found = list(guesses(net, embedding, torch.arange(8)[None], features, answer))
    assert [len(guess) for guess, _ in found] == [2, 1]
    torch.stack([guess.sum() for guess, _ in found]).sum().backward()
    assert features.grad is not None
    assert (features.grad[0].abs().sum(-1) > 0).tolist() == [True] * 6 + [False] * 2
    learns = {name.split(".")[0] for name, weight in net.named_parameters() if weight.grad is not None}
    assert learns == {"norm", "narrow", "prefix", "first", "around", "further", "through", "leave"}


def test_kv_cache_equals_a_fresh_prefill_after_every_round(tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    engine, method = Engine(models), registry.get("hydra-plus-plus").with_params(depth=3)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        with torch.inference_mode():
            mine, fresh = row.state.drafter.catch_up(row), row.drafter.init_state(row, models)
        torch.testing.assert_close(mine, fresh.newest, rtol=0, atol=1e-10)
        assert row.state.drafter.kv_caches[0].n_used == fresh.kv_caches[0].n_used == len(row.committed) - 1
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_prompt_too_short_to_draft_from_is_answered(prompt: list[int], tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    request = Request(prompt, registry.get("hydra-plus-plus"), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
