"""Exact verifiers other than `Lossless`: example figures for several drafts at one position, and whole rounds.

Everything is enumerated: all draws of siblings, and all paths through the tree. p = (.5, .3, .15, .05) and
q = (.1, .4, .3, .2) are the distributions of the verification cards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from methods.test_round_enumeration import (
    DRAFT_SCHEMES,
    EXACTLY,
    KINDS,
    WARM,
    distance,
    output_distribution,
    random_tables,
    record_draws,
    texts_of,
)
from torch import Tensor

from workbench.core.promise import Promise
from workbench.core.sample_matching import match_sampled_token
from workbench.core.sampling import SamplingParams
from workbench.core.sibling_groups import SelectedRows, SiblingGroups, iter_sibling_groups
from workbench.core.soundness import why_unsound
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.kernels import compilation
from workbench.methods import registry
from workbench.methods.deviation import explain_unsound
from workbench.methods.verifiers import optimal_two
from workbench.methods.verifiers.block import Block
from workbench.methods.verifiers.deterministic import Deterministic
from workbench.methods.verifiers.exact import EmissionVerifier
from workbench.methods.verifiers.exact_verifiers import EXACT_VERIFIERS, unsound_reasons, verifiers_for_kinds
from workbench.methods.verifiers.greedy_draft import GreedyDraft
from workbench.methods.verifiers.independent import Independent
from workbench.methods.verifiers.k_seq import KSeq, discount
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.optimal_two import OptimalTwo, group, weights
from workbench.trace import theory

pytestmark = pytest.mark.unchecked
P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
SAMPLED, FIXED, HEAD = Sampling.SAMPLED, Sampling.FIXED_NUMBER, Sampling.HEAD_AND_ONE


# -- one position ------------------------------------------------------------------------------------------------------


def sibling_draws(q: Tensor, n: int, how: Sampling) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield all possible draws of n siblings with their probabilities."""
    probs = q.tolist()
    head = sorted(range(len(probs)), key=lambda t: -probs[t])[: n - 1] if how is HEAD else []
    for tokens in itertools.product(range(len(probs)), repeat=n):
        chance = 1.0
        for i, token in enumerate(tokens):
            elder = tokens[:i] if how is not SAMPLED else ()
            others = math.fsum(x for t, x in enumerate(probs) if t not in elder)
            if i < len(head):
                chance *= float(token == head[i])
            else:
                chance *= probs[token] / others if token not in elder and others > 0 else 0.0
        if chance > 0:
            yield tokens, chance


def sibling_level(tokens: tuple[int, ...], q: Tensor, how: Sampling) -> DraftTree:
    """Return a tree with these siblings below the root."""
    n = len(tokens)
    tree = DraftTree.from_parents(tokens, [-1] * n)
    tree = replace(tree, sampling=how, q=q[None], child_q_rows=torch.tensor([0] + [-1] * n), logq=q[list(tokens)].log())
    if how is HEAD:
        probs_of = torch.tensor([-1] * (n - 1) + [0])
        tree = replace(tree, node_q_rows=probs_of, without_replacement=probs_of >= 0)
    return tree


def first_token_distribution(
    verifier: Verifier, p: Tensor, q: Tensor, n: int, how: Sampling, patch: pytest.MonkeyPatch
) -> tuple[Tensor, float]:
    """Return (distribution of the first token, probability that it is one of the n siblings)."""
    out, kept = torch.zeros_like(p), 0.0
    distributions = p.expand(n + 1, -1)
    with record_draws(patch) as recorder:
        for tokens, chance in sibling_draws(q, n, how):
            u = torch.full((n + 1,), 0.5, dtype=torch.float64)
            ruling, last = recorder.rule(
                verifier, Verification(sibling_level(tokens, q, how), distributions.log(), distributions, WARM, u)
            )
            for token, accept in zip(tokens, ruling.accept.tolist(), strict=True):
                assert 0 <= accept <= 1 + 1e-12
                out[token] += chance * accept
                kept += chance * accept
                chance *= 1 - accept
            out += chance * last[0]
    return out, kept


