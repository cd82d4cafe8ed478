"""STAND: mean distributions compared with sums, sampling without replacement, and a shape that adapts to acceptance."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

import model_helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from methods.test_round_enumeration import WARM, DistributionTables, Drafts, distance, fixed_number, output_distribution
from methods.test_shapes import make_growth
from methods.test_tree_builders import DEPTH, V, table
from torch import Tensor

from workbench.bench.goodness import chi_square
from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Plan, RoundFeedback
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.stand.drafter import Entry, Stand, Table
from workbench.methods.tree_builders.data_driven import PRIOR_TESTS, Counts, DataDriven
from workbench.methods.tree_builders.template import ASSUMED_RANK_PROBS
from workbench.methods.verifiers.lossless import Lossless
from workbench.trace.metrics import summary

pytestmark = pytest.mark.unchecked
P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
"""p and q of the verifier card's example."""
THREE = registry.get("stand").with_params(nodes=3)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A vocabulary small enough that an entry holds all tokens."""
    return model_helpers.make_small_models(6, noise=None, device=device)


# -- table ------------------------------------------------------------------------------------------------------------


def test_golden_mean() -> None:
    """One third of each of three distributions, over the union of their tokens; the smallest is cut."""
    entry = Entry([1, 2], [0.7, 0.3])
    for tokens, chances in (([2, 1], [0.6, 0.4]), ([3, 1], [0.8, 0.1])):
        entry = entry.averaged_with(tokens, chances)
    assert (entry.tokens, entry.n) == ([1, 2], 3)
    assert entry.probs == pytest.approx([1.2 / 3, 0.9 / 3])


def test_longest_known_context_is_used() -> None:
    known = Table(3)
    known.learn([1, 2, 3], [7], [1.0])
    known.learn([5, 2, 3], [8], [1.0])
    found = {tuple(text): known.lookup(text) for text in ([1, 2, 3], [9, 2, 3], [9, 9, 3], [9, 9, 9])}
    assert [n for n, _ in found.values()] == [3, 2, 1, 0]
    assert [entry.n for _, entry in found.values() if entry] == [1, 2, 2, 2]
    assert Table(3).lookup([1]) == (0, None)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(2, 8))
def test_table_keeps_only_the_latest_contexts(text: list[int], most: int) -> None:
    known, order = Table(1, most), list[tuple[int, ...]]()
    for token in text:
        known.learn([token], [0], [1.0])
        for context in ((), (token,)):
            order = [*(c for c in order if c != context), context]
        order = order[-most:]
    assert list(known._entries) == order


def mean_distributions(row: Sequence, start: int, longest: int, everywhere: bool) -> dict[tuple[int, ...], Tensor]:
    """Return the mean distribution after each context of verified (or accepted) positions, summed from the trace."""
    assert row.trace is not None
    sums: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    at = start
    for r in row.trace.rounds:
        for place in range(len(r.nodes) + 1) if everywhere else [0, *(node + 1 for node in r.path)]:
            probs, path = torch.zeros(6, dtype=torch.float64), model_helpers.path_to(r.nodes.parents, place - 1)
            text = [*row.committed[:at], *(r.nodes.tokens[node] for node in path)]
            probs[r.top_p[place].tokens] = torch.tensor(r.top_p[place].prob, dtype=torch.float64)
            for n in range(min(longest, len(text)) + 1):
                sums[tuple(text[len(text) - n :])].append(probs)
        at += len(r.emitted)
    return {context: torch.stack(distributions).mean(0) for context, distributions in sums.items()}


@pytest.mark.parametrize("everywhere", [False, True])
def test_entries_are_mean_distributions_of_verified_positions(everywhere: bool, models: Models) -> None:
    engine, method = Engine(models), registry.get("stand").with_params(everywhere=everywhere)
    request = Request([1, 2], method, SamplingParams(0.8), 200, stop_at_eos=False)
    row = engine.submit(request)
    for _ in range(22):
        engine.step()
    assert row.trace is not None
    wanted = mean_distributions(row, 2, 3, everywhere)
    assert set(row.state.drafter._entries) == set(wanted)
    assert any(len(r.path) for r in row.trace.rounds)
    for context, probs in wanted.items():
        entry = row.state.drafter.lookup(context)[1]
        found = torch.zeros(6, dtype=torch.float64)
        found[list(entry.tokens)] = torch.tensor(entry.probs, dtype=torch.float64)
        assert torch.allclose(found, probs, atol=1e-6)
    row.cancel()
    engine.step()


def test_table_is_shared_only_by_equal_prompts_and_only_if_warm(models: Models) -> None:
    engine, method = Engine(models), registry.get("stand")
    prompts = model_helpers.random_prompt(5, 6, seed=1), model_helpers.random_prompt(5, 6, seed=2)

    def runs(warm: bool, prompt: list[int], n: int = 24) -> float:
        request = Request(prompt, method.with_params(warm=warm), max_new_tokens=n, stop_at_eos=False)
        return summary(engine.generate(request))["tau"]

    cold = runs(False, prompts[0])
    assert runs(False, prompts[0]) == cold
    assert "stand" not in models.shared
    first, second = runs(True, prompts[0]), runs(True, prompts[0])
    assert first == cold
    assert second > first
    assert runs(True, prompts[1]) == runs(False, prompts[1])
    assert len(models.shared["stand"]) == 2
    for seed in range(10):
        runs(True, model_helpers.random_prompt(5, 6, seed=10 + seed), 2)
    assert len(models.shared["stand"]) == 8


# -- drafts -----------------------------------------------------------------------------------------------------------


def row_with(models: Models, chances: list[float], temperature: float, seed: int = 0) -> Sequence:
    row = model_helpers.make_sequence(Request([1], THREE, SamplingParams(temperature), seed=seed), [1], models)
    row.state.drafter = Stand().init_state(row, models)
    row.state.drafter.learn([1], list(range(len(chances))), chances)
    row.state.plan = Plan(1, tree_builder=THREE.tree_builder)
    return row


def test_siblings_are_ordered_samples_without_replacement(models: Models) -> None:
    """Ordered pairs follow sequential sampling from the normalised entry, and the declared q is that distribution."""
    q = torch.tensor([0.4, 0.2, 0.15, 0.05]) / 0.8
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(400):
        row = row_with(models, [0.4, 0.2, 0.15, 0.05], 1.0, seed)
        tree = Stand().propose_one(row, row.state.plan)
        assert tree.sampling is Sampling.FIXED_NUMBER
        found[tuple(tree.tokens.tolist())] += 1
    assert tree.q is not None
    assert torch.allclose(tree.q[0, :4].double().cpu(), q.double(), atol=1e-6)
    wanted = {
        (a, b, c): float(q[a] * q[b] / (1 - q[a]) * q[c] / (1 - q[a] - q[b]))
        for a, b, c in itertools.permutations(range(4), 3)
    }
    assert chi_square(found, wanted).fits(1e-5)
    row = row_with(models, [0.4, 0.2, 0.15, 0.05], 0.0)
    assert Stand().propose_one(row, row.state.plan).tokens.tolist() == [0, 1, 2], "greedy: the most likely tokens"


def sorted_by_q(w: DistributionTables) -> Drafts:
    """Return the same drafts with siblings sorted by q, which is wrong."""
    for tree, chance in fixed_number(w, (-1, -1)):
        order = tree.logq.argsort(descending=True)
        yield replace(tree, tokens=tree.tokens[order], logq=tree.logq[order]), chance


def as_drawn(w: DistributionTables) -> Drafts:
    yield from fixed_number(w, (-1, -1))


@pytest.mark.parametrize(("drafts", "off"), [(as_drawn, 0.0), (sorted_by_q, 0.05)])
def test_sorting_siblings_changes_the_output_distribution(
    drafts: Iterator, off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [(), *((x,) for x in range(4))]
    world = DistributionTables(4, 1, dict.fromkeys(texts, P), dict.fromkeys(texts, Q))
    out = output_distribution(world, drafts(world), Lossless(), monkeypatch)
    found = distance(out, world.joint()[()])
    assert found < 1e-12 if not off else found > off, found


# -- shape ------------------------------------------------------------------------------------------------------------


def test_shape_adapts_to_acceptance() -> None:
    """Rank 1 is accepted 20 times of 20, rank 0 never: (20 + 5·0.13) / 25 against (0 + 5·0.44) / 25."""
    grower, grown = DataDriven(nodes=4), make_growth(table(1))
    grown.sequence.state.tree_builder = counts = Counts()
    before, paths = grower.shape(grown, Plan(2))
    assert before == [ASSUMED_RANK_PROBS[0]]
    assert paths == ((0,), (0, 0), (1,), (2,))
    outcome = RoundFeedback([3, 4], [-1, -1], VerificationResult((1,), 5, True, (), {}), [4, 5], 0, [], Plan(2))
    for _ in range(20):
        grower.observe(grown.sequence, outcome)
    after, paths = grower.shape(grown, Plan(2))
    assert after[0][:2] == pytest.approx(((0 + PRIOR_TESTS * 0.44) / 25, (20 + PRIOR_TESTS * 0.13) / 25))
    assert after[1] == pytest.approx(ASSUMED_RANK_PROBS[0]), "nothing was tested there"
    assert paths[0] == (1,)
    assert (1, 0) in paths
    assert counts.rounds == 20


@pytest.mark.parametrize("nodes", [3, 8])
def test_tree_contains_only_the_most_likely_tokens(nodes: int) -> None:
    tree = DataDriven(nodes).build(make_growth(table(2), seed=3, sampling=WARM), Plan(DEPTH))
    assert tree.q is not None
    assert tree.child_q_rows is not None
    assert 0 < len(tree) <= nodes
    assert torch.allclose(tree.q.sum(1), torch.ones(len(tree.q), dtype=tree.q.dtype))
    assert int((tree.q > 0).sum(1).max()) <= min(8, V)
    assert torch.allclose(tree.logq.exp(), tree.q[tree.child_q_rows[tree.parents + 1], tree.tokens])
