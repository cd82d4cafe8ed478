"""Sequoia's tree: the dynamic program compared with all possible trees, and acceptance statistics of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import model_helpers
import pytest
from methods.test_shapes import make_growth
from methods.test_tree_builders import DEPTH, V, table, texts_of

from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling, children_of
from workbench.decoders.draft_verify.parts import Plan, RoundFeedback
from workbench.decoders.draft_verify.state import DraftState
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.tree_builders import sequoia
from workbench.methods.tree_builders.sequoia import PRIOR_TESTS, Sequoia, SequoiaState, best_tree, expected_tokens
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS, Path
from workbench.models.pass_costs import Costs, costs_of

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("temporary_disk_cache")]
CARD = (0.6, 0.2, 0.1, 0.05)


def trees(n: int, depth: int, ranks: int) -> Iterator[tuple[Path, ...]]:
    """Yield all trees of n nodes below the root, with siblings of consecutive ranks."""
    every = [path for k in range(1, depth + 1) for path in itertools.product(range(ranks), repeat=k)]
    for paths in itertools.combinations(every, n):
        held = {(), *paths}
        if all(path[:-1] in held and (not path[-1] or (*path[:-1], path[-1] - 1) in held) for path in paths):
            yield paths


def expected_tokens_of(paths: Sequence[Path], chances: Sequence[float]) -> float:
    return 1 + math.fsum(math.prod(chances[rank] for rank in path) for path in paths)


def test_expected_tokens_equal_the_cards() -> None:
    best = expected_tokens(CARD, 16, 16)[16].max(0)
    wanted = {1: 1, 2: 1.6, 3: 1.96, 4: 2.176, 6: 2.5056, 8: 2.7456, 16: 3.30936}
    assert {m: float(best[m]) for m in wanted} == pytest.approx(wanted, abs=1e-9)
    assert expected_tokens(CARD, 8, 2)[2].max(0)[8] == pytest.approx(2.56, abs=1e-9)


@pytest.mark.parametrize("chances", [CARD[:3], (0.3, 0.5, 0.1), (0.2, 0.0, 0.4)], ids=str)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_planned_tree_is_optimal(chances: tuple[float, ...], depth: int) -> None:
    """Also if a younger sibling is more likely."""
    for n in range(1, 5 if depth == 3 else 6):
        among = list(trees(n, depth, len(chances)))
        if not among:
            assert not math.isfinite(expected_tokens(chances, n + 1, depth)[depth].max(0)[n + 1])
            continue
        best = max(expected_tokens_of(paths, chances) for paths in among)
        assert expected_tokens(chances, n + 1, depth)[depth].max(0)[n + 1] == pytest.approx(best, abs=1e-12)
        if n > 1:
            found = best_tree(chances, n, depth)
            assert expected_tokens_of(found.paths, chances) == pytest.approx(found.tokens, abs=1e-12)
            assert found.tokens >= best - 1e-12
            assert set(found.paths) in [set(paths) for k in range(1, n + 1) for paths in trees(k, depth, len(chances))]


@pytest.mark.parametrize(
    ("costs", "level_s"), [([1, 1, 1, 1, 1], 0.3), ([1, 1.1, 1.2, 2, 3], 0.2), ([1, 2, 3, 4, 5], 0.1), ([1] * 5, 5.0)]
)
def test_size_and_depth_maximise_tokens_per_second(costs: list[float], level_s: float) -> None:
    rates = {
        paths: expected_tokens_of(paths, CARD) / (max(map(len, paths)) * level_s + costs[n])
        for n in range(1, 5)
        for paths in trees(n, 3, 4)
    }
    found = best_tree(CARD, 4, 3, costs, level_s)
    assert found.tokens / found.seconds == pytest.approx(max(rates.values()), rel=1e-12)
    assert rates[min(rates, key=lambda paths: set(paths) != set(found.paths))] == pytest.approx(max(rates.values()))


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_tree_is_filled_by_rank_or_in_the_order_of_the_samples(heat: float) -> None:
    shape = best_tree(ASSUMED_RANK_PROBS[0], 12, DEPTH).paths
    for seed in range(4):
        distributions = table(seed)
        tree = Sequoia(12).build(make_growth(distributions, seed, SamplingParams(heat)), Plan(DEPTH))
        wanted: dict[Path, Path] = {(): ()}
        found, children = [(), *texts_of(tree)], children_of(tree.parents.tolist())
        for path in shape:
            if path[-1] >= V:
                continue
            above = wanted[path[:-1]]
            wanted[path] = found[children[found.index(above)][path[-1]] + 1]
            if not heat:
                assert wanted[path] == (*above, int(distributions[above].argsort(descending=True)[path[-1]]))
        assert len(wanted) == len(found)
        assert tree.sampling is (Sampling.FIXED_NUMBER if heat else Sampling.DETERMINISTIC)


def test_acceptance_is_counted_by_rank_at_reached_positions() -> None:
    """Of three drafts the second is accepted, of two after it none; two after the first are never reached."""
    state = SequoiaState(Costs({1: 1.0, 64: 1.0}, 0.0), 0.0)
    verdict = VerificationResult((1,), 9, True, ((0, False), (1, True), (3, False), (4, False)), {})
    outcome = RoundFeedback(
        [1, 2, 3, 4, 5, 6, 7], [-1, -1, -1, 1, 1, 0, 0], verdict, [2, 9], 0, [], Plan(2)
    )  # fmt: skip
    Sequoia().observe(SimpleNamespace(state=DraftState(tree_builder=state)), outcome)  # type: ignore[arg-type]
    assert dict(state.tested) == {0: 2, 1: 2, 2: 1}
    assert dict(state.accepted) == {0: 0, 1: 1, 2: 0}
    assert state.sibling_probs((0.5, 0.5)) == ((2.5) / (2 + PRIOR_TESTS), (1 + 2.5) / (2 + PRIOR_TESTS))


def test_tree_is_planned_again_after_its_inputs_change() -> None:
    made, grower = make_growth(table(0)), Sequoia(4)
    made.sequence.state.tree_builder = state = SequoiaState(Costs({1: 1.0, 64: 1.0}, 0.1), 0.1)
    first = grower.plan_tree(made, Plan(3))
    assert grower.plan_tree(made, Plan(3)) is first
    assert len(made.sequence.report.notes) == 1
    assert "acceptance by sibling 0.44, 0.13" in made.sequence.report.notes[0]
    assert made.sequence.report.signals == {
        "expected tokens": first.tokens,
        "expected ms": pytest.approx(1e3 * first.seconds),
    }
    state.tested.update({0: 50, 1: 50})
    state.accepted.update({0: 5, 1: 40})
    other = grower.plan_tree(made, Plan(3))
    assert other is not first
    assert (1,) in other.paths
    assert grower.plan_tree(made, Plan(2)) is not other, "another depth"
    assert len(made.sequence.report.notes) == 3


@pytest.fixture(scope="module")
def models() -> Models:
    return model_helpers.make_small_models(6)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_statistics_of_a_run_equal_those_of_its_trace(
    heat: float, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are those of reached positions in the trace; later rounds have more weight."""
    monkeypatch.setattr(sequoia, "costs_of", lambda models: Costs({1: 1.0, 64: 1.0}, 0.01))
    method = registry.get("draft-tree-sampled").with_params(grower="sequoia", nodes=7, depth=3)
    engine = Engine(models)
    row = engine.submit(Request([3, 1, 4], method, SamplingParams(heat), 40, seed=3, stop_at_eos=False))
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    assert not row.error
    plain = Request([3, 1, 4], registry.get("autoregressive"), max_new_tokens=40, stop_at_eos=False)
    if not heat:
        assert row.trace.token_ids == Engine(models).generate(plain).token_ids
    assert "a pass over 1 token 1000.00 ms" in row.trace.rounds[0].notes[0]
    state: SequoiaState = row.state.tree_builder
    shares, weight = dict[int, list[float]](), 1.0
    for r in reversed(row.trace.rounds[:-1]):  # the last round ends the text and is not counted
        for at in (-1, *r.path):
            for rank, node in enumerate(children_of(r.nodes.parents)[at + 1]):
                counts = shares.setdefault(rank, [0.0, 0.0])
                counts[0] += weight * (node in r.path)
                counts[1] += weight
        weight *= 0.99
    for rank, (accepted, tested) in shares.items():
        assert state.accepted[rank] == pytest.approx(accepted)
        assert state.tested[rank] == pytest.approx(tested)
    assert max(shares) > 0, "it branched"
    assert all(r.signals["expected tokens"] > 1 for r in row.trace.rounds if r.nodes.tokens)


def test_a_level_costs_one_pass_of_the_draft_model_if_there_is_one(models: Models) -> None:
    for name, level_s in (("draft-tree", costs_of(models).draft_s), ("medusa", 0.0)):
        state = Sequoia().init_state(registry.get(name).drafter, models)
        assert (state.costs, state.level_s) == (costs_of(models), level_s)
    assert costs_of(models).draft_s > 0


def test_state_after_a_change_of_the_tree_builder(models: Models) -> None:
    engine, method = Engine(models), registry.get("draft-tree")
    row = engine.submit(Request([3, 1, 4], method, SamplingParams(), 60, stop_at_eos=False))
    kept = []
    for change in ({}, {"grower": "sequoia"}, {"width": 2}, {"grower": "rsd-c"}):
        row.change(params=change)
        before = len(row.trace.rounds) if row.trace is not None else 0
        while row.trace is None or len(row.trace.rounds) < before + 2:
            engine.step()
        kept.append(row.state.tree_builder)
    row.cancel()
    engine.step()
    assert not row.error
    assert kept[0] is kept[3] is None
    assert isinstance(kept[1], SequoiaState)
    assert kept[2] is kept[1], "the tree builder and its parameters are the same"
    assert kept[1].costs == costs_of(models)
