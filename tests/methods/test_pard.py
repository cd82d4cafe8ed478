"""PARD: a draft is one pass over text and mask tokens in training and drafting; conditional drop leaves no gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from llama_layer import TransformersLayer
from torch import Tensor

from workbench.bench.claims import Scale
from workbench.bench.text_lab import TextLab
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.pard.drafter import PARDNet
from workbench.methods.pard.train import MIN_RETENTION, RETENTION, sample_retained

D, HEADS, FFN, N, STEPS = 12, 2, 20, 6, 4
PROMPT = model_helpers.random_prompt(9)


def net_of() -> PARDNet:
    """Return a network whose norms all have random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = PARDNet(D, HEADS, FFN).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
        torch.nn.init.normal_(net.mask)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_draft_equals_one_pass_of_a_plain_decoder_over_text_and_masks() -> None:
    """The reference is transformers' own layer on the text followed by mask tokens."""
    net, following, features = net_of(), random_tensor(1, N, D), random_tensor(1, N, D, seed=1)
    mask = torch.cat([net.norm_embed(net.mask), net.norm_feature(features[0, -1])]) @ net.fuse.weight.T
    text = torch.cat([net.norm_embed(following), net.norm_feature(features)], -1) @ net.fuse.weight.T
    with torch.inference_mode():
        wanted = TransformersLayer(net)(torch.cat([text, *[mask.view(1, 1, D)] * (STEPS - 1)], 1))[:, N - 1 :]
        states = net.forward_drafts(following, features, [torch.arange(N), *[torch.tensor([N - 1])] * (STEPS - 1)])
    mine = torch.cat([state[:, -1:] for state in states], 1)
    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-6)  # the tables of rotary positions are float32
    assert dict(net.named_parameters())["mask"].shape == (D,), "one mask embedding for all positions"


def test_training_states_equal_drafting_states() -> None:
    """Each step after each selected pair has the same state as a pass over that text and its mask tokens."""
    net, following, features = net_of(), random_tensor(2, N, D), random_tensor(2, N, D, seed=1)
    columns = [torch.arange(N), torch.tensor([0, 2, 3, 5]), torch.tensor([0, 3, 5]), torch.tensor([3])]
    states, pairs = net.forward_drafts(following, features, columns), net.make_pairs(following, features)
    for b in range(2):
        entries = DraftKVCache(HEADS, net.head_size, 4, pairs)
        for place in range(N):
            masks = net.mask_inputs(features[b, place].expand(1, STEPS - 1, -1))
            x = torch.cat([pairs[b : b + 1, place : place + 1], masks], 1)
            draft = net(x, torch.arange(place, place + STEPS), None, entries)[0]
            entries.truncate(place + 1)
            for step, asked in enumerate(columns):
                for k in (asked == place).nonzero().flatten():
                    torch.testing.assert_close(states[step][b, k], draft[step], rtol=0, atol=1e-12)


def test_gradients_of_a_step_reach_the_text_up_to_its_pair_and_its_masks() -> None:
    net, following, features = (
        net_of(),
        random_tensor(1, N, D).requires_grad_(),
        random_tensor(1, N, D, seed=1).requires_grad_(),
    )
    net.forward_drafts(following, features, [torch.arange(N)] * STEPS)[-1][:, 2].sum().backward()
    for read in (following, features):
        assert read.grad is not None
        assert (read.grad.abs().sum(-1)[0] > 0).tolist() == [True, True, True, False, False, False]


def test_conditional_drop_is_nested_and_has_labels() -> None:
    """Conditional drop: as many positions as in the released code, nested, without wrap-around at the text's end."""
    n, steps = 200, 8
    follows = [(torch.arange(n) >= 20) & (torch.arange(n) < n - step) for step in range(steps)]
    columns = sample_retained(follows, torch.Generator().manual_seed(3))
    assert columns[0].tolist() == list(range(n))
    for step in range(1, steps):
        kept = columns[step].tolist()
        assert kept == sorted(set(kept) & set(columns[step - 1].tolist()))
        assert follows[step][columns[step]].all()
        wanted = 180 * max(RETENTION**step, MIN_RETENTION)
        assert wanted - steps - 1 <= len(kept) <= wanted + 1, "less those at the end of the text"
    assert (RETENTION, MIN_RETENTION) == (0.7, 0.2)
    assert [len(c) for c in sample_retained(follows, None)] == [200, *(180 - step for step in range(1, steps))]
    others = sample_retained(follows, torch.Generator().manual_seed(4))
    assert others[1].tolist() != columns[1].tolist()


def passes(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **params: Any) -> list[int]:
    """Return the drafter's passes in each round."""
    models, ran = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads"), 0
    models.target.lm_head.get_parameter("weight").data.mul_(0.2)  # flat distributions: some drafts are accepted
    forward = FeatureNet.forward

    def counted(self: FeatureNet, *args: Any, **more: Any) -> Tensor:
        nonlocal ran
        ran += 1
        return forward(self, *args, **more)

    engine = Engine(models)
    request = Request(PROMPT, registry.get(name).with_params(**params), SamplingParams(2.0), 40, stop_at_eos=False)
    row, found = engine.submit(request), list[int]()
    while not row.is_open:
        engine.step()
    monkeypatch.setattr(FeatureNet, "forward", counted)
    for committed in model_helpers.run_rounds(engine, row):
        assert row.state.drafter.kv_cache.n_used == row.state.drafter.kv_cache.n_stable, (
            "mask tokens leave no entries in the cache"
        )
        assert committed
        found.append(ran)
        ran = 0
    monkeypatch.setattr(FeatureNet, "forward", forward)
    assert row.error is None
    return found


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_draft_takes_one_pass_whatever_its_length(depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multi-token prediction runs once per draft token."""
    mine = passes("pard", monkeypatch, tmp_path, depth=depth)
    theirs = passes("mtp", monkeypatch, tmp_path, depth=depth, grower="chain")
    assert set(mine[1:-1]) == {1}, "the first round's pair is read with the prompt; the last round has no draft"
    assert set(theirs[1:-depth]) == {depth}, "near the end of a text there is room for fewer"


@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_prompt_too_short_to_draft_from_is_answered(prompt: list[int], tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    request = Request(prompt, registry.get("pard"), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)


@pytest.mark.on_demand
def test_lab_counts_the_tokens_per_pass() -> None:
    own, theirs = (TextLab(name, Scale(tokens=16)).on_groups("maths") for name in ("pard", "mtp"))
    assert 4 < own.drafted_per_pass(depth=6).value <= 6, "fewer near the end of a text"
    assert 1 <= theirs.drafted_per_pass(depth=6, grower="chain").value < 1.3, "the first pair is read with the prompt"


def test_head_is_built_with_the_sizes_of_the_training_recipe() -> None:
    """`Head.build` passes a constructor only the arguments in its signature."""
    net = registry.heads()["pard"].build(D, {"heads": 3, "ffn": 8, "head_size": 2, "rows": 32})
    assert (net.heads, net.head_size, net.qkv.out_features) == (3, 2, 18)
    assert {k: v.shape for k, v in PARDNet.of(net.config()).state_dict().items()} == {
        k: v.shape for k, v in net.state_dict().items()
    }
