"""Tree builders: each compared with a naive one on tables of distributions, and with every suitable drafter."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import abc
from dataclasses import dataclass
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.parts import Plan, Policy, TreeBuilder
from workbench.decoders.draft_verify.tree_building import FullDistributions, NodeDistributions, PartialTree, Step
from workbench.engine import Engine, Models, Request
from workbench.engine.request import Sequence
from workbench.methods import registry
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.methods.tree_builders.path_threshold import PathThreshold
from workbench.methods.tree_builders.stochastic_beam import StochasticBeam
from workbench.models.pass_costs import Costs

Text = tuple[int, ...]
V, DEPTH = 5, 3


def table(seed: int) -> dict[Text, Tensor]:
    """Return random distributions after every text of up to `DEPTH` tokens."""
    texts = [text for n in range(DEPTH + 1) for text in itertools.product(range(V), repeat=n)]
    logits = 2 * torch.randn(len(texts), V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return dict(zip(texts, logits.softmax(1), strict=True))


class TableGrowth(PartialTree):
    """A tree that grows in a table: the attention mask `sees` of a node gives the text before it."""

    def __init__(self, distributions: dict[Text, Tensor]) -> None:
        super().__init__(None, "table", torch.device("cpu"))  # type: ignore[arg-type]
        self.of = distributions
        self.root = FullDistributions(distributions[()][None])

    def distributions(self, tokens: Tensor, below: Tensor | None) -> FullDistributions:
        read = torch.cat(self.tokens)[torch.cat(self.expanded)]
        return FullDistributions(torch.stack([self.of[tuple(read[sees].tolist())] for sees in self.attention_mask]))

    def distributions_as_one(self, tokens: Tensor, weights: Tensor) -> FullDistributions:
        """Return the mean distribution after them, as for a model that is linear in its last embedding."""
        return FullDistributions((weights.double() @ self.distributions(tokens, None).p)[None])

    def should_continue(self, distributions: NodeDistributions) -> bool:
        return True


def texts_of(tree: DraftTree) -> list[Text]:
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    return [tuple(tokens[i] for i in model_helpers.path_to(parents, node)) for node in range(len(tokens))]


def chance(distributions: dict[Text, Tensor], text: Text) -> float:
    return math.prod(float(distributions[text[:i]][token]) for i, token in enumerate(text))


@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize(("width", "nodes"), [(1, 12), (2, 4), (3, 8), (8, 96)])
def test_best_first_keeps_the_best_candidates_of_all_levels(width: int, nodes: int, ranked: bool) -> None:
    for seed in range(6):
        distributions = table(seed)
        level, offered = [Text()], list[Text]()
        for _ in range(DEPTH):
            level = sorted(level, key=lambda text: -chance(distributions, text))[:width]
            level = [(*text, int(x)) for text in level for x in distributions[text].argsort(descending=True)[:width]]
            offered += level
        best = sorted(offered, key=lambda text: -chance(distributions, text))[:nodes]
        tree = BestFirst(width, nodes, ranked).build(TableGrowth(distributions), Plan(DEPTH))
        found = texts_of(tree)
        assert sorted(found) == sorted(best)
        assert [len(text) for text in found] == sorted(map(len, found)), "level by level"
        assert tree.score is not None
        assert tree.score.tolist() == pytest.approx([float(distributions[text[:-1]][text[-1]]) for text in found])
        if ranked:  # siblings of the most promising parent come first
            order = [chance(distributions, text[:-1]) for text in found if len(text) == 2]
            assert order == sorted(order, reverse=True)


@pytest.mark.parametrize(("threshold", "children"), [(0.3, 1), (0.05, 3), (0.02, 5), (1.0, 2)])
def test_threshold_keeps_every_path_that_reaches_it(threshold: float, children: int) -> None:
    for seed in range(6):
        distributions = table(seed)
        level, offered = [Text()], list[Text]()
        for depth in range(DEPTH):
            likeliest = [
                (*text, int(x)) for text in level for x in distributions[text].argsort(descending=True)[:children]
            ]
            level = [t for i, t in enumerate(likeliest) if chance(distributions, t) >= threshold or i == depth == 0]
            offered += level
        assert texts_of(PathThreshold(threshold, children).build(TableGrowth(distributions), Plan(DEPTH))) == offered


# -- with every drafter ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shaped(Policy):
    """A policy that selects the shape of the tree."""

    name = "shaped"
    tree_builder: TreeBuilder | None = None

    def plan(self, row: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        return Plan(4, tree_builder=self.tree_builder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("heads") / "medusa")


TREE_BUILDERS: dict[str, tuple[TreeBuilder, int]] = {
    "best first": (BestFirst(3, 7), 7),
    "threshold": (PathThreshold(0.05, 2), 30),
    "beam": (StochasticBeam(2), 8),
}


@pytest.mark.parametrize("grower", TREE_BUILDERS)
@pytest.mark.parametrize("name", ["draft-tree", "draft-tree-sampled", "eagle-2"])
def test_planned_tree_builder_works_with_every_distribution_drafter(name: str, grower: str, models: Models) -> None:
    way, most = TREE_BUILDERS[grower]
    plain = Request([3, 1, 4, 1, 5], registry.get("autoregressive").with_params(), SamplingParams(), 12)
    method = dataclasses.replace(registry.get(name).with_params(), policy=Shaped(way))
    asked = [dataclasses.replace(plain, method=method, sampling=SamplingParams(t), seed=4) for t in (0.0, 1.3)]
    greedy, warm = (Engine(models).generate(dataclasses.replace(one, stop_at_eos=False)) for one in asked)
    assert greedy.token_ids == Engine(models).generate(dataclasses.replace(plain, stop_at_eos=False)).token_ids
    for trace in (greedy, warm):
        assert not trace.footer.error
        assert max(len(r.nodes.tokens) for r in trace.rounds) <= most
        assert max(max(r.nodes.depth, default=0) for r in trace.rounds) > 1
    assert any(len(r.nodes.parents) > len(set(r.nodes.parents)) for r in warm.rounds), "it branches"


# -- decisions of a policy ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UpToTwo(Shaped):
    """Stops after two levels, and records the steps that it gets."""

    def plan(self, row: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        return Plan(4, can_stop_early=True, tree_builder=self.tree_builder)

    def init_state(self) -> list[Step]:
        return []

    def should_continue(self, row: Sequence, state: list[Step], step: Step) -> Tensor:
        state.append(step)
        return torch.tensor(step.level < 2)


@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "draft-tree-sampled", "eagle-2"])
def test_policy_can_stop_a_draft_early(name: str, models: Models) -> None:
    method = dataclasses.replace(registry.get(name).with_params(), policy=UpToTwo())
    for temperature in (0.0, 1.0):
        engine, sampling = Engine(models), SamplingParams(temperature)
        row = engine.submit(Request([3, 1, 4], method, sampling, 12, seed=2, stop_at_eos=False))
        while not engine.is_idle:
            engine.step()
        assert row.trace is not None
        assert not row.error
        assert max(max(r.nodes.depth, default=0) for r in row.trace.rounds) == 2
        assert {step.level for step in row.state.policy} == {1, 2}
        for step in row.state.policy:
            assert torch.allclose(step.p.sum(1), torch.ones(len(step.p), dtype=step.p.dtype), atol=1e-5)


@dataclass(frozen=True)
class Goodput(Policy):
    """Selects the length with the most tokens per second of the batch, in which each verified token has a cost."""

    name = "goodput"
    costs = Costs({1: 1.0, 8: 1.0, 16: 2.0, 32: 4.0, 64: 8.0}, draft_s=0.01)

    def plan(self, row: Sequence, state: Any, batch: abc.Sequence[Sequence] = ()) -> Plan:
        def rate(k: int) -> float:
            return (1 - 0.7 ** (k + 1)) / (self.costs.draft_s * k + self.costs.verify_s(len(batch) * (k + 1)))

        return Plan(max(range(1, 8), key=rate))


def test_policy_gets_the_sequences_of_the_batch(models: Models) -> None:
    """A policy that weighs them drafts less as the batch grows, and more as it shrinks."""
    method = dataclasses.replace(registry.get("draft-model").with_params(), policy=Goodput())
    drafted: dict[int, int] = {}
    for n in (1, 2, 4, 8):
        engine = Engine(models)
        rows = [engine.submit(Request([3, 1, 4], method, max_new_tokens=120, stop_at_eos=False)) for _ in range(n)]
        while not all(row.trace is not None and row.trace.rounds for row in rows):
            engine.step()
        assert rows[0].trace is not None
        drafted[n] = rows[0].state.plan.depth
        for row in rows[1:]:
            row.cancel()
        before = len(rows[0].trace.rounds)
        while len(rows[0].trace.rounds) == before:
            engine.step()
        assert rows[0].state.plan.depth == drafted[1], "alone again"
        rows[0].cancel()
        engine.step()
    assert drafted == {1: 7, 2: 3, 4: 1, 8: 1}
