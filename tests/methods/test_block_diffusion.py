"""Block diffusion: attention of the positions in a block, in training and in drafting, and their distributions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_drafts import WARM, drafter_features, drafts, token_probs
from torch import Tensor
from torch.nn import functional as F

from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.block_diffusion.drafter import BlockNet, n_unmasked
from workbench.methods.block_diffusion.train import (
    ANCHORS,
    PARTLY_VISIBLE_SHARE,
    predicting_positions,
    sample_anchors,
    sample_visible,
)
from workbench.methods.common.attention_net import DraftKVCache

D, HEADS, FFN, N, M = 12, 2, 20, 7, 4
NAME = "block-diffusion"


def net_of() -> BlockNet:
    """Return a network whose norms all have random weights; hidden states of two layers, blocks of four positions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = BlockNet(D, HEADS, FFN, (1, 2), M, 2, 6).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
        torch.nn.init.normal_(net.mask)
    return net


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Six tokens, untrained weights; float64."""
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("heads"))


# -- by hand ----------------------------------------------------------------------------------------------------------


def rotate_by_hand(x: Tensor, place: int) -> Tensor:
    """Rotate one head's values [d] at a position, pair by pair."""
    half = len(x) // 2
    angles = torch.tensor([place * 10_000 ** (-2 * i / len(x)) for i in range(half)], dtype=torch.float64)
    cos, sin = angles.cos().float().tolist(), angles.sin().float().tolist()  # in float32, as the package's RoPE tables
    first = [x[i] * cos[i] - x[half + i] * sin[i] for i in range(half)]
    return torch.stack(first + [x[half + i] * cos[i] + x[i] * sin[i] for i in range(half)])


