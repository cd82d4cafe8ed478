"""Clover: one step for all levels, the gate that mixes in a token, and a state that stays correct after every round."""

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
from workbench.methods.clover.drafter import AttentionDecoder, CloverHeads
from workbench.methods.clover.train import guesses
from workbench.models.loading import HeadInfo
from workbench.training.heads.artefact import save_net

D, C, N = 16, 8, 6
KINDS: dict[str, dict[str, Any]] = {"clover": {"mixes": False}, "clover-2": {"augmenting": 2}, "ours": {}}
PROMPT = model_helpers.random_prompt(9)


def net_of(blocks: int = 3, width: int = D, **more: Any) -> CloverHeads:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = CloverHeads(width, blocks, C, prefix_heads=2, ffn=16, **more).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.4)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gate_equals_the_papers_formula() -> None:
    """Written out per head: add v(e), weighted by the cosine similarity of query and key."""
    gate, states, embeds = net_of().gate, random_tensor(5, D), random_tensor(5, C, seed=1)
    assert isinstance(gate, AttentionDecoder)
    with torch.no_grad():
        got = gate(states, embeds)
        normed = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gate.norm.weight
        q, k, v = gate.query(normed), gate.key(embeds), gate.value(embeds)
        for head, (part, wide) in enumerate(zip(range(2), range(2), strict=True)):
            one = slice(part * C // 2, (part + 1) * C // 2)
            cosine = (q[:, one] * k[:, one]).sum(-1) / (q[:, one].norm(dim=-1) * k[:, one].norm(dim=-1))
            own = slice(wide * D // 2, (wide + 1) * D // 2)
            torch.testing.assert_close(got[:, own], states[:, own] + cosine[:, None] * v[:, own], msg=f"head {head}")


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_parameters_does_not_depend_on_the_draft_length(kind: str) -> None:
    sizes = {sum(p.numel() for p in net_of(blocks, **KINDS[kind]).parameters()) for blocks in (1, 3, 5)}
    assert len(sizes) == 1
    again = CloverHeads.of(net_of(4, **KINDS[kind]).config())
    assert again.sizes == net_of(4, **KINDS[kind]).sizes, "its configuration builds it again"


def test_fresh_step_returns_the_state_unchanged() -> None:
    """With a value projection of zero, no token changes the state."""
    net, states = CloverHeads(D, 3, C, prefix_heads=2).double(), random_tensor(4, D)
    torch.nn.init.zeros_(net.gate.value.weight)
    torch.nn.init.zeros_(net.gate.value.bias)
    for embeds in (random_tensor(4, C), random_tensor(4, C, seed=1)):
        torch.testing.assert_close(net.step(states, embeds)[1], net.after(states))


@pytest.mark.parametrize("kind", KINDS)
def test_node_scores_equal_steps_along_their_path(kind: str, tmp_path: Path) -> None:
    """One plain pass of the block over the text comes first; the newest token is mixed in before or after it."""
    models = model_helpers.make_small_models(6, noise=None)
    net = net_of(width=models.target.hidden_size, **KINDS[kind])
    models.heads["clover"] = HeadInfo("tiny", tmp_path, save_net(net, tmp_path, models.target_name, torch.float32))
    embed, levels = models.target.embed, set[int]()
    for draft in drafts(models, "clover", SamplingParams(), depth=3, nodes=12):
        mine = draft.state.net
        with torch.inference_mode():
            embeds = mine.project(embed(torch.tensor(draft.committed[1:])))
            begun = mine.head_inputs(features(models, draft.committed)[None], embeds[None])[0, -1:]
            for node, token, path in draft.nodes():
                state, guess = mine.begin(begun, embeds[-1:])
                for before in path:
                    state, guess = mine.step(state, mine.project(embed(torch.tensor([before]))))
                wanted = models.target.lm_head(guess).softmax(-1)[0, token]
                assert draft.tree.score is not None
                assert float(draft.tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
                levels.add(len(path))
    assert levels == {0, 1, 2}


def test_without_tokens_all_paths_of_a_level_have_the_same_distribution() -> None:
    """As with Medusa's heads: a path has an effect through its tokens only."""
    net, state = net_of(), random_tensor(1, D)
    constant, other = random_tensor(1, C, seed=1), random_tensor(1, C, seed=2)
    with torch.no_grad():
        same = [net.step(net.begin(state, constant)[0], constant)[1] for _ in range(2)]
        torch.testing.assert_close(*same)
        assert not torch.allclose(same[0], net.step(net.begin(state, constant)[0], other)[1])


@pytest.mark.parametrize("mixes", [True, False])
def test_each_level_reads_the_token_before_its_label(mixes: bool) -> None:
    """An answer is 4 … 7 of 0 … 8; gradients reach features up to a position, and the tokens mixed in since."""
    net = net_of(mixes=mixes).float()
    read, embedding = (
        random_tensor(1, 9, D).float().requires_grad_(),
        random_tensor(9, D, seed=1).float().requires_grad_(),
    )
    answer = torch.zeros(1, 9, dtype=torch.bool)
    answer[0, 4:8] = True
    truth = torch.arange(9.0)
    for level, (guess, right) in enumerate(guesses(net, embedding, torch.arange(9)[None], read, answer)):
        places = list(range(4, 7 - level))
        torch.testing.assert_close(right, read[0, [place + level + 1 for place in places]])
        read.grad, embedding.grad = None, None
        guess[0].sum().backward(retain_graph=True)
        assert read.grad is not None
        assert embedding.grad is not None
        assert (read.grad[0].abs().sum(-1) > 0).tolist() == (truth <= 4).tolist(), (
            "features of the text up to its position"
        )
        embeds = (embedding.grad.abs().sum(-1) > 0).nonzero().flatten().tolist()
        assert embeds == list(range(1 if mixes else 5, 6 + level)), "and embeddings of the tokens after it"


@pytest.mark.parametrize("kind", KINDS)
def test_kv_cache_equals_a_fresh_prefill_after_every_round(kind: str, tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None)
    net = net_of(width=models.target.hidden_size, **KINDS[kind])
    models.heads["clover"] = HeadInfo("tiny", tmp_path, save_net(net, tmp_path, models.target_name, torch.float32))
    models.target.lm_head.get_parameter("weight").data.mul_(
        0.2
    )  # flat distributions: untrained drafts are accepted now and then
    engine, method = Engine(models), registry.get("clover").with_params(depth=3)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        with torch.inference_mode():
            mine, fresh = row.state.drafter.catch_up(row), row.drafter.init_state(row, models)
        torch.testing.assert_close(mine, fresh.newest, rtol=0, atol=1e-10)
        assert {e.n_used for e in (*row.state.drafter.kv_caches, *fresh.kv_caches)} == {len(row.committed) - 1}
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"
