"""Chimera: the trigram input, the draft states that stand in for missing features, training equal to drafting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_drafts import drafts, features
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.chimera.drafter import ChimeraHeads
from workbench.methods.chimera.train import compute_draft_states, guesses
from workbench.methods.common.attention_net import DraftKVCache
from workbench.models.loading import HeadInfo
from workbench.training.heads.artefact import save_net

D, C, N = 16, 8, 6
PROMPT = model_helpers.random_prompt(9)


def net_of(blocks: int = 3, width: int = D, **more: Any) -> ChimeraHeads:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ChimeraHeads(width, blocks, C, prefix_heads=2, ffn=16, **more).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.4)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(net: ChimeraHeads, embeds: Tensor, known: Tensor, n: int) -> list[Tensor]:
    """Compute the states [C] of n tokens after a text one by one, without a KV cache.

    Args:
        net: the heads.
        embeds: embeddings of the whole text and of the n tokens after the newest feature, [m + n, C].
        known: features of the text, [m, D].
        n: number of tokens.
    """
    layer, seen = net.layer, net.enter(known)
    states = list[Tensor]()
    for k in range(n):
        place = len(known) + k
        x = net.encode_trigram(torch.cat([embeds[max(place - back, 0)] for back in (2, 1, 0)]))
        rows, places = torch.cat([seen, x[None]])[None], torch.arange(place + 1)
        queries, keys, values = layer.project_qkv(layer.before(rows), places)
        weight = (queries[0, :, -1:] @ keys[0].mT * layer.head_size**-0.5).softmax(-1)
        read = (weight @ values[0]).flatten()
        states.append(layer.after(layer.apply_mlp(x + read @ layer.out.weight.T)))
        seen = torch.cat([seen, states[-1][None]])
    return states


def test_training_states_equal_those_drafted_token_by_token() -> None:
    """Every column of every level; the released code's mask without the diagonal gives other states."""
    net, embeds, known = net_of(), random_tensor(N + 3, C), random_tensor(N, D, seed=1)
    with torch.no_grad():
        levels = list(compute_draft_states(net, embeds[None, :N], known[None]))
        for column in range(N):
            last = min(3, N - 1 - column)  # tokens after the column that the text contains
            for level, wanted in enumerate(by_hand(net, embeds[:N], known[: column + 1], last)):
                torch.testing.assert_close(levels[level][0, column], wanted, rtol=0, atol=1e-6)
    assert len(levels) == 3


def test_later_levels_see_draft_states_and_not_their_tokens() -> None:
    """In the layer's KV cache, a draft state replaces the token from which it was computed."""
    net, embeds, known = net_of(), random_tensor(5, C), random_tensor(3, D, seed=1)
    entries = DraftKVCache(2, C // 2, 8, known)
    with torch.no_grad():
        entries.append(net.layer.project_kv(net.enter(known[None]), torch.arange(3)))
        entries.commit()
        for k, wanted in enumerate(by_hand(net, embeds, known, 2)):
            x = net.encode_trigram(embeds[k + 1 : k + 4].flatten())[None, None]
            mask = torch.ones(1, 4 + k, dtype=torch.bool)
            state = net.layer(x, torch.tensor([3 + k]), mask, entries)[0, 0]
            torch.testing.assert_close(state, wanted, rtol=0, atol=1e-6)
    assert entries.n_used == 5
    entries.drop_speculative()
    assert entries.n_used == entries.n_stable == 3


def test_node_scores_equal_those_computed_by_hand_for_their_path(tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None)
    net = net_of(width=models.target.hidden_size)
    models.heads["chimera"] = HeadInfo("tiny", tmp_path, save_net(net, tmp_path, models.target_name, torch.float32))
    embed, levels = models.target.embed, set[int]()
    for draft in drafts(models, "chimera", SamplingParams(), depth=3, nodes=12):
        mine, known = draft.state.net, None
        with torch.inference_mode():
            known = features(models, draft.committed)
            for node, token, path in draft.nodes():
                embeds = mine.project(embed(torch.tensor([*draft.committed, *path])))
                state = by_hand(mine, embeds, known, len(path) + 1)[-1]
                wanted = models.target.lm_head(mine(known[-1:], state[None], len(path))).softmax(-1)[0, token]
                assert draft.tree.score is not None
                assert float(draft.tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
                levels.add(len(path))
    assert levels == {0, 1, 2}


def test_draft_depends_on_three_tokens_and_all_features() -> None:
    """Gradients reach the last three tokens, and each feature of the text up to the newest one."""
    net, embeds, known = (
        net_of(blocks=2),
        random_tensor(1, N, C).requires_grad_(),
        random_tensor(1, N, D, seed=1).requires_grad_(),
    )
    first, second = compute_draft_states(net, embeds, known)
    for states, tokens in ((first, [1, 2, 3]), (second, [1, 2, 3, 4])):  # the second level sees the first one's
        embeds.grad = known.grad = None
        states[0, 2].sum().backward(retain_graph=True)
        assert embeds.grad is not None
        assert known.grad is not None
        assert embeds.grad[0].abs().sum(-1).nonzero().flatten().tolist() == tokens
        assert known.grad[0].abs().sum(-1).nonzero().flatten().tolist() == [0, 1, 2]


def test_each_head_is_trained_on_the_feature_after_its_known_tokens() -> None:
    net = net_of().float()
    read, embedding = random_tensor(1, 9, D).float(), random_tensor(9, D, seed=1).float().requires_grad_()
    answer = torch.zeros(1, 9, dtype=torch.bool)
    answer[0, 4:8] = True
    for level, (guess, right) in enumerate(guesses(net, embedding, torch.arange(9)[None], read, answer)):
        places = list(range(4, 7 - level))
        torch.testing.assert_close(right, read[0, [place + level + 1 for place in places]])
        embedding.grad = None
        guess[0].sum().backward(retain_graph=True)
        assert embedding.grad is not None
        known = embedding.grad.abs().sum(-1).nonzero().flatten().tolist()
        assert known == list(range(3, 6 + level)), "the newest token, two before it, and those drafted since"


def test_fresh_head_repeats_the_last_feature_and_is_rebuilt_from_its_configuration() -> None:
    net, known = ChimeraHeads(D, 3, C, prefix_heads=2, ffn=16).double(), random_tensor(4, D)
    assert torch.equal(net(known, random_tensor(4, C), 1), known)
    again = ChimeraHeads.of(net_of().config())
    assert again.sizes == net_of().sizes
    again.load_state_dict(net_of().state_dict())


@pytest.mark.parametrize("prompt", [[3], [3, 1], [2, 4, 1]])
def test_prompt_of_fewer_than_three_tokens_is_answered(prompt: list[int], tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    request = Request(prompt, registry.get("chimera"), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)


def test_kv_cache_equals_a_fresh_prefill_after_every_round(tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    engine, method = Engine(models), registry.get("chimera").with_params(depth=3)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        with torch.inference_mode():
            row.state.drafter.catch_up(row)
            fresh = row.drafter.init_state(row, models)
        mine, theirs = row.state.drafter.kv_caches[0], fresh.kv_caches[0]
        assert mine.n_used == mine.n_stable == theirs.n_used == len(row.committed) - 1
        torch.testing.assert_close(
            mine._buffer[:, :, :, : mine.n_used], theirs._buffer[:, :, :, : mine.n_used], rtol=0, atol=1e-10
        )
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"