def by_hand(net: BlockNet, streams: Tensor, block: Tensor) -> Tensor:
    """Compute the states of a block after a text as in the paper, position by position and head by head.

    Args:
        net: network whose weights are used.
        streams: captured hidden states of the target, [n, T · D].
        block: inputs of the block, [m, D].
    """

    def norm(x: Tensor, scale: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * scale

    w, n = net.state_dict(), len(streams)
    text = norm(streams @ w["narrow.weight"].T @ w["widen.weight"].T, w["norm_text.weight"])
    x, heads, size = block, net.heads, net.decoder_layers[0].head_size
    for number in range(len(net.layers)):
        part = {k.removeprefix(f"layers.{number}."): v for k, v in w.items()}
        asks, keys, values = part["qkv.weight"].view(3, heads, size, -1).unbind(0)
        entering = torch.cat([text, norm(x, part["before.weight"])])
        read = []
        for place in range(n, n + len(block)):
            found = []
            for head in range(heads):
                query = rotate_by_hand(asks[head] @ entering[place], place)
                scores = [query @ rotate_by_hand(keys[head] @ each, at) / size**0.5 for at, each in enumerate(entering)]
                found.append(torch.stack(scores).softmax(0) @ (entering @ values[head].T))
            read.append(torch.cat(found))
        x = x + torch.stack(read) @ part["out.weight"].T
        gate, up = (norm(x, part["between.weight"]) @ part["gate_up.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ part["down.weight"].T
    return norm(x, w["after.weight"])


def test_block_forward_equals_the_papers_formulas() -> None:
    """Of the text, only keys and values are read; every position of the block attends to the whole block."""
    net, streams, embeds = net_of(), noise(N, 2 * D), noise(N + M, D, seed=1)
    anchor = torch.tensor([[N]])
    is_known = torch.tensor([[[True, False, True, False]]])
    padded = torch.cat([streams, noise(M, 2 * D, seed=2)])[None]
    with torch.inference_mode():
        mine = net.forward_blocks(padded, embeds[None], anchor, is_known)[0, 0]
        block = torch.stack([embeds[N], net.mask, embeds[N + 2], net.mask])
        torch.testing.assert_close(mine, by_hand(net, streams, block), rtol=0, atol=1e-12)


def unmasked_by_hand(models: Models, net: BlockNet, committed: list[int], steps: int) -> Tensor:
    """Distributions [m, V] of a block's masked positions by plain passes, from the step that unmasked each."""
    embed, masks = models.target.embed, net.block - 1
    with torch.inference_mode():
        streams = drafter_features(net, models, committed)
        tokens: dict[int, int] = {0: committed[-1]}
        distributions: dict[int, Tensor] = {}
        for step in range(1, steps + 1):
            block: list[Tensor] = [
                embed(torch.tensor(tokens[i])) if i in tokens else net.mask for i in range(net.block)
            ]
            probs = models.target.lm_head(by_hand(net, streams, torch.stack(block))).softmax(-1)
            left = sorted((i for i in range(1, masks + 1) if i not in tokens), key=lambda i: -float(probs[i].max()))
            for i in left[: math.ceil(step * masks / steps) - len(distributions)]:
                distributions[i], tokens[i] = probs[i], int(probs[i].argmax())
    return torch.stack([distributions[i] for i in range(1, masks + 1)])


@pytest.mark.parametrize("steps", model_helpers.mark_on_demand_unless(("1", "3"), [1, 2, 3, 7]))
def test_draft_distributions_equal_those_computed_by_hand(steps: int, models: Models) -> None:
    """After every text of a run, whatever was accepted; with several steps, the most confident positions come first."""
    records = drafts(models, NAME, SamplingParams(), n=12, depth=7, unmaskings=steps)
    for draft in records:
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, steps)
        assert draft.tree.tokens.tolist() == distributions.argmax(1).tolist()[: len(draft.tree)]
        assert draft.tree.score is not None
        expected = token_probs(distributions[: len(draft.tree)], draft.tree.tokens)
        torch.testing.assert_close(draft.tree.score.double(), expected, atol=1e-5, rtol=1e-5)
    assert max(len(draft.tree) for draft in records) == 7


def test_unmasking_steps_change_the_distributions(models: Models) -> None:
    """Otherwise the test of several steps would only test a single step."""
    one, more = (drafts(models, NAME, SamplingParams(), n=12, depth=7, unmaskings=steps)[0] for steps in (1, 3))
    assert one.committed == more.committed
    assert not torch.allclose(one.tree.score, more.tree.score)  # type: ignore[arg-type]


@pytest.mark.parametrize("grower", ["chain", "eagle-2"])
def test_a_level_has_the_same_distribution_at_every_parent(grower: str, models: Models) -> None:
    shared = False
    for draft in drafts(models, NAME, SamplingParams(), n=12, depth=4, grower=grower, unmaskings=2):
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, 2)
        seen = set[tuple[int, int]]()
        for node, token, path in draft.nodes():
            assert draft.tree.score is not None
            assert float(draft.tree.score[node]) == pytest.approx(float(distributions[len(path), token]), abs=1e-5)
            shared |= (len(path), token) in seen
            seen.add((len(path), token))
    assert shared == (grower != "chain"), "one token below two parents"


@pytest.mark.parametrize("steps", [1, 3])
def test_distributions_do_not_depend_on_sampled_tokens(steps: int, models: Models) -> None:
    """A token is sampled from a distribution that depends on the text only, and the verifier gets this distribution.

    If later steps saw the sampled tokens, their distributions would differ from those after the most likely tokens.
    """
    unlikely = 0

    for draft in drafts(models, NAME, WARM, n=12, depth=7, unmaskings=steps):
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, steps).log()[: len(draft.tree)]
        assert draft.tree.q is not None
        torch.testing.assert_close(draft.tree.q.double(), to_probs(distributions, WARM), atol=1e-5, rtol=1e-5)
        unlikely += int((draft.tree.tokens != distributions.argmax(1)).sum())
    assert unlikely > 5, "drafts contain less likely tokens"


# -- attention of a position ------------------------------------------------------------------------------------------


def test_training_blocks_equal_drafting_blocks() -> None:
    """All blocks of a batch at once equal one pass per block with a KV cache of the text before it."""
    net, streams, embeds = net_of(), noise(2, N, 2 * D), noise(2, N, D, seed=1)
    anchors = torch.tensor([[1, 4, 0], [6, 2, 5]])
    is_known = torch.rand(2, 3, M, generator=torch.Generator().manual_seed(2)) < 0.4
    is_known[..., 0] = True
    states = net.forward_blocks(streams, embeds, anchors, is_known)
    later = torch.cat([embeds, embeds[:, -1:].expand(-1, M, -1)], 1)  # no label after the end of the text
    for b, a in itertools.product(range(2), range(3)):
        anchor = int(anchors[b, a])
        caches = [DraftKVCache(HEADS, layer.head_size, 4, streams) for layer in net.decoder_layers]
        for position in range(anchor):
            new_kv = net.project_text_kv(streams[b : b + 1, position : position + 1], torch.tensor([position]))
            for cache, new in zip(caches, new_kv, strict=True):
                cache.append(new)
                cache.commit()
        x = net.block_inputs(later[b, anchor : anchor + M], is_known[b, a])
        expected = net(x[None], torch.arange(anchor, anchor + M), caches)[0]
        torch.testing.assert_close(states[b, a], expected, rtol=0, atol=1e-12)


