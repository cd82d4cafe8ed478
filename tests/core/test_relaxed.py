"""Output distributions of approximate rules in closed form: acceptance, distribution error, and exact settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from workbench.core.rejection import AcceptanceDecision, recursive_rejection
from workbench.core.relaxed import threshold_rule_error
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.nearest import Nearest, Neighbours

V = 4
G_P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
WARM = SamplingParams(temperature=1.0)
NO_NEIGHBOURS = Neighbours(torch.zeros(V, 1))
NEAR = torch.tensor([[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0]])


def distributions(seed: int, n: int) -> Tensor:
    a = torch.rand(n, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 2 + 0.01
    return a / a.sum(1, keepdim=True)


def run_verifier(verifier: Verifier, tree: DraftTree, p: Tensor, state: Any = None) -> AcceptanceDecision:
    n = len(tree)
    u = torch.zeros(n + 1, dtype=torch.float64)
    return verifier.rule(Verification(tree, p.log(), p, WARM, u, state=state))


def sampled_draft(token: int, q: Tensor) -> DraftTree:
    """Return a tree of one token sampled from q."""
    tree = DraftTree.chain([token])
    return replace(
        tree, sampling=Sampling.SAMPLED, q=q[None], child_q_rows=torch.tensor([0, -1]), logq=q[token].log()[None]
    )


def residual_weights(
    verifier: Verifier, tree: DraftTree, p: Tensor, state: Any, monkeypatch: pytest.MonkeyPatch
) -> Tensor:
    """Return the residual weights at the root after all drafts are rejected."""
    seen: list[Tensor] = []

    def see(weights: Tensor, u: Tensor) -> Tensor:
        seen.append(weights)
        return weights.argmax(1)

    monkeypatch.setattr("workbench.core.sibling_groups.pick", see)
    run_verifier(verifier, tree, p, state)
    return seen[0][0] / seen[0][0].sum()


def first_token_distribution(
    verifier: Verifier, p: Tensor, q: Tensor, state: Any, patch: pytest.MonkeyPatch
) -> tuple[Tensor, float]:
    """Return (distribution of the first token with one draft sampled from q, mean distribution error of the rule)."""
    out, paid = torch.zeros(V, dtype=torch.float64), 0.0
    for x in range(V):
        tree = sampled_draft(x, q)
        ruling = run_verifier(verifier, tree, p.expand(2, V), state)
        accept = ruling.accept[0]
        out[x] += q[x] * accept
        out += q[x] * (1 - accept) * residual_weights(verifier, tree, p.expand(2, V), state, patch)
        assert ruling.distribution_error is not None
        paid += float(q[x] * ruling.distribution_error[0])
    return out, paid


def tv(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum() / 2)


@pytest.mark.parametrize(
    ("lenience", "wanted", "distance"),
    [(0.9, [0.4444, 0.3333, 0.1667, 0.0556], 0.0556), (0.7, None, 0.1952), (0.5, None, 0.318)],
)
def test_lenience_has_the_documented_distribution(
    lenience: float, wanted: list[float] | None, distance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p and q of the cards' example, and the closed form of the docstring for each entry."""
    q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
    out, paid = first_token_distribution(Lenient(lenience), G_P, q, None, monkeypatch)
    kept, rest = torch.minimum(q, G_P / lenience), (G_P - lenience * q).clamp_min(0)
    closed = kept + (1 - kept.sum()) * rest / rest.sum()
    assert torch.allclose(out, closed, atol=1e-12)
    assert paid == pytest.approx(tv(closed, G_P), abs=1e-12)
    assert bool((out <= G_P / lenience + 1e-12).all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lenience", [0.1, 0.6])
def test_lenience_bounds_every_token_and_reports_its_error(
    lenience: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = distributions(seed, 2)
    out, paid = first_token_distribution(Lenient(lenience), p, q, None, monkeypatch)
    assert bool((out <= p / lenience + 1e-12).all())
    assert paid == pytest.approx(tv(out, p), abs=1e-12)
    assert paid > 0.01


@pytest.fixture
def by_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the card's neighbours instead of those by embeddings."""
    monkeypatch.setattr(Neighbours, "of", lambda self, tokens, k: NEAR[tokens][:, :k])


@pytest.mark.usefixtures("by_table")
@pytest.mark.parametrize(
    ("k", "mass", "lifted"),
    [(1, 0.1, [0.5, 0.3, 0.2, 0.05]), (1, 0.2, [0.5, 0.3, 0.2, 0.2]), (2, 0.4, [0.8, 0.3, 0.5, 0.2])],
)
def test_neighbours_add_the_documented_probability(k: int, mass: float, lifted: list[float]) -> None:
    """The card's neighbours: 0: 1, 2, 3; 1: 0, 2, 3; 2: 3, 1, 0; 3: 2, 1, 0."""
    for x in range(V):
        ruling = run_verifier(Nearest(k, mass), DraftTree.chain([x]), G_P.expand(2, V), NO_NEIGHBOURS)
        assert float(ruling.accept[0]) == pytest.approx(lifted[x], abs=1e-9)
        assert ruling.distribution_error is not None
        assert float(ruling.distribution_error[0]) == pytest.approx(lifted[x] - float(G_P[x]), abs=1e-9)


def greedy(verifier: Verifier, tree: DraftTree, p: Tensor, **sampling: Any) -> AcceptanceDecision:
    return verifier.rule(Verification(tree, p.log(), p, SamplingParams(**sampling), None, state=NO_NEIGHBOURS))


@pytest.mark.usefixtures("by_table")
def test_greedy_draft_is_accepted_if_more_likely_with_neighbours_than_the_targets_token() -> None:
    """LANTERN's code: the argmax of p with p̃(x) in place of p(x). p = (.4, .3, .15, .15), neighbours as in the card."""
    p = torch.tensor([0.4, 0.3, 0.15, 0.15], dtype=torch.float64)

    def accepted(k: int, mass: float) -> list[float]:
        return [float(greedy(Nearest(k, mass), DraftTree.chain([x]), p.expand(2, V)).accept) for x in range(V)]

    assert accepted(1, 0.35) == [1, 0, 0, 0], "1: its neighbour 0 has more than δ; 2 and 3: .15 + .15 < .4"
    assert accepted(2, 0.5) == [1, 1, 1, 1]
    ruling = greedy(Nearest(2, 0.5), DraftTree.chain([1, 0]), p.expand(3, V))
    assert ruling.bonus.tolist() == [0, 0, 0], "a rejection still leaves the target's own token"
    assert ruling.distribution_error is not None
    assert ruling.distribution_error.tolist() == [1, 0]
    siblings = greedy(Nearest(2, 0.5), DraftTree.from_parents([1, 0, 2], [-1, -1, -1]), p.expand(4, V))
    assert siblings.accept.tolist() == [0, 1, 0], "the target's own token comes before a sibling"
    assert not Nearest.keeps_greedy


@pytest.mark.usefixtures("by_table")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_neighbours_add_no_probability_to_forbidden_tokens(temperature: float) -> None:
    p = torch.tensor([0.45, 0.0, 0.3, 0.25], dtype=torch.float64)
    u = torch.zeros(2, dtype=torch.float64) if temperature else None
    sampling = SamplingParams(temperature, processors=(lambda ids, scores: scores,))
    v = Verification(DraftTree.chain([1]), p.log().expand(2, V), p.expand(2, V), sampling, u, state=NO_NEIGHBOURS)
    assert Nearest(2, 1.0).rule(v).accept.tolist() == [0]


@pytest.mark.usefixtures("by_table")
def test_lantern_plus_plus_caps_neighbour_probability_by_the_drafts_own() -> None:
    """Σ ≤ λ·p(x). Of p = (.5, .3, .15, .05), λ = 1: token 2 has one neighbour within .15, token 3 none within .05."""
    for ratio, lifted in ((1.0, [0.95, 0.3, 0.2, 0.05]), (3.5, [0.95, 0.95, 0.5, 0.2]), (0.0, G_P.tolist())):
        for x in range(V):
            ruling = run_verifier(Nearest(2, 0.0, ratio), DraftTree.chain([x]), G_P.expand(2, V), NO_NEIGHBOURS)
            assert float(ruling.accept[0]) == pytest.approx(lifted[x], abs=1e-9), (ratio, x)


@pytest.mark.usefixtures("by_table")
@pytest.mark.parametrize("seed", range(6))
def test_reported_error_bounds_the_total_variation(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over draws is a bound; for a deterministic draft it is the total variation itself."""
    p, q = distributions(seed, 2)
    verifier = Nearest(2, 0.3)
    out, paid = first_token_distribution(verifier, p, q, NO_NEIGHBOURS, monkeypatch)
    assert tv(out, p) <= paid + 1e-12
    for x in range(V):
        tree = DraftTree.chain([x])
        ruling = run_verifier(verifier, tree, p.expand(2, V), NO_NEIGHBOURS)
        point = (1 - ruling.accept[0]) * residual_weights(verifier, tree, p.expand(2, V), NO_NEIGHBOURS, monkeypatch)
        point[x] += ruling.accept[0]
        assert ruling.distribution_error is not None
        assert tv(point, p) == pytest.approx(float(ruling.distribution_error[0]), abs=1e-12)


def test_neighbours_have_the_smallest_angle_between_embeddings_and_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for many wide embeddings, whose float32 copies are made for a few rows at a time."""
    near = Neighbours(torch.tensor([[1.0, 0.0], [1.8, 0.2], [0.0, 0.5], [-3.0, 0.0]]))
    assert near.of(torch.tensor([0, 3, 0]), 9).tolist() == [[1, 2, 3], [2, 1, 0], [1, 2, 3]]
    assert near.of(torch.tensor([2]), 0).shape == (1, 0)
    really, asked = Neighbours._look, list[list[int]]()
    monkeypatch.setattr(
        Neighbours, "_look", lambda self, tokens, k: (asked.append(tokens.tolist()), really(self, tokens, k))[1]
    )
    assert near.of(torch.tensor([3, 1, 2, 1]), 1).tolist() == [[2], [0], [1], [0]]
    assert asked == [[1]]
    monkeypatch.setattr("workbench.methods.verifiers.nearest.ROWS", 7)
    weight = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(torch.bfloat16)
    cosine = torch.nn.functional.cosine_similarity(weight.double()[:, None], weight.double()[None], dim=2)
    wanted = cosine.fill_diagonal_(-1).topk(5).indices
    assert torch.equal(Neighbours(weight).of(torch.arange(50), 5), wanted)


def trees(seed: int) -> list[DraftTree]:
    """Return two siblings and a child of the elder: deterministic, independent, without replacement, and mixed."""
    q = distributions(seed, 2)
    tokens, parents = [0, 1, 2], [-1, -1, 0]
    q_of = torch.tensor([0, 1, -1, -1])
    chosen = DraftTree.from_parents(tokens, parents)
    chance = torch.stack([q[0, 0], q[0, 1], q[1, 2]]).log()
    like = [replace(chosen, sampling=how, q=q, child_q_rows=q_of, logq=chance)
            for how in (Sampling.SAMPLED, Sampling.WITHOUT_REPLACEMENT)]  # fmt: skip
    own = replace(
        chosen,
        sampling=Sampling.MIXED,
        q=q,
        node_q_rows=torch.tensor([-1, 0, 1]),
        without_replacement=torch.tensor([False, True, False]),
    )
    return [chosen, *like, own]


EXACT: list[Callable[[], Verifier]] = [lambda: Lenient(1.0), lambda: Nearest(0, 0.3), lambda: Nearest(3, 0.0)]


@pytest.mark.parametrize(("seed", "exact"), list(itertools.product(range(2), range(len(EXACT)))))
def test_exact_parameter_value_preserves_the_target_distribution(seed: int, exact: int) -> None:
    """For all kinds of siblings, the tests equal those of recursive rejection, without distribution error."""
    p, near = distributions(seed + 9, 4), Neighbours(distributions(3, V))
    for tree in trees(seed):
        ruling = run_verifier(EXACT[exact](), tree, p, near)
        wanted = recursive_rejection(tree, p, torch.zeros(4, dtype=torch.float64))
        assert torch.allclose(ruling.accept, wanted.accept, atol=1e-12)
        assert torch.equal(ruling.bonus, wanted.bonus)
        assert ruling.distribution_error is not None
        assert float(ruling.distribution_error.abs().max()) < 1e-12


def test_greedy_round_equals_the_targets_choice() -> None:
    tree, p = DraftTree.chain([0, 1]), distributions(1, 3)
    for verifier in (Lenient(0.1), Nearest(3, 0.0), Nearest(0, 1.0)):
        ruling = verifier.rule(Verification(tree, p.log(), p, SamplingParams(), None))
        assert ruling.bonus.tolist() == p.argmax(1).tolist()
        assert ruling.distribution_error is not None
        assert ruling.distribution_error.tolist() == [0, 0]


def test_deterministic_draft_in_a_sampled_chain_has_error_one_minus_p() -> None:
    """Its position has no draft distribution; the last row of q belongs to another one."""
    tree = replace(
        DraftTree.chain([0, 1]),
        q=torch.tensor([[0.9, 0.1]]),
        child_q_rows=torch.tensor([0, -1, -1]),
        sampling=Sampling.MIXED,
    )
    found = threshold_rule_error(tree, torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]), torch.zeros(3))
    assert found is not None
    assert found.tolist() == pytest.approx([0.4, 0.75])
