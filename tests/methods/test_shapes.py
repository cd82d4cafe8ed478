"""Sampled trees and trees of fixed shape: nodes compared with tables, budgets, and the output distribution."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import model_helpers
import pytest
import torch
from methods.test_round_enumeration import (
    WARM,
    DistributionTables,
    output_distribution_of_draft,
    random_tables,
    record_draws,
)
from methods.test_round_enumeration import texts_of as places_of
from methods.test_tree_builders import DEPTH, TableGrowth, V, table, texts_of
from torch import Tensor

from workbench.core.random_stream import RandomStream
from workbench.core.sampling import SamplingParams
from workbench.core.static_trees import best_paths, parents_of
from workbench.core.tree import DraftTree, Sampling, children_of, depths_of
from workbench.decoders.draft_verify.parts import DistributionDrafter, Plan, TreeBuilder, Verification
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine import Engine, Models, Request
from workbench.engine.request import RoundReport
from workbench.methods import registry
from workbench.methods.tree_builders import sequoia
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.tree_builders.common import ALL_BUILDERS
from workbench.methods.tree_builders.constant_branching import ConstantBranching
from workbench.methods.tree_builders.dyspec import DySpec
from workbench.methods.tree_builders.head_and_one import HeadAndOne
from workbench.methods.tree_builders.sequoia import Sequoia
from workbench.methods.tree_builders.shapes import widths
from workbench.methods.tree_builders.spec_infer import SpecInfer
from workbench.methods.tree_builders.template import PUBLISHED, Template
from workbench.methods.tree_builders.tree_sampler import TreeSampler
from workbench.methods.verifiers.lossless import Lossless
from workbench.models.pass_costs import Costs

DRAWN = [grower for grower in ALL_BUILDERS if grower.siblings is not Sampling.DETERMINISTIC]


def by_name(grower: TreeBuilder) -> str:
    return grower.name


def make_growth(
    distributions: dict[tuple[int, ...], Tensor], seed: int = 0, sampling: SamplingParams = WARM
) -> TableGrowth:
    found = TableGrowth(distributions)
    found.sequence = SimpleNamespace(  # type: ignore[assignment]
        sampling=sampling,
        committed=[0],
        uniforms=lambda purpose, n, device, level=0: torch.from_numpy(RandomStream(seed).uniform(1, purpose, n, level)),
        is_on_device=False,
        state=DraftState(),
        report=RoundReport(),
        verifier=Lossless(),
    )
    return found


# -- fixed shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "nodes", "depth"), [("medusa-63", 63, 4), ("eagle-25", 25, 5)])
def test_published_trees_have_their_nodes(shape: str, nodes: int, depth: int) -> None:
    paths = Template(shape).paths(Plan(9))
    assert len(paths) == len(set(paths)) == nodes
    assert max(map(len, paths)) == depth
    assert parents_of(paths)  # every prefix of a path is there
    assert all((*path[:-1], path[-1] - 1) in paths for path in paths if path[-1]), "every better sibling is there, too"
    required_paths = {"medusa-63": {(2, 2), (1, 0, 1), (0, 0, 0, 1)}, "eagle-25": {(3, 0), (0, 2, 1), (0, 0, 0, 0, 1)}}
    assert required_paths[shape] <= set(paths)
    assert len(Template(shape).paths(Plan(9, nodes=7))) == 7


@pytest.mark.parametrize("grower", [Template(nodes=9), *map(Template, [*PUBLISHED, "even"])], ids=lambda g: g.shape)
def test_fixed_shape_is_filled_with_the_tokens_of_its_ranks(grower: Template) -> None:
    for seed in range(4):
        distributions, made = table(seed), make_growth(table(seed))
        made.rank_probs = ((0.5, 0.3, 0.1), (0.4, 0.35))
        tree, wanted = grower.build(made, Plan(DEPTH)), dict[tuple[int, ...], tuple[int, ...]]({(): ()})
        for path in grower.paths(Plan(DEPTH), made.rank_probs):
            if max(path) < V:
                above = wanted[path[:-1]]
                wanted[path] = (*above, int(distributions[above].argsort(descending=True)[path[-1]]))
        del wanted[()]
        assert texts_of(tree) == list(wanted.values()), "in the order of the shape"
        assert tree.fanout == max(Counter(tree.parents.tolist()).values())
        assert tree.score is not None
        assert tree.score.tolist() == pytest.approx([float(distributions[t[:-1]][t[-1]]) for t in wanted.values()])
    if grower.shape == "best":
        assert grower.paths(Plan(3), made.rank_probs) == best_paths(made.rank_probs, 9, 3)


# -- sampled trees -----------------------------------------------------------------------------------------------------


def check_distributions(tree: DraftTree, distributions: dict[tuple[int, ...], Tensor]) -> None:
    """Check that each node was sampled from the distribution after its parent's text."""
    assert tree.q is not None
    assert tree.child_q_rows is not None
    logprobs = []
    for text, parent, logq in zip(places_of(tree)[1:], tree.parents.tolist(), tree.logq.tolist(), strict=True):
        row = int(tree.child_q_rows[parent + 1])
        assert row >= 0
        assert torch.equal(tree.q[row], distributions[text[:-1]])
        logprobs.append(math.log(float(distributions[text[:-1]][text[-1]])))
        if tree.node_q_rows is None or int(tree.node_q_rows[len(logprobs) - 1]) == row:
            assert logq == pytest.approx(logprobs[-1])
        else:
            assert (int(tree.node_q_rows[len(logprobs) - 1]), logq) == (-1, 0), "selected, not sampled"
    if tree.node_q_rows is not None:
        assert tree.score is not None
        assert tree.score.log().tolist() == pytest.approx(logprobs)


