"""Multi-token prediction: DeepSeek-V3's module compared with an independent one, and known mistakes of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from llama_layer import TransformersLayer
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.common.feature_net import FeatureNet, PromptFeatures
from workbench.methods.common.training_time_test import unroll
from workbench.methods.mtp.drafter import MTPNet

D, HEADS, FFN, N, V = 12, 2, 20, 5, 9


def net_of(kind: type[FeatureNet] = MTPNet, **more: Any) -> FeatureNet:
    """Return a network whose norms all have random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = kind(D, HEADS, FFN, **more).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Released(torch.nn.Module):
    """Reference module with the weight names of released checkpoints, around transformers' own decoder layer."""

    def __init__(self, net: FeatureNet) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.head_norm = (LlamaRMSNorm(D, net.eps) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * D, D, bias=False)
        mine = net.state_dict()
        theirs = {
            "enorm.weight": mine["norm_embed.weight"], "hnorm.weight": mine["norm_feature.weight"],
            "eh_proj.weight": mine["fuse.weight"], "head_norm.weight": mine["after.weight"],
        }  # fmt: skip
        self.double().load_state_dict(theirs)
        self.layer = TransformersLayer(net)

    def forward(self, hidden: Tensor, embeds: Tensor) -> Tensor:
        """Return the states of a whole text from its hidden states and the embeddings of the following tokens."""
        return self.layer(self.eh_proj(torch.cat([self.enorm(embeds), self.hnorm(hidden)], -1)))


@pytest.mark.parametrize("head_size", [0, 4])
def test_steps_equal_the_released_module_on_its_own_states(head_size: int) -> None:
    """Two steps after a text: the second reads the first one's state as the layer returned it, without a norm."""
    net, features, embeds, head = (
        net_of(head_size=head_size),
        random_tensor(1, N, D),
        random_tensor(1, N + 1, D, seed=1),
        random_tensor(V, D),
    )
    theirs = Released(net)
    with torch.inference_mode():
        states = list(unroll(net, lambda step: embeds[:, step : step + N], features, 2))
        first = theirs(features, embeds[:, :N])
        second = theirs(torch.cat([features, first[:, -1:]], 1), embeds)
        for mine, wanted in ((states[0], first), (states[1][:, -1:], second[:, -1:])):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-6)  # the tables of rotary positions are float32
            torch.testing.assert_close(
                net.lm_head_input(mine) @ head.T, theirs.head_norm(wanted) @ head.T, rtol=0, atol=1e-5
            )
    assert net.state_dict()["qkv.weight"].shape == (3 * HEADS * (head_size or D // HEADS), D)


@pytest.mark.parametrize(("kind", "is_read_again"), [(MTPNet, False), (FeatureNet, True)])
def test_state_is_not_normalised_before_the_next_step(kind: type[FeatureNet], is_read_again: bool) -> None:
    """This is the only difference to EAGLE's layer, whose state is a feature, which the target has already normed."""
    net, features, embeds = net_of(kind), random_tensor(1, N, D), random_tensor(1, N + 1, D, seed=1)

    def states() -> list[Tensor]:
        with torch.inference_mode():
            return list(unroll(net, lambda step: embeds[:, step : step + N], features, 2))

    before = states()
    lm_head_input = net.lm_head_input(before[1])
    net.after.weight.data.mul_(torch.linspace(0.5, 2, D, dtype=torch.float64))
    assert all(torch.equal(*pair) != is_read_again for pair in zip(before, states(), strict=True))
    assert torch.equal(net.lm_head_input(before[1]), lm_head_input) == is_read_again


def test_embedding_and_output_head_are_the_targets() -> None:
    with_targets = dict(MTPNet(D, HEADS, FFN).named_parameters())
    parts = ["norm_embed", "norm_feature", "fuse", "before", "qkv", "out", "between", "gate_up", "down", "after"]
    assert set(with_targets) == {f"{part}.weight" for part in parts}


def test_first_pair_keeps_its_token() -> None:
    """Engines set the embedding at position 0 to zero; here this is the token after the first hidden state."""
    net, embeds, features = net_of(), random_tensor(1, N, D, seed=1).requires_grad_(), random_tensor(1, N - 1, D)
    entered = net.build_inputs(PromptFeatures(embeds, features))
    net(entered.inputs, entered.positions)[0, 1].sum().backward()
    assert embeds.grad is not None
    assert (embeds.grad[0].abs().sum(-1) > 0).tolist() == [False, True, True, False, False], "of tokens 1 and 2"


def test_odd_head_size_is_refused() -> None:
    for wrong in (3, -2):
        with pytest.raises(ValueError, match="not an even number"):
            MTPNet(D, HEADS, FFN, head_size=wrong)
    assert MTPNet.of(MTPNet(D, 3, FFN, head_size=2).config()).head_size == 2
    assert "head_size" not in MTPNet(D, HEADS, FFN).sizes


@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_prompt_too_short_to_draft_from_is_answered(prompt: list[int], tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    request = Request(prompt, registry.get("mtp"), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
