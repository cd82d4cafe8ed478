"""Top-k head and one sample per node: the trees that the builder makes, and their exact distribution, enumerated."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from methods.test_round_enumeration import EXACTLY, WARM, Drafts, output_distribution, random_tables
from methods.test_shapes import make_growth
from methods.test_tree_builders import table
from torch import Tensor

from workbench.core.promise import Promise
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder, Verification, Verifier
from workbench.methods import registry
from workbench.methods.tree_builders.head_and_one import HeadAndOne
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.lossless import Lossless

pytestmark = pytest.mark.unchecked


def test_builder_adds_the_most_likely_tokens_and_a_sample_of_the_rest() -> None:
    """Also at a position for which the budget leaves less room."""
    assert HeadAndOne.siblings is Sampling.HEAD_AND_ONE
    drawn = Counter[int]()
    for seed in range(200):
        distributions = table(3)
        tree = HeadAndOne("3-2").build(make_growth(distributions, seed), Plan(2, nodes=6))
        assert tree.node_q_rows is not None
        assert tree.without_replacement is not None
        order = distributions[()].argsort(descending=True).tolist()
        assert tree.tokens[:2].tolist() == order[:2]
        assert tree.node_q_rows[:3].tolist() == [-1, -1, 0]
        assert tree.without_replacement[:3].tolist() == [False, False, True]
        assert tree.parents.tolist() == [-1, -1, -1, 0, 0, 1], "the second position has one child"
        assert tree.node_q_rows[3:].tolist() == [-1, 1, 2], "and it is the sample"
        drawn[int(tree.tokens[2])] += 1
    rest = distributions[()].clone()
    rest[order[:2]] = 0
    for token, share in enumerate((rest / rest.sum()).tolist()):
        assert drawn[token] / 200 == pytest.approx(share, abs=0.12)


def every_tree(
    grower: TreeBuilder, distributions: dict[tuple[int, ...], Tensor], plan: Plan, patch: pytest.MonkeyPatch
) -> Drafts:
    """Yield all trees that a builder can sample with `pick`, with their probabilities."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        wanted, chance, at = waiting.pop(), 1.0, 0

        def scripted_pick(weights: Tensor, u: Tensor) -> Tensor:
            nonlocal chance, at, wanted
            found = []
            for probs in (weights / weights.sum(1, keepdim=True)).tolist():
                possible = [token for token, share in enumerate(probs) if share > 0]
                if at == len(wanted):
                    waiting.extend((*wanted, token) for token in possible[1:])
                    wanted = (*wanted, possible[0])
                found.append(wanted[at])
                chance, at = chance * probs[wanted[at]], at + 1
            return torch.tensor(found)

        with patch.context() as seeing:
            seeing.setattr(sys.modules[type(grower).__module__], "pick", scripted_pick)
            tree = grower.build(make_growth(distributions), plan)
        yield tree, chance


@pytest.mark.parametrize("plan", [Plan(2), Plan(2, nodes=4)], ids=["whole", "cut"])
@pytest.mark.parametrize("kind", ["any", "zeros", "disjoint"])
@pytest.mark.parametrize("verifier", [GreedyDraft(), Lossless()], ids=lambda v: v.name)
def test_head_and_one_preserves_the_target_distribution(
    verifier: Verifier, kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = random_tables(kind, 4, 2)
    trees = every_tree(HeadAndOne("2-2"), dict(w.q), plan, monkeypatch)
    assert float((output_distribution(w, trees, verifier, monkeypatch) - w.joint()[()]).abs().max()) < EXACTLY


@pytest.mark.parametrize(("n", "acceptance"), [(2, 2 / 3), (3, 0.833333)])
def test_acceptance_rate_of_head_and_one_equals_the_cards(
    n: int, acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p = (.5, .3, .15, .05), q = (.1, .4, .3, .2): Σ p over the head + Σ min(p, q̃) over the rest."""
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in ((0.5, 0.3, 0.15, 0.05), (0.1, 0.4, 0.3, 0.2)))
    kept = 0.0
    for tree, chance in every_tree(replace(HeadAndOne(), branching=f"{n}-1"), {(): q}, Plan(1), monkeypatch):
        distributions = p.expand(len(tree) + 1, -1)
        u = torch.full((len(tree) + 1,), 0.5, dtype=torch.float64)
        accept = GreedyDraft().rule(Verification(tree, distributions.log(), distributions, WARM, u)).accept
        kept += chance * (1 - float((1 - accept).prod()))
    assert kept == pytest.approx(acceptance, abs=1e-6)


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_verifier_is_offered_for_head_and_one_and_not_for_independent_siblings(name: str) -> None:
    method = registry.get(name)
    assert "head-and-one" in method.params["grower"].choices
    made = method.with_params(grower="head-and-one", verifier="greedy-draft")
    assert (made.promise, made.unsound_reason) == (Promise.EXACT, "")
    other = method.with_params(grower="specinfer", verifier="greedy-draft")
    assert other.promise is Promise.APPROXIMATE
    assert "sampled independently" in other.unsound_reason