@pytest.mark.parametrize(
    ("verifier", "how", "n", "acceptance", "near"),
    [
        (Independent(), SAMPLED, 2, 0.64, 1e-9),
        (Independent(), SAMPLED, 3, 0.676, 1e-9),
        (KSeq(), SAMPLED, 2, 0.658443, 1e-6),
        (KSeq(), SAMPLED, 3, 0.710003, 1e-6),
        (GreedyDraft(), HEAD, 2, 2 / 3, 1e-9),
        (GreedyDraft(), HEAD, 3, 0.833333, 1e-6),
        (OptimalTwo(steps=200), SAMPLED, 2, 0.69, 1e-6),
        (OptimalTwo(steps=200), FIXED, 2, 0.734524, 1e-6),
        (Lossless(), FIXED, 2, 0.656845, 1e-6),
        (Lossless(), FIXED, 3, 0.748988, 1e-6),
        (Deterministic(), SAMPLED, 1, 0.225, 1e-9),
        (Block(), Sampling.CHAIN, 1, 0.6, 1e-9),
    ],
    ids=lambda v: v.name if isinstance(v, Verifier) else None,
)
def test_golden_acceptance_rates(
    verifier: Verifier, how: Sampling, n: int, acceptance: float, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    probs, kept = first_token_distribution(verifier, P, Q, n, how, monkeypatch)
    assert kept == pytest.approx(acceptance, abs=near)
    assert distance(probs, P) < EXACTLY


def test_k_seq_divisor_equals_the_cards() -> None:
    found = discount(P.expand(3, -1), Q.expand(3, -1), torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64))
    assert found[:, 0].tolist() == pytest.approx([1, 1.584429, 2.100031], abs=1e-6)


