"""ADED: table weights by hand, the search compared with best-first order and its own counts, and drafts in a run."""

from __future__ import annotations

import dataclasses
from collections import abc

import model_helpers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Plan, RoundFeedback
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.adaptive_trigram.drafter import AdaptiveTrigram
from workbench.methods.adaptive_trigram.table import (
    HEAVIEST,
    WIDTH,
    SearchNode,
    Sentences,
    Trigrams,
    best_first,
    most_visited,
    search,
)
from workbench.trace.metrics import summary

pytestmark = pytest.mark.unchecked


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device)


def toy() -> Trigrams:
    """After (1, 2): 3 is twice as heavy as 4; each has one certain successor, and one more level follows 3."""
    table = Trigrams()
    for pair, token, weight in (((1, 2), 3, 2.0), ((1, 2), 4, 1.0), ((2, 3), 5, 1.0), ((2, 4), 6, 1.0), ((3, 5), 7, 1)):
        table.write(pair, token, weight)
    return table


def numbers(n: int, length: int, seed: int = 0) -> list[list[float]]:
    return np.random.default_rng(seed).random((n, length)).tolist()


def paths(found: Sentences) -> list[tuple[int, ...]]:
    nodes = range(len(found.tokens))
    return [tuple(found.tokens[i] for i in model_helpers.path_to(found.parents, node)) for node in nodes]


# -- table ------------------------------------------------------------------------------------------------------------


def test_golden_weights() -> None:
    """0.04 per occurrence, at most 3; (1 − η) · w + η · p, over the union of their tokens."""
    table = Trigrams()
    for _ in range(2):
        table.write((1, 2), 3, 0.04)
    assert table.successors((1, 2)) == pytest.approx({3: 0.08})
    table.approach((1, 2), [4, 3], [0.7, 0.2], 0.2)
    assert table.successors((1, 2)) == pytest.approx({4: 0.14, 3: 0.8 * 0.08 + 0.2 * 0.2})
    assert list(table.successors((1, 2))) == [4, 3], "the heaviest first"
    for _ in range(100):
        table.write((1, 2), 3, 0.04)
    assert table.successors((1, 2))[3] == HEAVIEST
    table.approach((1, 2), range(50), [0.01] * 50, 1.0)
    assert len(table.successors((1, 2))) == WIDTH


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 4))
def test_table_keeps_the_latest_pairs(tokens: list[int], most: int) -> None:
    table, order = Trigrams(most), list[int]()
    for token in tokens:
        table.write((token, token), 0, 1.0)
        order = [*(t for t in order if t != token), token][-most:]
    assert [pair[0] for pair in table._rows] == order


def row_of(models: Models, text: list[int], **params: object) -> Sequence:
    configured = registry.get("adaptive-trigram").with_params(**params)
    row = model_helpers.make_sequence(Request(text, configured), text, models)
    row.state.drafter = configured.drafter.init_state(row, models)
    return row


def test_each_position_counts_once_and_rejected_tokens_never(models: Models) -> None:
    row = row_of(models, [1, 2, 3, 1, 2, 3], rate=0.0)
    assert row.state.drafter.successors((1, 2)) == pytest.approx({3: 0.08})
    row.committed += [1, 5]
    outcome = RoundFeedback(
        [1, 2], [-1, 0], VerificationResult((0,), 5, True, (), {}), [1, 5], 3, [[1], [5], [9]], Plan(2)
    )
    row.drafter.observe(row, outcome)
    assert row.state.drafter.successors((2, 3)) == pytest.approx({1: 0.08})
    assert row.state.drafter.successors((3, 1)) == pytest.approx({2: 0.04, 5: 0.04})
    assert row.state.drafter.successors((1, 2)) == pytest.approx({3: 0.08}), "2 was rejected"


def test_table_moves_towards_the_targets_distribution_at_every_verified_node(models: Models) -> None:
    row = row_of(models, [1, 2, 3], increment=0.0, rate=0.5)
    row.committed += [4]
    top, chances = [[4, 9], [5, 9], [6, 9]], [[0.6, 0.4], [0.8, 0.2], [0.5, 0.5]]
    outcome = RoundFeedback(
        [7, 8], [-1, 0], VerificationResult((), 4, True, (), {}), [4], 3, top, Plan(2), top_probs=chances
    )
    row.drafter.observe(row, outcome)
    assert row.state.drafter.successors((2, 3)) == pytest.approx({4: 0.3, 9: 0.2})
    assert row.state.drafter.successors((3, 7)) == pytest.approx({5: 0.4, 9: 0.1})
    assert row.state.drafter.successors((7, 8)) == pytest.approx({6: 0.25, 9: 0.25})


