"""What unsound pairs cost: the enumeration against another one, and where it is told."""

from __future__ import annotations

import itertools

import pytest
import torch
from methods.test_round_enumeration import DistributionTables, distance, output_distribution

from workbench.core.tree import Sampling
from workbench.methods import method_info, registry
from workbench.methods.combinations import offers
from workbench.methods.deviation import LEAST, P, Q, explain_unsound, output_deviation, pairs, unsound_kinds
from workbench.methods.method_info import MethodInfo
from workbench.methods.tree_builders.common import ALL_BUILDERS
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.typical import TypicalAcceptance

pytestmark = pytest.mark.unchecked
KINDS = (Sampling.DETERMINISTIC, Sampling.SAMPLED, Sampling.FIXED_NUMBER, Sampling.HEAD_AND_ONE)
EXACT = {v.name: v for m in registry.methods() for v in m.verifiers if v.exact_for}


def test_independent_draws_taken_for_the_card_s_are_off_by_what_one_computes_by_hand() -> None:
    """Without replacement behind a rejected 0: each of 1 and 2 comes with ½ and is kept for certain (q says .1), where
    the residual has ⅔ and ⅓. A 0 comes first with .8, and is rejected with ¾."""
    assert output_deviation(Independent(), Sampling.FIXED_NUMBER) == pytest.approx(
        0.8 * 0.75 * (2 / 3 - 1 / 2), abs=2e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_all_that_can_come(kind: Sampling) -> None:
    q = torch.tensor(Q, dtype=torch.float64)
    found = list(pairs(q, kind))
    assert sum(chance for _, chance in found) == pytest.approx(1)
    assert all(tree.sampling is kind for tree, _ in found)
    assert sum(chance for _, chance in pairs(q, Sampling.WITHOUT_REPLACEMENT, depends=True)) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_it_is_the_distance_that_a_whole_round_has(name: str, kind: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off the laws that the rule draws from, instead of halving; what is declared exact is 0."""
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in (P, Q))
    w = DistributionTables(
        len(p), 1, {(): p} | {(x,): p for x in range(len(p))}, {(): q} | {(x,): q for x in range(len(p))}
    )
    wanted = distance(output_distribution(w, iter(pairs(q, kind)), EXACT[name], monkeypatch).sum(1), p)
    assert output_deviation(EXACT[name], kind) == pytest.approx(wanted, abs=3e-4)
    assert wanted < 1e-9 or kind not in EXACT[name].exact_for


def test_unsound_pairs_are_told_with_what_they_cost() -> None:
    method = registry.get("draft-model")
    tree_builders = {grower.name: grower for grower in ALL_BUILDERS}
    table = {"k-seq": {"without-replacement": 0.141}, "greedy-draft": {"sampled": 0.508}}
    assert "TV 0.14." in explain_unsound(method, KSeq(), tree_builders["rsd-s"], table)
    assert "TV 0.51." in explain_unsound(method, GreedyDraft(), tree_builders["specinfer"], table)
    assert explain_unsound(method, KSeq(), tree_builders["rsd-c"], table) == method.unsound_reason(
        KSeq(), tree_builder=tree_builders["rsd-c"]
    )
    assert "TV" not in explain_unsound(
        method, KSeq(), tree_builders["rsd-s"], {"k-seq": {"without-replacement": LEAST / 2}}
    )
    assert explain_unsound(method, KSeq(), tree_builders["specinfer"], table) == ""
    assert explain_unsound(method, Lossless(), tree_builders["rsd-s"], table) == ""
    assert "approximate" in explain_unsound(method, TypicalAcceptance(), None, table)
    assert unsound_kinds(method, TypicalAcceptance()) == []


def test_the_catalogue_holds_the_figures_and_every_pair_that_is_not_sound() -> None:
    costs = method_info.deviations()
    for verifier, of in costs.items():
        for kind, value in of.items():
            if "k-seq" not in (verifier,):  # which takes seconds
                assert output_deviation(EXACT[verifier], Sampling(kind)) == pytest.approx(value, abs=6e-4)
    for method in registry.methods():
        told = MethodInfo.of(method).unsound
        for verifier, grower in itertools.product(method.verifiers, method.tree_builders):
            is_unsound = bool(verifier.exact_for and method.unsound_reason(verifier, tree_builder=grower))
            assert bool(told.get(verifier.name, {}).get(grower.name)) is is_unsound
            if is_unsound:
                assert {kind.value for kind in unsound_kinds(method, verifier, grower)} <= costs[verifier.name].keys()


def test_the_matrix_says_it_too() -> None:
    found = offers(registry.get("draft-model"), "greedy-draft", "shown")
    (offer,) = [offer for offer in found if "specinfer" in offer.ways["grower"]]
    assert "TV 0.51" in offer.reason
