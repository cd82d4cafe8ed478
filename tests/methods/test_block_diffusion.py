"""Block diffusion: what a place of a block sees, in training as in use, and what its law may depend on."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_drafts import WARM, chances, drafts, read_by
from torch import Tensor
from torch.nn import functional as F

from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.drafters.attention_net import DraftKVCache
from workbench.methods.drafters.block_diffusion import BlockNet, n_unmasked
from workbench.training.family.block_diffusion import (
    ANCHORS,
    PARTLY_VISIBLE_SHARE,
    predicting_positions,
    sample_anchors,
    sample_visible,
)

D, HEADS, FFN, N, M = 12, 2, 20, 7, 4
NAME = "block-diffusion"


def net_of() -> BlockNet:
    """A net none of whose norms is the identity; two streams, blocks of four places."""
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
    """One head's numbers [d] at a place, turned pair by pair."""
    half = len(x) // 2
    angles = torch.tensor([place * 10_000 ** (-2 * i / len(x)) for i in range(half)], dtype=torch.float64)
    cos, sin = angles.cos().float().tolist(), angles.sin().float().tolist()  # as our tables are
    first = [x[i] * cos[i] - x[half + i] * sin[i] for i in range(half)]
    return torch.stack(first + [x[half + i] * cos[i] + x[i] * sin[i] for i in range(half)])


def by_hand(net: BlockNet, streams: Tensor, block: Tensor) -> Tensor:
    """The states of a block behind a text, written as in the paper, place by place and head by head.

    Args:
        net: whose weights.
        streams: of the target, [n, T · D].
        block: what enters, [m, D].
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


def test_the_pass_is_the_papers() -> None:
    """Behind a text of streams: nothing but its keys and values is read of it, and every place sees the whole block."""
    net, streams, embeds = net_of(), noise(N, 2 * D), noise(N + M, D, seed=1)
    anchor = torch.tensor([[N]])
    is_known = torch.tensor([[[True, False, True, False]]])
    padded = torch.cat([streams, noise(M, 2 * D, seed=2)])[None]
    with torch.inference_mode():
        mine = net.forward_blocks(padded, embeds[None], anchor, is_known)[0, 0]
        block = torch.stack([embeds[N], net.mask, embeds[N + 2], net.mask])
        torch.testing.assert_close(mine, by_hand(net, streams, block), rtol=0, atol=1e-12)


def unmasked_by_hand(models: Models, net: BlockNet, committed: list[int], steps: int) -> Tensor:
    """Laws [m, V] of a block's masked places, plain: those of the step that each was unmasked in."""
    embed, masks = models.target.embed, net.block - 1
    with torch.inference_mode():
        streams = read_by(net, models, committed)
        tokens: dict[int, int] = {0: committed[-1]}
        distributions: dict[int, Tensor] = {}
        for step in range(1, steps + 1):
            block: list[Tensor] = [
                embed(torch.tensor(tokens[i])) if i in tokens else net.mask for i in range(net.block)
            ]
            said = models.target.lm_head(by_hand(net, streams, torch.stack(block))).softmax(-1)
            left = sorted((i for i in range(1, masks + 1) if i not in tokens), key=lambda i: -float(said[i].max()))
            for i in left[: math.ceil(step * masks / steps) - len(distributions)]:
                distributions[i], tokens[i] = said[i], int(said[i].argmax())
    return torch.stack([distributions[i] for i in range(1, masks + 1)])


@pytest.mark.parametrize("steps", model_helpers.mark_on_demand_unless(("1", "3"), [1, 2, 3, 7]))
def test_drafts_are_what_the_pass_by_hand_says(steps: int, models: Models) -> None:
    """Behind every text that comes up, whatever was accepted before; in several steps the surest places come first."""
    found = drafts(models, NAME, SamplingParams(), n=12, depth=7, unmaskings=steps)
    for draft in found:
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, steps)
        assert draft.tree.tokens.tolist() == distributions.argmax(1).tolist()[: len(draft.tree)]
        assert draft.tree.score is not None
        wanted = chances(distributions[: len(draft.tree)], draft.tree.tokens)
        torch.testing.assert_close(draft.tree.score.double(), wanted, atol=1e-5, rtol=1e-5)
    assert max(len(draft.tree) for draft in found) == 7