# -- search -----------------------------------------------------------------------------------------------------------


def test_long_search_ranks_paths_by_their_product() -> None:
    """⅔ and ⅓ at the first level; the nodes below have the same frequency."""
    root = search(toy(), (1, 2), 3, numbers(600, 3))
    tried, best = most_visited(root, 3, 3), best_first(toy(), (1, 2), 5, 3)
    assert paths(best) == [(3,), (3, 5), (3, 5, 7), (4,), (4, 6)]
    assert paths(tried) == paths(best)[:3]
    assert sorted(paths(most_visited(root, 9, 3))) == sorted(paths(best))
    assert tried.visits[0] > 300


def test_search_counts_visited_nodes() -> None:
    """A child is visited at most as often as its parent; Q is the mean of 1 + the weights on the path."""
    root = search(toy(), (1, 2), 3, numbers(40, 3))
    assert root.visits == 40

    def below(state: SearchNode) -> None:
        children = (state.below or {}).values()
        assert sum(child.visits for child in children) <= state.visits
        for child in children:
            below(child)

    below(root)
    assert root.below is not None
    three, four = root.below[3], root.below[4]
    assert three.total / three.visits == pytest.approx(1 + 2.0 + 1.0 + 1.0)
    assert four.total / four.visits == pytest.approx(1 + 1.0 + 1.0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_search_respects_budget_and_depth(nodes: int) -> None:
    root = search(toy(), (1, 2), 2, numbers(50, 2))
    for found in (most_visited(root, nodes, 2), best_first(toy(), (1, 2), nodes, 2)):
        assert len(found.tokens) == nodes
        assert max(map(len, paths(found))) <= 2
    assert search(toy(), (9, 9), 2, numbers(5, 2)).below == {}


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_run_records_the_entries_of_each_draft(temperature: float, models: Models) -> None:
    request = Request(
        model_helpers.repeating_prompt(16), registry.get("adaptive-trigram"), SamplingParams(temperature), 40
    )
    drafted = [r for r in Engine(models).generate(request).rounds if r.nodes.tokens]
    assert drafted
    for r in drafted:
        assert r.signals["known successors"] >= 1
        assert r.grown is not None
        assert all(visits and visits >= 1 for visits in r.grown.before)
        assert all(weight and weight > 0 for weight in r.grown.after)


def test_requests_share_the_table_only_if_warm(models: Models) -> None:
    method, engine = registry.get("adaptive-trigram"), Engine(models)
    request = Request(model_helpers.random_prompt(9), method, max_new_tokens=40, stop_at_eos=False)
    first, again = engine.generate(request), engine.generate(request)
    assert [r.nodes.tokens for r in first.rounds] == [r.nodes.tokens for r in again.rounds]
    assert "adaptive-trigram" not in models.shared
    warm = dataclasses.replace(request, method=method.with_params(warm=True))
    cold, warmed = engine.generate(warm), engine.generate(warm)
    assert summary(cold)["tau"] == summary(first)["tau"]
    assert summary(warmed)["tau"] > summary(cold)["tau"]


def chances_of(tree_tokens: abc.Sequence[int], row: dict[int, float]) -> list[float]:
    return [row[token] / sum(row.values()) for token in tree_tokens]


def test_table_weights_are_not_a_draft_distribution(models: Models) -> None:
    """The drafts are deterministic, so the output is p. Verified as samples from the weights, it would not be."""
    p, row = {3: 0.2, 4: 0.5, 5: 0.3}, {3: 2.0, 4: 1.0}
    table = Trigrams()
    for token, weight in row.items():
        table.write((1, 2), token, weight)
    root = search(table, (1, 2), 1, numbers(30, 1))
    first = most_visited(root, 1, 1).tokens[0]
    right = {x: p[x] for x in p}  # the target samples a token, which equals the draft or not
    (q,) = chances_of([first], row)
    accepted = min(1.0, p[first] / q)
    wrong = {x: accepted * (x == first) for x in p}
    left = {x: max(0.0, p[x] - chances_of([x], row)[0] if x in row else p[x]) for x in p}
    for x in p:
        wrong[x] += (1 - accepted) * left[x] / sum(left.values())
    assert sum(abs(wrong[x] - right[x]) for x in p) / 2 > 0.05
    state = row_of(models, [1, 2])
    state.state.drafter = table
    tree = AdaptiveTrigram().propose_one(state, Plan(1))
    assert tree.q is None, "no verifier finds a draft distribution"