@pytest.mark.parametrize("grower", DRAWN, ids=by_name)
def test_every_node_is_sampled_from_the_distribution_at_its_parent(grower: TreeBuilder) -> None:
    for seed in range(6):
        tree = grower.build(make_growth(table(seed), seed), Plan(DEPTH))
        assert tree.sampling is grower.siblings
        check_distributions(tree, table(seed))


@pytest.mark.parametrize("kind", [SpecInfer, ConstantBranching, HeadAndOne], ids=lambda kind: kind.name)
def test_branching_gives_the_number_of_children_per_level(
    kind: type[SpecInfer | ConstantBranching | HeadAndOne],
) -> None:
    repeated = 0
    for seed in range(12):
        tree = kind("2-3").build(make_growth(table(seed), seed), Plan(DEPTH))
        depth = [0, *depths_of(tree.parents.tolist())]
        for at, children in enumerate(children_of(tree.parents.tolist())):
            assert len(children) == [2, 3, 1, 0][depth[at]]
            repeated += len(children) - len({int(tree.tokens[i]) for i in children})
    assert (repeated > 0) is (kind is SpecInfer), "independent draws may repeat, those without replacement never"
    assert widths("2-3", 4) == [2, 3, 1, 1]
    with pytest.raises(ValueError, match="each level has 1 to"):
        widths("2-0", 4)