def test_steps_tell_places_of_each_other(models: Models) -> None:
    """Else the test of several steps would be one of a single step."""
    one, more = (drafts(models, NAME, SamplingParams(), n=12, depth=7, unmaskings=steps)[0] for steps in (1, 3))
    assert one.committed == more.committed
    assert not torch.allclose(one.tree.score, more.tree.score)  # type: ignore[arg-type]


@pytest.mark.parametrize("grower", ["chain", "eagle-2"])
def test_the_law_of_a_level_is_the_same_behind_all_nodes(grower: str, models: Models) -> None:
    shared = False
    for draft in drafts(models, NAME, SamplingParams(), n=12, depth=4, grower=grower, unmaskings=2):
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, 2)
        seen = set[tuple[int, int]]()
        for node, token, path in draft.nodes():
            assert draft.tree.score is not None
            assert float(draft.tree.score[node]) == pytest.approx(float(distributions[len(path), token]), abs=1e-5)
            shared |= (len(path), token) in seen
            seen.add((len(path), token))
    assert shared == (grower != "chain"), "one token behind two parents"


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_drawn_has_no_part_in_any_law(steps: int, models: Models) -> None:
    """The law that a place's token was drawn from is that of the text alone, so it is the one that a verifier is told.

    Were what was drawn shown to the places that are left, their laws would not be those of the likeliest tokens.
    """
    unlikely = 0

    for draft in drafts(models, NAME, WARM, n=12, depth=7, unmaskings=steps):
        distributions = unmasked_by_hand(models, draft.state.net, draft.committed, steps).log()[: len(draft.tree)]
        assert draft.tree.q is not None
        torch.testing.assert_close(draft.tree.q.double(), to_probs(distributions, WARM), atol=1e-5, rtol=1e-5)
        unlikely += int((draft.tree.tokens != distributions.argmax(1)).sum())
    assert unlikely > 5, "not the likeliest tokens alone"


# -- what a place sees ------------------------------------------------------------------------------------------------


def test_training_makes_the_blocks_that_drafting_makes() -> None:
    """All blocks at once, in rows beside each other: each as by a pass of its own behind entries that were kept."""
    net, streams, embeds = net_of(), noise(2, N, 2 * D), noise(2, N, D, seed=1)
    anchors = torch.tensor([[1, 4, 0], [6, 2, 5]])
    is_known = torch.rand(2, 3, M, generator=torch.Generator().manual_seed(2)) < 0.4
    is_known[..., 0] = True
    states = net.forward_blocks(streams, embeds, anchors, is_known)
    later = torch.cat([embeds, embeds[:, -1:].expand(-1, M, -1)], 1)  # behind the end there is nothing to say
    for b, a in itertools.product(range(2), range(3)):
        anchor = int(anchors[b, a])
        entries = [DraftKVCache(HEADS, layer.head_size, 4, streams) for layer in net.decoder_layers]
        for place in range(anchor):
            made = net.project_text_kv(streams[b : b + 1, place : place + 1], torch.tensor([place]))
            for kept, new in zip(entries, made, strict=True):
                kept.append(new)
                kept.commit()
        x = net.block_inputs(later[b, anchor : anchor + M], is_known[b, a])
        wanted = net(x[None], torch.arange(anchor, anchor + M), entries)[0]
        torch.testing.assert_close(states[b, a], wanted, rtol=0, atol=1e-12)


