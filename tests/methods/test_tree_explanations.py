"""Explanations that tree builders give for their nodes, in the trace and in its files."""

from __future__ import annotations

import json
import math

import model_helpers
import pytest
import torch
from methods.test_round_enumeration import GREEDY, WARM
from methods.test_shapes import by_name, make_growth
from methods.test_tree_builders import DEPTH, chance, table, texts_of

from workbench.core.sampling import SamplingParams
from workbench.core.tree_explanation import TreeExplanation, path_products
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.tree_builders import sequoia
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.methods.tree_builders.common import ALL_BUILDERS
from workbench.methods.tree_builders.dyspec import DySpec
from workbench.methods.tree_builders.path_threshold import PathThreshold
from workbench.methods.tree_builders.sequoia import Sequoia, SequoiaState
from workbench.methods.tree_builders.superposed import Superposed
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS, Template
from workbench.models.pass_costs import Costs
from workbench.trace import frames
from workbench.trace.events import Round

pytestmark = pytest.mark.unchecked
Values = tuple[list[int], list[float | None], list[float | None]]


def grow_with_explanation(
    grower: TreeBuilder, seed: int = 1, sampling: SamplingParams = WARM
) -> tuple[list[tuple[int, ...]], Values]:
    """Return the texts of a tree's nodes, and its explanation."""
    tree = grower.build(make_growth(table(seed), seed, sampling), Plan(DEPTH))
    assert tree.explanation is not None
    columns = [column.tolist() for column in tree.explanation.columns]
    return texts_of(tree), tree.explanation.to_lists(columns, tree.parents.tolist())


def test_reranking_explains_candidate_order_and_final_rank() -> None:
    distributions = table(1)
    texts, (_, before, after) = grow_with_explanation(BestFirst(3, 7))
    offered = [(x,) for x in distributions[()].argsort(descending=True)[:3].tolist()]
    for _ in range(DEPTH - 1):
        last = max(map(len, offered))
        best = sorted((t for t in offered if len(t) == last), key=lambda t: -chance(distributions, t))[:3]
        offered += [(*t, x) for t in best for x in distributions[t].argsort(descending=True)[:3].tolist()]
    ranking = sorted(offered, key=lambda text: -chance(distributions, text))
    assert before == [1 + offered.index(text) for text in texts]
    assert after == [1 + ranking.index(text) for text in texts]
    assert before != after


def test_dyspec_explains_values_before_and_after_sampling() -> None:
    distributions = table(1)
    texts, (_, before, after) = grow_with_explanation(DySpec(9))
    for i, text in enumerate(texts):
        elders = [other for other in texts[:i] if other[:-1] == text[:-1]]
        left = 1 - sum(float(distributions[text[:-1]][other[-1]]) for other in elders)
        assert after[i] == pytest.approx(chance(distributions, text))
        assert before[i] == pytest.approx(chance(distributions, text[:-1]) * left)


def test_fixed_shape_and_sequoia_explain_their_probabilities() -> None:
    texts, (_, before, after) = grow_with_explanation(Template("best", 5), sampling=GREEDY)
    assert not after
    assert before[0] == ASSUMED_RANK_PROBS[0][0]
    assert before == sorted(before, reverse=True)
    growing = make_growth(table(1))
    state = SequoiaState(Costs({1: 1.0, 64: 1.0}, 0.0), 0.0)
    state.tested[0], state.accepted[0] = 95, 95
    growing.sequence.state.tree_builder = state
    tree = Sequoia(6).build(growing, Plan(DEPTH))
    assert tree.explanation is not None
    _, before, after = tree.explanation.to_lists([], tree.parents.tolist())
    assert before[0] == pytest.approx(0.44)
    assert after[0] == pytest.approx((95 + 5 * 0.44) / 100), "measured since then"
    assert len(texts) == 5


def test_path_threshold_and_superposed_explain_their_probabilities() -> None:
    texts, (_, before, after) = grow_with_explanation(PathThreshold(0.05, 3))
    assert before == pytest.approx([chance(table(1), text) for text in texts])
    assert not after
    texts, (_, before, after) = grow_with_explanation(Superposed(3, 0.54))
    for level in range(1, DEPTH + 1):
        mine = [i for i, text in enumerate(texts) if len(text) == level]
        assert sum(before[i] or 0 for i in mine) == pytest.approx(1)
        assert sum(after[i] or 0 for i in mine) == pytest.approx(1)
    _, (_, before, after) = grow_with_explanation(Superposed(3, 0.0))
    assert before == after, "without n-grams both are equal"


def test_values_that_are_not_finite_are_left_out() -> None:
    grown = TreeExplanation((), before=torch.tensor([math.nan, 1.0]), after=torch.tensor([math.inf, 2.0]))
    assert grown.to_lists([[math.nan, 1.0], [math.inf, 2.0]], [-1, -1]) == ([], [None, 1.0], [None, 2.0])
    assert path_products([[0.5]], [-1, -1, 0]) == [0.5, 0.0, 0.25]


# -- in a trace -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(12)


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("grower", ALL_BUILDERS, ids=by_name)
def test_every_tree_builder_explains_its_nodes(
    grower: TreeBuilder, heat: float, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequoia, "costs_of", lambda models: Costs({1: 1.0, 64: 1.0}, 0.0))
    method = registry.get("draft-model").with_params(grower=grower.name, depth=3)
    trace = Engine(models).generate(Request([3, 1, 4, 1, 5], method, SamplingParams(heat), 12, stop_at_eos=False))
    drafted = [r for r in trace.rounds if r.nodes.tokens]
    assert drafted
    for r in drafted:
        assert r.grown is not None
        assert {rule["name"] for rule in r.grown.rules} == {grower.name}
        for rule in r.grown.rules:
            assert rule["title"]
            assert rule["says"]
            for values, words in ((r.grown.before, rule["before"]), (r.grown.after, rule["after"])):
                assert bool(values) is bool(words)
                assert len(values) in (0, len(r.nodes))
                assert None not in values
    for r, again in zip(trace.rounds, frames.from_frames(frames.to_frames(trace)).rounds, strict=True):
        assert again.grown == r.grown
        assert Round.from_wire(json.loads(json.dumps(r.to_wire()))).grown == r.grown


def test_draft_without_a_tree_builder_has_no_explanation(models: Models) -> None:
    trace = Engine(models).generate(Request([3, 1, 3, 1, 3], registry.get("prompt-lookup"), max_new_tokens=9))
    assert any(r.nodes.tokens for r in trace.rounds)
    assert all(r.grown is None for r in trace.rounds)


def test_without_a_trace_there_is_no_explanation(models: Models) -> None:
    request = Request([3, 1, 4], registry.get("draft-tree"), max_new_tokens=9, stop_at_eos=False)
    trace = Engine(models, record=False).generate(request)
    assert all(r.grown is None for r in trace.rounds)