@pytest.mark.parametrize("nodes", [1, 4, 9, 30])
def test_dyspec_equals_the_papers_heap(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, siblings come in the order of q; the naive heap takes one node after the other."""
    monkeypatch.setattr(TreeSampler, "gumbel", lambda self, p, level: p.double().log())
    for seed in range(5):
        distributions = table(seed)
        heap: list[tuple[float, tuple[int, ...], int]] = [(-1.0, (), 0)]
        taken, values = set[tuple[int, ...]](), []
        while heap and len(taken) < nodes:
            value, above, elder = heapq.heappop(heap)
            order = distributions[above].argsort(descending=True).tolist()
            left = float(distributions[above][order[elder:]].sum())
            chance = float(distributions[above][order[elder]]) / left
            taken.add((*above, order[elder]))
            values.append(-value)
            if elder + 1 < V:
                heapq.heappush(heap, (value * (1 - chance), above, elder + 1))
            if len(above) + 1 < DEPTH:
                heapq.heappush(heap, (value * chance, (*above, order[elder]), 0))
        assert set(texts_of(DySpec(nodes).build(make_growth(distributions), Plan(DEPTH)))) == taken
        by_threshold = DySpec(96, "threshold", worth=values[-1] - 1e-9).build(make_growth(distributions), Plan(DEPTH))
        assert set(texts_of(by_threshold)) == taken, "the same nodes exceed the threshold"


@pytest.mark.parametrize("grower", [ConstantBranching("4-1-1"), HeadAndOne("4-1-1"), Sequoia(20)], ids=by_name)
def test_distribution_of_few_tokens_has_no_more_children(grower: TreeBuilder) -> None:
    distributions = {
        text: torch.zeros(V, dtype=torch.float64).index_fill_(0, torch.tensor([1, 3]), 0.5) for text in table(0)
    }
    tree = grower.build(make_growth(distributions), Plan(2))
    assert sorted(text for text in texts_of(tree) if len(text) == 1) == [(1,), (3,)]
    assert any(len(text) == 2 for text in texts_of(tree))
    check_distributions(tree, distributions)


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("grower", ALL_BUILDERS, ids=by_name)
def test_tree_builder_respects_the_plans_budget(grower: TreeBuilder, nodes: int) -> None:
    for seed in range(3):
        tree = grower.build(make_growth(table(seed), seed), Plan(DEPTH, nodes=nodes))
        assert 1 <= len(tree) <= nodes
        whole = grower.build(make_growth(table(seed), seed), Plan(DEPTH))
        assert len(tree) == min(nodes, len(whole)) or grower.siblings is not Sampling.DETERMINISTIC
        depths_of(tree.parents.tolist())  # raises unless it is a tree


@pytest.mark.parametrize("grower", [grower for grower in DRAWN if not isinstance(grower, Sequoia)], ids=by_name)
def test_with_greedy_decoding_the_tree_is_a_chain_of_the_most_likely_tokens(grower: TreeBuilder) -> None:
    distributions = table(1)
    tree = grower.build(make_growth(distributions, sampling=SamplingParams()), Plan(DEPTH))
    text: tuple[int, ...] = ()
    for token in tree.tokens.tolist():
        assert token == int(distributions[text].argmax())
        text = (*text, token)
    assert len(text) == DEPTH


# -- exactness ---------------------------------------------------------------------------------------------------------


def deviation_in_standard_errors(
    grower: TreeBuilder, w: DistributionTables, plan: Plan, patch: pytest.MonkeyPatch, draws: int = 400
) -> float:
    """Return the deviation of a round's output distribution from the target's, in standard errors over the drafts."""
    found: dict[tuple[tuple[int, ...], ...], list[DraftTree]] = {}
    for seed in range(draws):
        tree = grower.build(make_growth(dict(w.q), seed), plan)
        found.setdefault((tuple(tree.tokens.tolist()), tuple(tree.parents.tolist())), []).append(tree)
    joint, deviations = w.joint(), []
    with record_draws(patch) as drawn:
        for tree, *_ in found.values():
            p = torch.stack([w.p[text] for text in places_of(tree)])
            v = Verification(tree, p.log(), p, WARM, torch.full((len(p),), 0.5, dtype=torch.float64))
            deviations.append(
                (output_distribution_of_draft(v, Lossless(), joint, w.depth, drawn) - joint[()]).flatten()
            )
    n, figures = torch.tensor([len(same) for same in found.values()]).double()[:, None], torch.stack(deviations)
    mean = (n * figures).sum(0) / n.sum()
    spread = ((n * (figures - mean) ** 2).sum(0) / n.sum() ** 2).sqrt()
    return float((mean.abs() / (spread + 1e-10)).max())


@dataclass(frozen=True)
class KeepsLikeliest(ConstantBranching):
    """Samples three siblings and keeps the two most likely: the selection depends on the tokens."""

    def build(self, growth: PartialTree, plan: Plan) -> DraftTree:
        tree = ConstantBranching("3-1").build(growth, Plan(1))
        keep = tree.logq.topk(2).indices.sort().values
        assert tree.child_q_rows is not None
        return replace(
            tree, tokens=tree.tokens[keep], parents=tree.parents[keep], logq=tree.logq[keep],
            child_q_rows=torch.cat([tree.child_q_rows[:1], tree.child_q_rows[keep + 1]]),
        )  # fmt: skip


@pytest.mark.parametrize("plan", [Plan(2), Plan(2, nodes=4)], ids=["whole", "cut"])
@pytest.mark.parametrize("grower", ALL_BUILDERS, ids=by_name)
def test_declared_sampling_preserves_the_target_distribution(
    grower: TreeBuilder, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With about eighteen figures, one exceeds 5.5 standard errors in one of a million such tests."""
    assert (
        deviation_in_standard_errors(
            grower, random_tables("any", 3, 2), plan, monkeypatch, 1 if grower not in DRAWN else 400
        )
        < 5.5
    )


def test_tree_builder_that_selects_by_token_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deviation_in_standard_errors(KeepsLikeliest(), random_tables("any", 3, 2), Plan(2), monkeypatch) > 8


# -- as a parameter of methods -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("heads") / "medusa")


@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "medusa", "eagle-2"])
def test_every_tree_builder_works_with_every_distribution_drafter(
    name: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one batch; greedy text is the target's, and the chains among them are drafted together."""
    monkeypatch.setattr(sequoia, "costs_of", lambda models: Costs({1: 1.0, 64: 1.0}, 0.0))  # else few branches
    engine, method = Engine(models, max_sequences=32), registry.get(name)
    plain = Engine(models).generate(Request([3, 1, 4], registry.get("autoregressive"), max_new_tokens=9))
    assert isinstance(method.drafter, DistributionDrafter)
    may = [grower for grower in ALL_BUILDERS if method.drafter.superposes or not grower.superposes]
    assert {grower.name for grower in method.tree_builders} == {grower.name for grower in may}
    rows = {
        (grower.name, heat): engine.submit(
            Request([3, 1, 4], method.with_params(grower=grower.name), SamplingParams(heat), 9, seed=5)
        )
        for grower in may
        for heat in (0.0, 1.2)
    }
    while not engine.is_idle:
        engine.step()
    for (grower, heat), row in rows.items():
        assert not row.error, grower
        assert row.trace is not None
        assert row.trace.header.params["grower"] == grower
        if not heat:
            assert row.trace.token_ids == plain.token_ids, grower
        if heat and grower != "chain":
            branches = any(len(r.nodes.parents) > len(set(r.nodes.parents)) for r in row.trace.rounds)
            assert branches, f"{grower} over {name} is a chain"


def test_chain_is_the_same_alone_and_in_a_batch(models: Models) -> None:
    """Also for a method whose draft model drafts a tree."""
    for sampling in (SamplingParams(), SamplingParams(1.0), SamplingParams(1.0, repetition_penalty=1.5)):
        written = []
        for name in ("draft-model", "draft-tree"):
            asked = registry.get(name).with_params(grower="chain", depth=3)
            trace = Engine(models).generate(Request([3, 1, 4], asked, sampling, 12, seed=8))
            written.append([(r.nodes.tokens, [e.token for e in r.emitted]) for r in trace.rounds])
        assert written[0] == written[1]


def test_soundness_follows_from_the_tree_builders_declaration() -> None:
    @dataclass(frozen=True)
    class ForChosen(Lossless):
        name = "for-chosen"
        exact_for = frozenset({Sampling.DETERMINISTIC})

    method = replace(registry.get("draft-tree"), name="either", other_verifiers=(ForChosen(),))
    assert not method.unsound_reason(ForChosen())
    assert "without replacement" in method.unsound_reason(ForChosen(), tree_builder=ConstantBranching())
    assert "sampled one per position" in method.unsound_reason(ForChosen(), tree_builder=Chain())
    chosen = {
        name: method.with_params(verifier="for-chosen", grower=name).promise.value for name in ("eagle-2", "rsd-c")
    }
    assert chosen == {"eagle-2": "exact", "rsd-c": "approximate"}
    assert "trees" not in registry.get("draft-model").needs
    assert "trees" in registry.get("draft-model").with_params(grower="rsd-s").needs
