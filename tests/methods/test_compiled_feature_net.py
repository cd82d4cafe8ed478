"""A feature drafter's layer with compiled passes equals its own code."""

from __future__ import annotations

import copy
from pathlib import Path

import model_helpers
import pytest
import torch
from torch import Tensor, nn

from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels import compilation
from workbench.kernels.reduced_vocabulary import SharedHead
from workbench.methods import registry
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.compiled_feature_net import CompiledFeatureNet
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.eagle_3.drafter import Eagle3Net
from workbench.methods.mtp.drafter import MTPNet
from workbench.methods.pard.drafter import PARDNet
from workbench.models.loading import HeadInfo
from workbench.trace import metrics
from workbench.training.heads.artefact import save_net

pytestmark = pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
D, HEADS, FFN, VOCABULARY, CAPACITY = 64, 2, 96, 40, 64
KEPT = [1, 2, 5, 7, 11, 20, 30, 39]


def parts(
    kind: type[FeatureNet] = FeatureNet, dtype: torch.dtype = torch.bfloat16, capacity: int = CAPACITY
) -> tuple[FeatureNet, SharedHead, nn.Embedding]:
    """A network with random weights, the target's LM head in its own storage format, and the target's embedding."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = kind(D, HEADS, FFN, context=capacity)
        for name, weight in net.named_parameters():
            nn.init.normal_(weight, 1.0 if name.startswith(("norm", "before", "between", "after")) else 0.0, 0.15)
        head, embed = nn.Linear(D, VOCABULARY, bias=False, dtype=dtype), nn.Embedding(VOCABULARY, D, dtype=dtype)
    return net.to(dtype).prepare_for_drafting(), SharedHead(head, {"draft_vocabulary": KEPT}), embed


def entries(net: FeatureNet) -> DraftKVCache:
    return DraftKVCache(net.heads, net.head_size, 3, torch.zeros(1, dtype=torch.bfloat16))  # grows during the test


def copied(kept: DraftKVCache) -> DraftKVCache:
    return copy.deepcopy(kept)


def close(mine: Tensor, theirs: Tensor) -> None:
    """Compare with a tolerance of a few rounding errors of bfloat16."""
    torch.testing.assert_close(mine.float(), theirs.float(), atol=0.1, rtol=0.04)


@pytest.mark.parametrize("kind", [FeatureNet, MTPNet, Eagle3Net])
@torch.inference_mode()
def test_text_and_tree_equal_the_networks_own_code(kind: type[FeatureNet]) -> None:
    net, head, embed = parts(kind)
    shared_copy = CompiledFeatureNet.of(net, head, embed, CAPACITY)
    assert shared_copy is not None
    assert shared_copy.takes(5)
    mine, theirs = entries(net), entries(net)
    tokens, streams = torch.tensor([4, 39, 0, 7, 7]), 2 if kind is Eagle3Net else 1
    true = torch.randn(5, streams * D, generator=torch.Generator().manual_seed(1)).bfloat16()
    places = torch.arange(11, 16)
    level_output = shared_copy.run_level(tokens, true, places, None, mine)
    features = net.combine_hidden_states(true)
    wanted = net(net.make_pairs(embed(tokens), features)[None], places, None, theirs)[0]
    close(level_output.states, wanted)
    close(level_output.logits, head(net.lm_head_input(wanted)))
    best, ids = head.top_tokens(level_output.logits, 3)
    assert torch.equal(head.to_token_ids(level_output.summary.top[:, :3]), ids)
    close(level_output.summary.logs[:, :3], best)
    mine.commit()
    theirs.commit()
    last = shared_copy.run_level(tokens, true, places + 5, None, copied(mine), last_only=True)
    close(last.states, net(net.make_pairs(embed(tokens), features)[None], places + 5, None, copied(theirs))[0, -1:])
    sees = torch.tensor([[True, False], [False, True]])  # two siblings, which do not attend to each other
    siblings, place = (tokens[:2], features[:2]), torch.tensor([16, 16])
    grown = shared_copy.run_level(*siblings, place, sees, mine).states
    mask = torch.cat([torch.ones(2, 5, dtype=torch.bool), sees], 1)
    close(grown, net(net.make_pairs(embed(siblings[0]), siblings[1])[None], place, mask, theirs)[0])
    assert mine.n_used == theirs.n_used == 7
    assert not torch.equal(
        shared_copy.run_level(*siblings, place, torch.ones(2, 2, dtype=torch.bool), mine).states, grown
    )


@torch.inference_mode()
def test_rope_equals_the_networks_at_far_positions() -> None:
    """The network reads a long prompt and the compiled copy drafts after it, so both must use the same RoPE angles."""
    far = 2000
    net, head, embed = parts(capacity=far + 20)
    shared_copy = CompiledFeatureNet.of(net, head, embed, far + 20)
    assert shared_copy is not None
    mine, theirs = entries(net), entries(net)
    x = torch.randn(1, 6, D, generator=torch.Generator().manual_seed(2)).bfloat16()
    for kept in (mine, theirs):
        net(x[:, :5], torch.arange(5), None, kept)
        kept.commit()
    token, feature = torch.tensor([7]), x[0, 5:]
    states = shared_copy.run_level(token, feature, torch.tensor([far]), None, mine).states
    close(states, net(net.make_pairs(embed(token), feature)[None], torch.tensor([far]), None, theirs)[0])


def test_unsupported_networks_have_no_compiled_copy() -> None:
    assert CompiledFeatureNet.of(*parts(PARDNet), CAPACITY) is None
    assert (
        CompiledFeatureNet.of(*parts(type("Other", (Eagle3Net,), {"lm_head_input": lambda _, state: state})), CAPACITY)
        is None
    )
    assert CompiledFeatureNet.of(*parts(dtype=torch.float32), CAPACITY) is None
    net, _, embed = parts()
    assert CompiledFeatureNet.of(net, SharedHead(nn.Linear(D, VOCABULARY, bias=False), {}), embed, CAPACITY) is None


def networks_with_a_large_vocabulary() -> dict[tuple[str, ...], FeatureNet]:
    """Networks of the methods that draft with them; EAGLE-3's with an LM head of its own, and without."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        plain, module = FeatureNet(2 * D, HEADS, FFN, CAPACITY), MTPNet(2 * D, HEADS, FFN, CAPACITY)
        third = Eagle3Net(2 * D, HEADS, FFN, (1, 2), 0, CAPACITY)
        speaking = Eagle3Net(2 * D, HEADS, FFN, (1, 2), 1152, CAPACITY)
        speaking.d2t.copy_(torch.arange(1152))
    return {("eagle", "eagle-2"): plain, ("mtp",): module, ("eagle-3",): third, ("eagle-3 ",): speaking}