def pair(seed: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, dtype=torch.float64, generator=generator) ** 3 + 1e-3
    if seed % 2:
        p[seed % size], q[(seed // 2) % size] = 0, 0
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("seed", range(4))
def test_acceptance_rates_are_in_the_order_of_theory_and_below_the_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For independent drafts, SpecInfer ≤ K-SEQ ≤ best of two = optimum, and each preserves the distribution."""
    p, q = pair(seed, 5)
    found = {}
    for name, verifier, how in (
        ("independent", Independent(), SAMPLED),
        ("k-seq", KSeq(), SAMPLED),
        ("best", OptimalTwo(), SAMPLED),
        ("best without", OptimalTwo(), FIXED),
        ("greedy", GreedyDraft(), HEAD),
    ):
        probs, found[name] = first_token_distribution(verifier, p, q, 2, how, monkeypatch)
        assert distance(probs, p) < EXACTLY, name
    bound, without = (theory.optimal_acceptance(p.numpy(), q.numpy(), 2, again) for again in (True, False))
    assert found["independent"] <= found["k-seq"] + 1e-9 <= found["best"] + 1e-3
    assert found["best"] == pytest.approx(bound, abs=1e-3)
    assert found["best"] <= bound + 1e-9
    assert found["best without"] == pytest.approx(without, abs=1e-3)
    assert found["best without"] <= without + 1e-9
    assert found["k-seq"] == pytest.approx(theory.kseq_acceptance(p.numpy(), q.numpy(), 2)[0], abs=1e-6)
    assert found["greedy"] == pytest.approx(theory.greedy_scheme_acceptance(p.numpy(), q.numpy(), 2), abs=1e-9)


@pytest.mark.parametrize("how", [SAMPLED, FIXED])
@pytest.mark.parametrize("options", [{"free": 2, "steps": 5}, {"free": 1, "steps": 3}, {"steps": 0}], ids=str)
def test_optimal_two_is_exact_for_all_weights(
    how: Sampling, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is exact for any number of free weights and of steps, and with further siblings after the pair."""
    for n in (1, 2, 3):
        probs, _ = first_token_distribution(OptimalTwo(**options), *pair(3, 5), n, how, monkeypatch)
        assert distance(probs, pair(3, 5)[0]) < EXACTLY, n


@pytest.mark.parametrize(("flat", "free"), [(0.1, 64), (3.0, 4)])
def test_weights_of_few_tokens_and_groups_are_close_to_the_bound(flat: float, free: int) -> None:
    """The selected token's distribution in closed form equals its definition; flat distributions have a long tail."""
    rng = np.random.default_rng(0)
    p, q = (torch.tensor(rng.dirichlet(np.full(200, flat)))[None] for _ in range(2))
    for without in (False, True):
        at, found, r = weights(p, q, without, free, 60)
        log_w = found[0][(group(p, q) + free)[0]].scatter(0, at[0], found[0, :free])
        w = torch.sigmoid(log_w[:, None] - log_w[None])
        both = q[0][:, None] * q[0][None] * (1 / (1 - q[0][:, None]) if without else 1.0)
        both = both.clone()
        if without:
            both.fill_diagonal_(0)
        probs = (both * w).sum(1) + (both * (1 - w)).sum(0)  # the first of the pair is selected, or the second
        torch.testing.assert_close(r[0], probs)
        bound = theory.optimal_acceptance(p[0].numpy(), q[0].numpy(), 2, not without)
        assert bound - 1e-2 < float(torch.minimum(p[0], r[0]).sum()) <= bound + 1e-9


@pytest.mark.parametrize("without", [False, True])
def test_weights_are_optimised_for_the_distribution_of_the_pair(without: bool) -> None:
    """They accept at least as much as equal weights, and at most what the bound allows.

    Optimised for another distribution, they would still be exact but accept less: up to 0.24 less if two drafts without
    replacement are treated as independent.
    """
    lost: list[float] = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p, q = (torch.tensor(rng.dirichlet(np.full(6, 0.5)))[None] for _ in range(2))

        def accepted(steps: int, p: Tensor = p, q: Tensor = q) -> float:
            return float(torch.minimum(p, weights(p, q, without, 6, steps)[2]).sum())

        bound = theory.optimal_acceptance(p[0].numpy(), q[0].numpy(), 2, not without)
        assert accepted(0) - 1e-9 <= accepted(200) <= bound + 1e-9, seed
        lost.append(bound - accepted(200))
    assert max(lost) < 5e-3


@pytest.mark.skipif(not compilation.may_compile(), reason="functions are compiled on Linux on x86-64")
@pytest.mark.parametrize("without", [False, True])
def test_compiled_search_finds_equally_good_weights(without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both searches may stop at different steps where acceptance is flat: only the acceptance rates are equal."""
    p, q = 2.5 * torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(5))
    p, q = p.softmax(1), q.softmax(1)
    among = q[4] >= q[4].topk(40).values[-1]  # free tokens only: the others have no weight
    p[4], q[4] = p[4].where(among, 0.0), q[4].where(among, 0.0)
    p = p / p.sum(1, keepdim=True)
    q = q / q.sum(1, keepdim=True)
    asked: list[str] = []
    really = compilation.load_kernels
    monkeypatch.setattr(optimal_two, "load_kernels", lambda part: (asked.append(part), really(part))[1])
    at, log_w, r = weights(p, q, without, 64, 40)
    assert asked == ["pairs"]
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    again, plain_w, plainly = weights(p, q, without, 64, 40)
    assert at[:4].tolist() == again[:4].tolist()
    assert torch.equal(
        *(torch.maximum(p, q)[4, some[4]] for some in (at, again))
    )  # tokens with probability 0 are interchangeable
    torch.testing.assert_close(torch.minimum(p, r).sum(1), torch.minimum(p, plainly).sum(1), atol=1e-4, rtol=0)
    assert float(log_w[4, -1]) == float(plain_w[4, -1]) == 0
    for probs in (r, plainly):
        torch.testing.assert_close(probs.sum(1), torch.ones(5), atol=1e-5, rtol=0)
    monkeypatch.delenv("WORKBENCH_COMPILED")
    _, one, probs = weights(p, q, without, 64, 1)
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    _, plain_one, plain_law = weights(p, q, without, 64, 1)
    torch.testing.assert_close(one, plain_one, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(probs, plain_law, atol=1e-6, rtol=1e-4)


# -- whole rounds -----------------------------------------------------------------------------------------------------

MADE_FOR: dict[str, tuple[Verifier, ...]] = {
    "chain of 2": (Block(), Deterministic()),
    "chain of 3": (Block(),),
    "independent siblings": (Independent(), KSeq(), OptimalTwo(steps=5)),
    "a fixed number": (OptimalTwo(steps=5), GreedyDraft()),
    "head and one sample": (GreedyDraft(), Deterministic()),
}


@pytest.mark.parametrize(
    ("way", "kind", "verifier"),
    [
        (way, kind, v)
        for way, made in MADE_FOR.items()
        for v in made
        for kind in (KINDS if isinstance(v, Block) else ("zeros",) if way == "independent siblings" else KINDS[1:4])
    ],
    ids=lambda v: v.name if isinstance(v, Verifier) else None,
)
def test_round_distribution_is_the_targets(
    way: str, kind: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables(kind, size, depth)
    tree, _ = next(drafts(w))
    assert not why_unsound("", {tree.sampling}, "", verifier.exact_for)
    assert float((output_distribution(w, drafts(w), verifier, monkeypatch) - w.joint()[()]).abs().max()) < EXACTLY


@pytest.mark.parametrize(
    ("way", "verifier"),
    [
        ("beam of 2", Independent()),
        ("beam of 2", KSeq()),
        ("beam of 2", OptimalTwo(steps=3)),
        ("independent siblings", GreedyDraft()),
        ("beam of 2", GreedyDraft()),
        ("head and one sample", Independent()),
        ("head and one sample", OptimalTwo(steps=3)),
    ],
    ids=lambda v: v.name if isinstance(v, Verifier) else None,
)
def test_rules_not_declared_exact_are_not_exact(way: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a beam, the first draft decides whether there is a second one: the pair is not distributed like two draws."""
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables("other", size, depth)
    tree, _ = next(drafts(w))
    assert why_unsound("", {tree.sampling}, "", verifier.exact_for)

    def without_node_distributions() -> Iterator[tuple[DraftTree, float]]:
        for tree, chance in drafts(w):  # distributions that the rule assumes for the draft
            if tree.child_q_rows is None and isinstance(verifier, Independent):
                inner = [i for i in range(len(tree) + 1) if i - 1 in tree.parents.tolist()]
                q_of = torch.full((len(tree) + 1,), -1)
                q_of[inner] = torch.arange(len(inner))
                distributions = torch.stack([w.q[texts_of(tree)[i]] for i in inner])
                tree = replace(tree, q=distributions, child_q_rows=q_of, node_q_rows=None, without_replacement=None)
            yield tree, chance

    assert distance(output_distribution(w, without_node_distributions(), verifier, monkeypatch), w.joint()[()]) > 1e-3


def test_rule_for_independent_draws_is_not_exact_without_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The younger sibling's true probability is larger than the rule assumes."""
    p, q = pair(2, 5)
    for verifier in (Independent(), KSeq()):
        assert distance(first_token_distribution(verifier, p, q, 2, FIXED, monkeypatch)[0], p) > 1e-3


def expected_accepted_length(verifier: Verifier, kind: str) -> float:
    """Return the expected number of accepted drafts of a chain."""
    drafts, size, depth = DRAFT_SCHEMES["chain of 3"]
    w, total = random_tables(kind, size, depth), 0.0
    for tree, chance in drafts(w):
        p = torch.stack([w.p[text] for text in texts_of(tree)])
        u = torch.full((len(p),), 0.5, dtype=torch.float64)
        accept = verifier.rule(Verification(tree, p.log(), p, WARM, u)).accept
        total += chance * float(accept.cumprod(0).sum())
    return total


def test_block_verification_accepts_more_than_token_verification() -> None:
    """Sun et al. 2025, §5: never fewer tokens, and more if the distributions differ."""
    for kind in ("any", "other", "zeros"):
        assert expected_accepted_length(Block(), kind) > expected_accepted_length(Lossless(), kind) + 1e-4
    assert expected_accepted_length(Block(), "equal") == pytest.approx(3)


def test_block_of_two_tokens_by_hand() -> None:
    """Sun et al. 2025, Figure 2: p = (1/3, 2/3), q = (2/3, 1/3) everywhere; 10/9 tokens one by one, 11/9 as a block."""
    p, q = torch.tensor([[1 / 3, 2 / 3]] * 3, dtype=torch.float64), torch.tensor([[2 / 3, 1 / 3]] * 2).double()
    found = {}
    for verifier in (Block(), Lossless()):
        total = 0.0
        for tokens in itertools.product(range(2), repeat=2):
            tree = DraftTree(
                torch.tensor(tokens), torch.tensor([-1, 0]), torch.zeros(2), Sampling.CHAIN, 2, q=q,
                child_q_rows=torch.tensor([0, 1, -1]),
            )  # fmt: skip
            u = torch.full((3,), 0.5, dtype=torch.float64)
            accept = verifier.rule(Verification(tree, p.log(), p, WARM, u)).accept
            total += math.prod(float(q[0, t]) for t in tokens) * float(accept.cumprod(0).sum())
        found[verifier.name] = total
    assert found == {"block": pytest.approx(11 / 9), "lossless": pytest.approx(10 / 9)}


def test_block_verifies_a_tree_as_lossless_does() -> None:
    tree = sibling_level((0, 1), Q, SAMPLED)
    distributions = P.expand(3, -1)
    u = torch.full((3,), 0.5, dtype=torch.float64)
    ours, theirs = (
        v.rule(Verification(tree, distributions.log(), distributions, WARM, u)) for v in (Block(), Lossless())
    )
    assert ours.accept.tolist() == theirs.accept.tolist()
    assert ours.bonus.tolist() == theirs.bonus.tolist()


# -- greedy text, deterministic drafts, offered verifiers --------------------------------------------------------------


@pytest.mark.parametrize("verifier", EXACT_VERIFIERS, ids=lambda v: v.name)
def test_greedy_text_and_deterministic_drafts_are_verified_as_by_lossless(verifier: Verifier) -> None:
    tree, distributions = DraftTree.from_parents([2, 0], [-1, -1]), P.expand(3, -1)
    u = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    for v in (
        Verification(tree, distributions.log(), distributions, SamplingParams(), None),
        Verification(tree, distributions.log(), distributions, WARM, u),
        Verification(DraftTree.empty(), distributions[:1].log(), distributions[:1], WARM, u[:1]),
    ):
        ours, theirs = verifier.rule(v), Lossless().rule(v)
        assert ours.accept.tolist() == theirs.accept.tolist()
        assert ours.bonus.tolist() == theirs.bonus.tolist()


def test_leaf_positions_emit_the_target_distribution() -> None:
    """On an accelerator, leaves are not filtered out and are processed like inner nodes."""
    tree = sibling_level((1, 2), Q, SAMPLED)
    distributions = torch.stack([P, P.flip(0), P.roll(1)])
    (fans,) = iter_sibling_groups(tree, distributions)
    every = SiblingGroups(
        torch.arange(3),
        torch.cat([fans.child, fans.child * 0, fans.child * 0]),
        torch.cat([fans.has_child, ~fans.has_child, ~fans.has_child]),
        torch.cat([fans.token, fans.token * 0, fans.token * 0]),
        SelectedRows(distributions, torch.arange(3)),
        SelectedRows(Q[None], torch.zeros(3, dtype=torch.long)),
    )
    for verifier in (KSeq(), OptimalTwo(), GreedyDraft()):
        assert isinstance(verifier, EmissionVerifier)
        probs = every.emitted_probs(*verifier.acceptance(tree, every))
        torch.testing.assert_close(probs[1:], distributions[1:])
        torch.testing.assert_close(probs[:1], fans.emitted_probs(*verifier.acceptance(tree, fans)))


def test_first_of_equal_siblings_gets_the_whole_probability() -> None:
    (fans,) = iter_sibling_groups(DraftTree.from_parents([1, 1, 0], [-1, -1, -1]), P.expand(4, -1))
    accept, unclaimed, left = match_sampled_token(fans, fans.p)
    assert accept[0].tolist() == pytest.approx([0.3, 0.0, 0.5 / 0.7])
    assert unclaimed[0].tolist() == pytest.approx([1.0, 0.7, 0.7])
    assert left[0].tolist() == pytest.approx([0, 0, 0.15, 0.05])


def test_offered_verifiers_follow_from_declarations() -> None:
    assert [v.name for v in verifiers_for_kinds(Sampling.CHAIN)] == ["block", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(SAMPLED)] == ["independent", "k-seq", "optimal-two", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(FIXED)] == ["optimal-two", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(HEAD)] == ["greedy-draft", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(Sampling.WITHOUT_REPLACEMENT)] == ["deterministic"]
    assert not verifiers_for_kinds(Sampling.DETERMINISTIC)
    assert all(v.useful_for <= v.exact_for for v in EXACT_VERIFIERS)

    reasons = unsound_reasons("rsd", FIXED)
    assert set(reasons) == {"independent", "k-seq"}
    assert reasons["k-seq"].startswith(
        "The verifier k-seq is not exact with the drafter rsd: sibling tokens of its drafts may be drawn "
    )
    assert unsound_reasons("draft-model", Sampling.CHAIN) == {}


def test_explanation_if_only_the_number_of_siblings_is_unsuitable() -> None:
    """The verifier bench offers these rules for two drafts without replacement; RSD-S samples their number, too."""
    method = registry.get("draft-tree-sampled")
    for name, number in (("optimal-two", True), ("k-seq", False)):
        verifier = next(v for v in method.other_verifiers if v.name == name)
        grower = next(g for g in method.tree_builders if g.name == "rsd-s")
        explanation = explain_unsound(method, verifier, grower)
        assert ("their number may depend on the sampled tokens" in explanation) is number
        assert ("at most two such drafts (a second one only if q of the first is at most 0.5)" in explanation) is number
        assert "differs from p by TV 0." in explanation
    for name, grower in (("optimal-two", "head-and-one"), ("greedy-draft", "specinfer")):
        verifier = next(v for v in method.other_verifiers if v.name == name)
        explanation = explain_unsound(method, verifier, next(g for g in method.tree_builders if g.name == grower))
        assert "With two such drafts, p =" in explanation, "their number is fixed"


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_setting_is_exact_if_the_verifier_suits_the_sibling_sampling(name: str) -> None:
    """For each tree builder by name, whatever the default is; every approximate setting has a reason."""
    method, suited = registry.get(name), {"chain", "eagle-2", "template", "superposed"}
    wanted = {
        **dict.fromkeys(("lossless", "block", "deterministic")),
        **dict.fromkeys(("independent", "k-seq"), suited | {"specinfer"}),
        "optimal-two": suited | {"specinfer", "rsd-c", "sequoia"},
        "greedy-draft": suited | {"rsd-c", "head-and-one", "sequoia"},
        **{name: set() for name in ("typical", "lenient", "nearest", "reflective", "judge")},
    }
    if name == "draft-model":
        wanted["entropy-adaptive"] = set()
    for verifier, tree_builders in wanted.items():
        for grower in method.params["grower"].choices:
            made = method.with_params(verifier=verifier, grower=grower)
            is_exact = tree_builders is None or grower in tree_builders
            assert made.promise is (Promise.EXACT if is_exact else Promise.APPROXIMATE)
            assert bool(made.unsound_reason) is not is_exact
    assert set(wanted) == set(method.params["verifier"].choices)
