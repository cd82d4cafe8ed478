"""FSPAD: the token gates the feature, and the LM head reads a separate projection of the predicted feature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from llama_layer import TransformersLayer
from torch import Tensor
from torch.nn import functional as F

from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.common.training_time_test import unroll
from workbench.methods.fspad.drafter import FSPADNet
from workbench.training.heads.trainer import init_weights

D, HEADS, FFN, N, V = 12, 2, 20, 5, 9


def net_of(**more: Any) -> FSPADNet:
    """Return a network in which every part has an effect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = FSPADNet(D, HEADS, FFN, **more).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states(net: FeatureNet, features: Tensor, embeds: Tensor, steps: int = 2) -> list[Tensor]:
    return list(unroll(net, lambda step: embeds[:, step : step + N], features, steps))


@pytest.mark.parametrize("wide", [1, 3])
def test_two_steps_equal_the_papers_formulas(wide: int) -> None:
    """Two steps after a text, with transformers' own layer: the second reads the first one's unprojected feature.

    Source: the two formulas of the method's card.
    """
    net, features, embeds = net_of(wide=wide), random_tensor(1, N, D), random_tensor(1, N + 1, D, seed=1)
    weight, layer = net.state_dict(), TransformersLayer(net)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + net.eps).sqrt() * weight[f"{name}.weight"]

    def expected_states(hidden: Tensor, tokens: Tensor) -> Tensor:
        gate = norm(tokens, "norm_embed") @ weight["select.weight"].T
        offered = norm(hidden, "norm_feature") @ weight["offer.weight"].T
        return norm(layer((gate * gate.sigmoid() * offered) @ weight["fuse.weight"].T), "after")

    with torch.inference_mode():
        mine = states(net, features, embeds)
        first = expected_states(features, embeds[:, :N])
        second = expected_states(torch.cat([features, first[:, -1:]], 1), embeds)
        for got, wanted in ((mine[0], first), (mine[1][:, -1:], second[:, -1:])):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)  # the tables of rotary positions are float32
            projected = wanted + wanted @ weight["voice.weight"].T
            torch.testing.assert_close(net.lm_head_input(got), projected, rtol=0, atol=1e-5)
    assert weight["select.weight"].shape == weight["offer.weight"].shape == (wide * D, D)


def test_lm_head_projection_does_not_affect_later_steps() -> None:
    """Partial alignment: confidence of the distribution may change without any effect on features of later steps."""
    net, features, embeds = net_of(), random_tensor(1, N, D), random_tensor(1, N + 1, D, seed=1)
    with torch.inference_mode():
        before = states(net, features, embeds)
        projected = net.lm_head_input(before[1])
        assert net.voice is not None
        net.voice.weight.mul_(5)
        assert all(torch.equal(*pair) for pair in zip(before, states(net, features, embeds), strict=True))
        assert not torch.allclose(net.lm_head_input(before[1]), projected)


def test_zero_embedding_closes_the_gate() -> None:
    """The gate multiplies, where EAGLE's projection would let the feature pass."""
    net, features = net_of(), random_tensor(1, N, D)
    assert not net.make_pairs(torch.zeros(1, N, D).double(), features).any()
    eagle = FeatureNet(D, HEADS, FFN).double()
    assert eagle.make_pairs(torch.zeros(1, N, D).double(), features).any()


def test_projection_starts_as_the_identity_and_is_trained_separately() -> None:
    """Only the distribution loss trains the projection; the feature loss has no gradient there."""
    net, head = FSPADNet(D, HEADS, FFN).double(), random_tensor(V, D)
    features, embeds = random_tensor(1, N, D), random_tensor(1, N + 1, D, seed=1)
    init_weights(net, None)
    assert net.voice is not None
    (state,) = states(net, features, embeds, 1)
    assert torch.equal(net.lm_head_input(state), state)
    F.smooth_l1_loss(state, features.roll(-1, 1)).backward(retain_graph=True)
    assert net.voice.weight.grad is None
    assert net.select.weight.grad is not None
    assert net.select.weight.grad.any(), "the feature's loss reaches the gate"
    F.cross_entropy((net.lm_head_input(state) @ head.T)[0], torch.arange(N)).backward()
    assert net.voice.weight.grad is not None
    assert net.voice.weight.grad.any()


def test_network_is_rebuilt_from_its_configuration() -> None:
    for more in ({"wide": 3}, {"apart": False, "head_size": 4}):
        net = net_of(**more)
        again = FSPADNet.of(net.config()).double()
        again.load_state_dict(net.state_dict())
        features, embeds = random_tensor(1, N, D), random_tensor(1, N, D, seed=1)
        assert torch.equal(*(states(one, features, embeds, 1)[0] for one in (net, again)))
    with pytest.raises(ValueError, match="wide=0"):
        FSPADNet(D, HEADS, FFN, wide=0)


def test_without_a_projection_the_lm_head_reads_the_feature() -> None:
    net, state = net_of(apart=False), random_tensor(2, D)
    assert net.lm_head_input(state) is state
    assert "voice.weight" not in net.state_dict()