@pytest.mark.unchecked
@pytest.mark.parametrize(("names", "net"), networks_with_a_large_vocabulary().items())
def test_compiled_drafts_in_an_engine_keep_the_text_bit_for_bit(
    tmp_path: Path, names: tuple[str, ...], net: FeatureNet
) -> None:
    """The vocabulary is large, so that rounds also process logits in one compiled pass."""
    wide = {"hidden_size": 2 * D, "intermediate_size": FFN, "vocab_size": 2304}
    models: Models = model_helpers.make_models("llama", noise=None, **wide)
    models.target = Runner(model_helpers.family("llama", **wide).to(torch.bfloat16))
    kept = sorted(torch.randperm(2304, generator=torch.Generator().manual_seed(5))[:1800].tolist())
    facts = {} if hasattr(net, "lm_head") else {"draft_vocabulary": kept}
    config = save_net(net, tmp_path / net.kind, models.target_name, torch.bfloat16, **facts)
    models.heads = {net.kind: HeadInfo(net.kind, tmp_path / net.kind, config)}
    prompt = model_helpers.repeating_prompt(13, period=5)
    plain = Engine(models).generate(Request(prompt, registry.get("autoregressive"), max_new_tokens=40))
    for name in names:
        engine = Engine(models)
        row = engine.submit(Request(prompt, registry.get(name.strip()), max_new_tokens=40))
        while row.state is None:
            engine.step()
        assert row.state.drafter.compiled_net is not None
        while not engine.is_idle:
            engine.step()
        assert row.trace is not None
        assert row.trace.token_ids == plain.token_ids
        assert metrics.count_drafted(row.trace.rounds) > 0
