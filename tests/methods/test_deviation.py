"""Deviation of unsound pairs of tree builder and verifier: enumeration, figures by hand, and where they are shown."""

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


def test_deviation_of_independent_on_siblings_without_replacement_by_hand() -> None:
    """Without replacement, after a rejected 0, tokens 1 and 2 come with ½ each and are always accepted (q gives 0.1),
    while the residual is (⅔, ⅓). Token 0 comes first with 0.8 and is rejected with ¾.
    """
    assert output_deviation(Independent(), Sampling.FIXED_NUMBER) == pytest.approx(
        0.8 * 0.75 * (2 / 3 - 1 / 2), abs=2e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_enumerate_all_draws(kind: Sampling) -> None:
    q = torch.tensor(Q, dtype=torch.float64)
    found = list(pairs(q, kind))
    assert sum(chance for _, chance in found) == pytest.approx(1)
    assert all(tree.sampling is kind for tree, _ in found)
    assert sum(chance for _, chance in pairs(q, Sampling.WITHOUT_REPLACEMENT, depends=True)) == pytest.approx(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_deviation_equals_the_tv_distance_of_a_whole_round(
    name: str, kind: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use the distributions that the rule draws from, not half the L1 distance; pairs declared exact have 0."""
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in (P, Q))
    w = DistributionTables(
        len(p), 1, {(): p} | {(x,): p for x in range(len(p))}, {(): q} | {(x,): q for x in range(len(p))}
    )
    expected = distance(output_distribution(w, iter(pairs(q, kind)), EXACT[name], monkeypatch).sum(1), p)
    assert output_deviation(EXACT[name], kind) == pytest.approx(expected, abs=3e-4)
    assert expected < 1e-9 or kind not in EXACT[name].exact_for


def test_explanation_of_an_unsound_pair_states_its_deviation() -> None:
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


def test_catalogue_has_the_deviation_of_every_unsound_pair() -> None:
    costs = method_info.deviations()
    for verifier, by_kind in costs.items():
        for kind, value in by_kind.items():
            if "k-seq" not in (verifier,):  # this one takes seconds
                assert output_deviation(EXACT[verifier], Sampling(kind)) == pytest.approx(value, abs=6e-4)
    for method in registry.methods():
        unsound = MethodInfo.of(method).unsound
        for verifier, grower in itertools.product(method.verifiers, method.tree_builders):
            is_unsound = bool(verifier.exact_for and method.unsound_reason(verifier, tree_builder=grower))
            assert bool(unsound.get(verifier.name, {}).get(grower.name)) is is_unsound
            if is_unsound:
                assert {kind.value for kind in unsound_kinds(method, verifier, grower)} <= costs[verifier.name].keys()


def test_matrix_states_the_deviation_too() -> None:
    found = offers(registry.get("draft-model"), "greedy-draft", "shown")
    (offer,) = [offer for offer in found if "specinfer" in offer.ways["grower"]]
    assert "TV 0.51" in offer.reason
