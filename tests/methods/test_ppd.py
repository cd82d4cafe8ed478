"""Parallel prompt decoding: predictions of prompt tokens, their positions, and the trees planned with them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch
from methods.test_drafts import drafts
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.common.probe_drafter import probe_layout
from workbench.methods.ppd.drafter import PromptTokens
from workbench.methods.ppd.train import run_probes
from workbench.methods.tree_builders.dynamic_sparse import StateTrees, plan_state_trees
from workbench.models.loading import HeadInfo
from workbench.training.family.in_pass import ProbeAnchors, guesses
from workbench.training.heads.artefact import save_net

PROMPT = [3, 1, 4, 1, 5]
CHANCES = ((0.5, 0.2, 0.1), (0.4, 0.1, 0.1), (0.3, 0.1, 0.05))


def make_models(folder: Path, prompts: int = 3, ensemble: int = 1) -> Models:
    """Return models with six tokens and untrained prompt tokens; float64."""
    models = model_helpers.make_small_models(6, noise=None)
    net = PromptTokens(models.target.hidden_size, prompts, ensemble)
    torch.nn.init.normal_(net.embeds, generator=torch.Generator().manual_seed(0))
    models.heads["ppd"] = HeadInfo("tiny", folder, save_net(net, folder, models.target_name, torch.float32))
    return models


def prompt_token_logits(models: Models, text: list[int], prompts: Tensor) -> Tensor:
    """Return the target's logits at the last of some prompt tokens [j, D] after a text, by a plain pass; [V]."""
    model: Any = models.target.model
    with torch.inference_mode():
        read = torch.cat([models.target.embed(torch.tensor(text)), prompts])[None]
        return model(inputs_embeds=read, use_cache=False).logits[0, -1]


@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("grower", ["template", "dynamic-sparse"])
def test_predictions_equal_a_plain_pass_over_text_and_prompt_tokens(grower: str, ensemble: int, tmp_path: Path) -> None:
    """The prompt tokens were probe positions after a node of a tree; the newest token was not committed yet."""
    models, levels = make_models(tmp_path, ensemble=ensemble), set[int]()
    more = {"nodes": 12} if grower == "template" else {"places": 30, "counts_time": False}
    for draft in drafts(models, "ppd", SamplingParams(), depth=3, grower=grower, **more):
        embeds = draft.state.net.embeds
        for node, token, path in draft.nodes():
            level = len(path)
            parts = [prompt_token_logits(models, draft.committed[:-1], embeds[: level + 1, i]) for i in range(ensemble)]
            wanted = torch.stack(parts).mean(0).softmax(0)[token]
            assert draft.tree.score is not None
            assert float(draft.tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
            levels.add(level)
    assert levels >= {0, 1}
    assert levels == {0, 1, 2} or grower != "template"


def test_without_prompt_tokens_it_is_plain_decoding(tmp_path: Path) -> None:
    models = make_models(tmp_path, prompts=0)
    trace = Engine(models).generate(Request(PROMPT, registry.get("ppd"), max_new_tokens=12, stop_at_eos=False))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 12)
    assert [(len(r.nodes), len(r.probes)) for r in trace.rounds] == [(0, 0)] * 12


def test_no_prompt_tokens_near_the_end_of_the_text(tmp_path: Path) -> None:
    """Prompt tokens predict drafts of the following rounds: in the last two rounds there are none."""
    models = make_models(tmp_path)
    for n in (1, 2, 3, 9):
        trace = Engine(models).generate(Request(PROMPT, registry.get("ppd"), max_new_tokens=n, stop_at_eos=False))
        for r in trace.rounds:
            left = len(PROMPT) + n - r.emitted[0].position
            assert left > 2 or not r.probes
        assert any(r.probes for r in trace.rounds) == (n > 2)


def test_other_sequences_in_the_batch_read_their_own_tokens(tmp_path: Path) -> None:
    """In one pass some sequences get embeddings and the others get tokens."""
    models = model_helpers.make_small_models(6, heads=tmp_path / "heads")
    names = ("ppd", "autoregressive", "lookahead", "draft-model", "ppd")
    requests = [
        Request(PROMPT[: 5 - i], registry.get(name), SamplingParams(1.0), 16, seed=i, stop_at_eos=False)
        for i, name in enumerate(names)
    ]
    assert model_helpers.generate_batched(models, requests) == model_helpers.generate_separately(models, requests)


def test_prompt_tokens_attend_only_to_their_own_path_and_ensemble_part() -> None:
    at = probe_layout((2, 0, 1), 2, torch.device("cpu"))
    assert list(zip(at.anchor.tolist(), at.step.tolist(), at.input_index.tolist(), strict=True)) == [
        (0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 1, 3), (2, 0, 0), (2, 0, 1),
    ]  # fmt: skip
    assert at.before.tolist() == [-1, -1, 0, 1, -1, -1]
    assert [row.nonzero().flatten().tolist() for row in at.mask] == [[0], [1], [0, 2], [1, 3], [4], [5]]