def test_gradients_reach_earlier_text_and_known_tokens_of_the_block() -> None:
    """Known tokens of the own block count on both sides; later text, masked tokens and other blocks do not."""
    net, streams, embeds = net_of(), noise(1, N, 2 * D).requires_grad_(), noise(1, N, D, seed=1).requires_grad_()
    is_known = torch.zeros(1, 2, M, dtype=torch.bool)
    is_known[..., 0] = is_known[0, 1, 2] = is_known[0, 0, 1] = True
    net.forward_blocks(streams, embeds, torch.tensor([[4, 2]]), is_known)[0, 1, 1].sum().backward()
    reached = [(x.grad.abs().sum(-1)[0] > 0).tolist() for x in (streams, embeds) if x.grad is not None]
    assert reached[0] == [True, True, False, False, False, False, False], "hidden states before position 2"
    assert reached[1] == [False, False, True, False, True, False, False], "token 2 and, after the position, token 4"
    assert net.mask.grad is not None
    assert net.mask.grad.abs().sum() > 0


def test_kv_cache_equals_a_fresh_prefill_after_every_round(tmp_path: Path) -> None:
    """Drafted blocks leave no entry in the cache; accepted tokens do."""
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    engine, method = Engine(models), registry.get(NAME).with_params(depth=3, unmaskings=2)
    prompt = model_helpers.random_prompt(9)
    row = engine.submit(Request(prompt, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()

    def cached_kv(state: Any) -> list[Tensor]:
        with torch.inference_mode():
            state.catch_up()
            assert all(cache.n_used == cache.n_stable == state.position for cache in state.kv_caches)
            return [torch.stack(cache.append(cache.reserve(0)[0][:, :, :, :0])) for cache in state.kv_caches]

    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        for mine, fresh in zip(
            cached_kv(row.state.drafter), cached_kv(row.drafter.init_state(row, models)), strict=True
        ):
            torch.testing.assert_close(mine, fresh, rtol=0, atol=1e-10)
        assert row.state.drafter.position == len(row.committed) - 1
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


# -- what is trained --------------------------------------------------------------------------------------------------


def test_blocks_begin_where_the_answer_has_a_token_to_predict() -> None:
    """Of tokens 0 … 29, the answers are 5 … 24 and 20 … 24; position s − 1 decides token s."""
    answer = torch.zeros(2, 30, dtype=torch.bool)
    answer[0, 4:24] = answer[1, 19:24] = True
    anchors, is_there = sample_anchors(answer, torch.Generator().manual_seed(1))
    assert anchors.shape == (2, ANCHORS)
    assert is_there.sum(1).tolist() == [ANCHORS, 5], "each position once"
    for row in range(2):
        begun = anchors[row][is_there[row]].tolist()
        assert len(set(begun)) == len(begun)
        assert answer[row, begun].all()
    others = sample_anchors(answer, torch.Generator().manual_seed(2))[0]
    assert sorted(others[0].tolist()) != sorted(anchors[0].tolist())
    assert torch.equal(sample_anchors(answer, None)[0], sample_anchors(answer, None)[0])
    numbers = torch.arange(30).expand(2, -1)
    assert torch.equal(predicting_positions(numbers, anchors + 1), anchors), "the token after the known one"


def test_some_training_blocks_reveal_tokens_and_no_evaluation_block_does() -> None:
    seen = sample_visible((40, 50), M, torch.Generator().manual_seed(0))
    assert seen[..., 0].all()
    partly = float(seen[..., 1:].any(-1).float().mean())
    assert PARTLY_VISIBLE_SHARE / 2 < partly < PARTLY_VISIBLE_SHARE, (
        "in some of these blocks the share is too small to reveal a token"
    )
    assert sample_visible((2, 3), M, None).sum() == 6


def test_masks_are_distributed_evenly() -> None:
    assert [n_unmasked(step, 7, 7) for step in range(1, 8)] == list(range(1, 8))
    assert [n_unmasked(step, 2, 7) for step in (0, 1, 2)] == [0, 4, 7]


def test_invalid_sizes_are_refused() -> None:
    for block in (1, 9):
        with pytest.raises(ValueError, match="give 2 to 8 positions"):
            BlockNet(D, HEADS, FFN, (1, 2), block)
    for taps in ((), (2, 1), (0, 1)):
        with pytest.raises(ValueError, match="ascending and distinct"):
            BlockNet(D, HEADS, FFN, taps)
    net = registry.heads()[NAME].build(D, {"heads": 3, "ffn": 8, "head_size": 2, "block": 5, "layers": 3, "rows": 32})
    assert BlockNet.of(net.config()).sizes == net.sizes
    assert (net.block, len(net.layers), net.decoder_layers[0].head_size) == (5, 3, 2)


@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_prompt_of_one_token_is_drafted_for(prompt: list[int], models: Models) -> None:
    request = Request(prompt, registry.get(NAME), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