def test_a_place_learns_from_the_text_before_its_block_and_from_what_is_in_sight_of_it() -> None:
    """Forwards and backwards in its own block; nothing of the text behind the block's beginning, of masked tokens, or
    of other blocks."""
    net, streams, embeds = net_of(), noise(1, N, 2 * D).requires_grad_(), noise(1, N, D, seed=1).requires_grad_()
    is_known = torch.zeros(1, 2, M, dtype=torch.bool)
    is_known[..., 0] = is_known[0, 1, 2] = is_known[0, 0, 1] = True
    net.forward_blocks(streams, embeds, torch.tensor([[4, 2]]), is_known)[0, 1, 1].sum().backward()
    reached = [(x.grad.abs().sum(-1)[0] > 0).tolist() for x in (streams, embeds) if x.grad is not None]
    assert reached[0] == [True, True, False, False, False, False, False], "streams before place 2"
    assert reached[1] == [False, False, True, False, True, False, False], "tokens 2 and, behind the place, 4"
    assert net.mask.grad is not None
    assert net.mask.grad.abs().sum() > 0


def test_entries_are_those_of_a_fresh_reading_after_every_round(tmp_path: Path) -> None:
    """Of a block nothing stays, however often it was asked, and of a draft what was accepted."""
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(0.2)  # flat laws: untrained drafts are kept now and then
    engine, method = Engine(models), registry.get(NAME).with_params(depth=3, unmaskings=2)
    prompt = model_helpers.random_prompt(9)
    row = engine.submit(Request(prompt, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()

    def kept(state: Any) -> list[Tensor]:
        with torch.inference_mode():
            state.catch_up()
            assert all(cache.n_used == cache.n_stable == state.position for cache in state.kv_caches)
            return [torch.stack(cache.append(cache.reserve(0)[0][:, :, :, :0])) for cache in state.kv_caches]

    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        for mine, fresh in zip(kept(row.state.drafter), kept(row.drafter.init_state(row, models)), strict=True):
            torch.testing.assert_close(mine, fresh, rtol=0, atol=1e-10)
        assert row.state.drafter.position == len(row.committed) - 1
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


# -- what is trained --------------------------------------------------------------------------------------------------


def test_blocks_begin_where_an_answer_has_a_token_to_guess() -> None:
    """Of tokens 0 … 29 answers are 5 … 24 and 20 … 24: their tokens are decided by the places before them."""
    answer = torch.zeros(2, 30, dtype=torch.bool)
    answer[0, 4:24] = answer[1, 19:24] = True
    anchors, is_there = sample_anchors(answer, torch.Generator().manual_seed(1))
    assert anchors.shape == (2, ANCHORS)
    assert is_there.sum(1).tolist() == [ANCHORS, 5], "each place once"
    for row in range(2):
        begun = anchors[row][is_there[row]].tolist()
        assert len(set(begun)) == len(begun)
        assert answer[row, begun].all()
    others = sample_anchors(answer, torch.Generator().manual_seed(2))[0]
    assert sorted(others[0].tolist()) != sorted(anchors[0].tolist())
    assert torch.equal(sample_anchors(answer, None)[0], sample_anchors(answer, None)[0])
    numbers = torch.arange(30).expand(2, -1)
    assert torch.equal(predicting_positions(numbers, anchors + 1), anchors), "the token behind the known one"


def test_some_blocks_are_learnt_with_tokens_in_sight_and_none_are_measured_so() -> None:
    seen = sample_visible((40, 50), M, torch.Generator().manual_seed(0))
    assert seen[..., 0].all()
    partly = float(seen[..., 1:].any(-1).float().mean())
    assert PARTLY_VISIBLE_SHARE / 2 < partly < PARTLY_VISIBLE_SHARE, (
        "of a part of these blocks the share is too small to show a token"
    )
    assert sample_visible((2, 3), M, None).sum() == 6


def test_masks_are_shared_out_evenly() -> None:
    assert [n_unmasked(step, 7, 7) for step in range(1, 8)] == list(range(1, 8))
    assert [n_unmasked(step, 2, 7) for step in (0, 1, 2)] == [0, 4, 7]


def test_sizes_that_cannot_be_are_refused() -> None:
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
def test_a_prompt_of_one_token_is_drafted_for_too(prompt: list[int], models: Models) -> None:
    request = Request(prompt, registry.get(NAME), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