def test_each_prompt_token_is_trained_on_the_feature_that_decides_its_token() -> None:
    """Of tokens 0 … 9, the answer is 4 … 8; after position 3, the first prompt token is at position 4."""
    models = model_helpers.make_small_models(10, noise=None)
    net = PromptTokens(models.target.hidden_size, 3, 2).double()
    torch.nn.init.normal_(net.embeds)
    ids, features = torch.arange(10)[None], torch.arange(10.0)[None, :, None].expand(1, 10, 4)
    answer = torch.zeros(1, 10, dtype=torch.bool)
    answer[0, 3:8] = True
    at = torch.tensor([[3, 5, 6]])
    for step, (states, truth) in enumerate(
        guesses(net, models.target.model, run_probes, ids, features, ProbeAnchors(at, answer))
    ):
        places = [place for place in at[0].tolist() if place + step + 1 <= 7]
        assert truth[:, 0].tolist() == [place + step + 1 for place in places]
        for place, state in zip(places, states, strict=True):
            for i in range(2):
                wanted = prompt_token_logits(models, list(range(place + 1)), net.embeds[: step + 1, i])
                torch.testing.assert_close(models.target.lm_head(state[i]), wanted, atol=1e-6, rtol=1e-6)


# -- the trees --------------------------------------------------------------------------------------------------------


def simulate_rounds(machine: StateTrees, rounds: int, seed: int = 0) -> tuple[list[float], float]:
    """Return the share of rounds per state and the mean tokens per round; at each level at most one draft matches."""
    rng, state, seen, tokens = np.random.default_rng(seed), 0, [0] * len(machine.states), 0
    for _ in range(rounds):
        tree, place, path = machine.states[state], 0, ()
        seen[state] += 1
        while True:
            level = CHANCES[len(path)] if len(path) < len(CHANCES) else CHANCES[-1]
            rank = int(np.searchsorted(np.cumsum(level), rng.random()))
            tokens += 1
            if (*path, rank) not in tree.paths:
                break
            path = (*path, rank)
            place = tree.paths.index(path) + 1
        state = tree.probe_counts[place]
    return [n / rounds for n in seen], tokens / rounds


@pytest.mark.parametrize("costs", [None, tuple(1 + 0.08 * n for n in range(17))], ids=["alike", "rising"])
def test_shares_and_tokens_equal_a_simulation_of_the_trees(costs: tuple[float, ...] | None) -> None:
    machine = plan_state_trees(CHANCES, 3, 16, costs)
    share, tokens = simulate_rounds(machine, 20_000)
    assert sum(machine.share) == pytest.approx(1)
    assert share == pytest.approx(list(machine.share), abs=0.015)
    assert tokens == pytest.approx(machine.tokens, abs=0.03)
    for tree in machine.states:
        assert sum(tree.next) == pytest.approx(1)
        assert tree.size <= 17


def test_no_other_trees_of_this_size_emit_more_tokens() -> None:
    """Compare with all assignments of up to two prompt tokens to the nodes of trees with up to three nodes in all."""
    costs, chances = (1.0, 1.1, 1.25, 1.6), CHANCES[:2]
    orders = [[()], [(0,), (1,), (2,)], [(0,), (0, 0), (1,)]]
    best = 0.0
    ways: list[list[tuple[float, float, list[float]]]] = []
    for state, order in enumerate(orders):
        found = list[tuple[float, float, list[float]]]()
        for n in range(1, 4) if state else [0]:
            paths = [path for path in order[:n] if path]
            reach = {(): 1.0} | {p: float(np.prod([chances[i][r] for i, r in enumerate(p)])) for p in paths}
            ends = [reach[p] - sum(reach[c] for c in paths if c[:-1] == p) for p in reach]
            for behind in itertools.product(range(3), repeat=n + 1):
                if n + sum(behind) <= 3 and (n or sum(behind)):
                    after = [sum(e for e, k in zip(ends, behind, strict=True) if k == s) for s in range(3)]
                    found.append((sum(reach.values()), costs[n + sum(behind)], after))
        ways.append(found)
    for chosen in itertools.product(*ways):
        after = np.array([way[2] for way in chosen])
        share = np.linalg.matrix_power((after + np.eye(3)) / 2, 256)[0]
        best = max(best, share @ [way[0] for way in chosen] / (share @ [way[1] for way in chosen]))
    machine = plan_state_trees(chances, 2, 3, costs)
    assert machine.tokens / machine.seconds == pytest.approx(best, rel=1e-6)


def test_passes_use_all_positions_without_additional_cost() -> None:
    """Up to nine tokens per pass cost the same and each further one 20 % more, so that nine are used at most."""
    costs = tuple(1 + 0.2 * max(0, n - 8) for n in range(25))
    machine = plan_state_trees(CHANCES, 3, 24, costs)
    used = [tree.size for tree, share in zip(machine.states, machine.share, strict=True) if share > 0.01]
    assert max(used) == 9
    assert max(tree.size for tree in plan_state_trees(CHANCES, 3, 24).states) == 25
