"""Acceptance rules, exactly: every draw of siblings is enumerated, and the output distribution is computed exactly.

Example figures: p = (.5, .3, .15, .05), q = (.1, .4, .3, .2), from the verification cards.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.core import sibling_groups
from workbench.core.rejection import (
    AcceptanceDecision,
    VerificationResult,
    accept_chain,
    greedy_match,
    recursive_rejection,
    residual,
    walk,
)
from workbench.core.sampling import SamplingParams, pick
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification
from workbench.methods.oracle.drafter import mixture
from workbench.methods.verifiers.typical import TypicalAcceptance

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.1, 0.4, 0.3, 0.2], dtype=torch.float64)
Rule = Callable[[DraftTree, Tensor, Tensor], AcceptanceDecision]


# -- exact evaluation of a rule ---------------------------------------------------------------------------------------


def draws(q: Tensor, n: int, how: Sampling) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield all possible draws of `n` siblings with their probabilities."""
    if how is Sampling.DETERMINISTIC:
        yield tuple(q.argsort(descending=True)[:n].tolist()), 1.0
        return
    for tokens in itertools.product(range(len(q)), repeat=n):
        if how is Sampling.WITHOUT_REPLACEMENT and len(set(tokens)) < n:
            continue
        chance, left = 1.0, 1.0
        for token in tokens:
            chance *= float(q[token]) / left if left > 0 else 0.0
            left -= float(q[token]) if how is Sampling.WITHOUT_REPLACEMENT else 0.0
        if chance > 0:
            yield tokens, chance


def siblings(tokens: tuple[int, ...], q: Tensor | None, how: Sampling) -> DraftTree:
    """Return a tree with one level of siblings below the root."""
    n = len(tokens)
    return DraftTree(
        tokens=torch.tensor(tokens),
        parents=torch.full((n,), -1),
        logq=torch.zeros(n),
        sampling=how,
        depth=1,
        fanout=n,
        q=None if q is None else q[None],
        child_q_rows=None if q is None else torch.tensor([0] + [-1] * n),
    )


def first_token_distribution(
    p: Tensor, q: Tensor, n: int, how: Sampling, patch: pytest.MonkeyPatch, order: Callable | None = None,
    rule: Rule = recursive_rejection, declared_as: Sampling | None = None, rest: Tensor | None = None,
) -> tuple[Tensor, float]:  # fmt: skip
    """Return (distribution of the first emitted token, probability that it is one of the siblings), without sampling.

    Args:
        p: the target's distribution.
        q: the drafter's distribution.
        n: number of siblings.
        how: how they are sampled.
        patch: for recording the residual distribution after all rejections.
        order: sort key for siblings before verification (which breaks exactness).
        rule: rule under test.
        declared_as: sampling that the tree declares; the true one by default.
        rest: distribution after a rejection, instead of the rule's residual distribution.
    """
    leftover: list[Tensor] = []

    def spy(probs: Tensor, u: Tensor) -> Tensor:
        leftover[:] = [probs]
        return torch.zeros(len(probs), dtype=torch.long)

    patch.setattr(sibling_groups, "pick", spy)
    out, acceptance = torch.zeros_like(p), 0.0
    declared = declared_as or how
    for tokens, chance in draws(q, n, how):
        seen = tuple(sorted(tokens, key=order)) if order else tokens
        tree = siblings(seen, None if declared is Sampling.DETERMINISTIC else q, declared)
        after = p.expand(n + 1, -1).clone()
        decision = rule(tree, after, torch.zeros(n + 1, dtype=torch.float64))
        alive = chance
        for token, accept in zip(seen, decision.accept.tolist(), strict=True):
            out[token] += alive * accept
            acceptance += alive * accept
            alive *= 1 - accept
        residual = leftover[0][0] if rest is None else rest
        out += alive * residual / residual.sum()
    return out, acceptance


def distance(a: Tensor, b: Tensor) -> float:
    """Return the total variation distance."""
    return float((a - b).abs().sum() / 2)


# -- example figures ---------------------------------------------------------------------------------------------------

SAMPLED, WITHOUT, FIXED = Sampling.SAMPLED, Sampling.WITHOUT_REPLACEMENT, Sampling.DETERMINISTIC


@pytest.mark.parametrize(
    ("how", "n", "acceptance"),
    [
        (SAMPLED, 1, 0.6),
        (SAMPLED, 2, 0.64),
        (SAMPLED, 3, 0.676),
        (WITHOUT, 1, 0.6),
        (WITHOUT, 2, 0.656845),
        (WITHOUT, 3, 0.748988),
        (WITHOUT, 4, 1.0),
        (FIXED, 1, 0.3),
        (FIXED, 2, 0.45),
        (FIXED, 3, 0.5),
    ],
)
def test_golden_acceptance_rates(how: Sampling, n: int, acceptance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, kept = first_token_distribution(P, Q, n, how, monkeypatch)
    assert kept == pytest.approx(acceptance, abs=6e-7)
    assert distance(probs, P) < 1e-12


def test_golden_residual() -> None:
    assert residual(P, Q).tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert residual(Q, P).tolist() == pytest.approx([0.0, 0.25, 0.375, 0.375])
    assert residual(P, P).tolist() == P.tolist()


distributions = st.lists(st.just(0.0) | st.floats(0.01, 1.0), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.1)


@pytest.mark.parametrize("seed", range(40))
def test_tree_rule_is_the_chain_rule_for_chains(seed: int) -> None:
    n, vocabulary = 4, 5
    random = torch.Generator().manual_seed(seed)
    p, q = (torch.rand(k, vocabulary, generator=random, dtype=torch.float64) for k in (n + 1, n))
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    tokens = torch.multinomial(q, 1, generator=random).squeeze(1)
    u, u_next = (torch.rand(k, generator=random, dtype=torch.float64) for k in (n, n + 1))
    rows = torch.tensor([*range(n), -1])
    chain = DraftTree.chain(tokens.tolist())
    tree = dataclasses.replace(chain, sampling=Sampling.CHAIN, q=q, child_q_rows=rows)
    decision = recursive_rejection(tree, p, u_next)
    found = walk(tree.parents.tolist(), decision.accept.tolist(), decision.bonus.tolist(), u.tolist())
    accepted, next_probs = accept_chain(p, q, tokens, u)
    assert len(found.path) == accepted
    assert found.bonus == int(pick(next_probs[None], u_next[accepted : accepted + 1]))


@settings(max_examples=40, deadline=None)
@given(distributions, distributions, st.integers(1, 3), st.sampled_from([SAMPLED, WITHOUT, FIXED]))
def test_emitted_distribution_is_the_targets_for_any_p_and_q(
    a: list[float], b: list[float], n: int, how: Sampling
) -> None:
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (a, b))
    n = min(n, int((q > 0).sum())) if how is WITHOUT else n
    with pytest.MonkeyPatch.context() as patch:
        probs, kept = first_token_distribution(p, q, n, how, patch)
    assert distance(probs, p) < 1e-9
    if n == 1 and how is not FIXED:
        assert kept == pytest.approx(float(torch.minimum(p, q).sum()))


@pytest.mark.parametrize("a", [0.0, 0.5, 0.7, 0.9, 1.0])
def test_oracle_acceptance_rate_matches_its_parameter(a: float, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SimpleNamespace(drafter=SimpleNamespace(acceptance=a), sampling=SamplingParams(temperature=1.0))
    q = inspect.unwrap(mixture)(row, P.log()[None])[0]  # without the type check: a real sequence needs a model
    probs, kept = first_token_distribution(P, q, 1, SAMPLED, monkeypatch)
    assert kept == pytest.approx(a + (1 - a) * float(P.min()))
    assert distance(probs, P) < 1e-12


# -- mixed trees: each sibling has its own distribution ------------------------------------------------------------

R = torch.tensor([0.3, 0.1, 0.2, 0.4], dtype=torch.float64)
CHOSEN = -1
MIXES = {
    "two deterministic, one sampled": ([(CHOSEN, 0), (CHOSEN, 3), (0, False)]),
    "the best deterministic, one sampled from the rest": ([(CHOSEN, 1), (0, True)]),
    "a sampled one, then a deterministic one": ([(0, False), (CHOSEN, 0)]),
    "two drafters": ([(0, False), (1, False)]),
    "two drafters, the second without the first one's token": ([(0, False), (1, True), (1, True)]),
    "all of it": ([(0, False), (CHOSEN, 2), (1, True), (0, False)]),
}
"""Siblings in order: (row of the distributions Q and R, without its elders' tokens), or (CHOSEN, its token)."""


def mixed_draws(kinds: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield all possible draws of these siblings with their probabilities."""
    for tokens in itertools.product(range(4), repeat=len(kinds)):
        chance = 1.0
        for i, (probs, extra) in enumerate(kinds):
            if probs == CHOSEN:
                chance *= float(tokens[i] == extra)
                continue
            q = (Q, R)[probs].clone()
            if extra:
                q[list(tokens[:i])] = 0
                q /= q.sum()
            chance *= float(q[tokens[i]])
        if chance > 0:
            yield tokens, chance


def first_token_distribution_of_mixed(
    kinds: list[tuple[int, int]], patch: pytest.MonkeyPatch, declared: list[tuple[int, int]]
) -> Tensor:
    """Return the first token's distribution if siblings are drawn as `kinds` and declared as `declared`."""
    leftover: list[Tensor] = []

    def pick(probs: Tensor, u: Tensor) -> Tensor:
        leftover.append(probs)
        return torch.zeros(len(probs), dtype=torch.long)

    patch.setattr(sibling_groups, "pick", pick)
    out, n = torch.zeros_like(P), len(kinds)
    for tokens, chance in mixed_draws(kinds):
        tree = DraftTree(
            torch.tensor(tokens), torch.full((n,), -1), torch.zeros(n), Sampling.MIXED, 1, n, q=torch.stack([Q, R]),
            node_q_rows=torch.tensor([probs for probs, _ in declared]),
            without_replacement=torch.tensor([probs != CHOSEN and bool(extra) for probs, extra in declared]),
        )  # fmt: skip
        ruling = recursive_rejection(tree, P.expand(n + 1, -1), torch.zeros(n + 1, dtype=torch.float64))
        for token, accept in zip(tokens, ruling.accept.tolist(), strict=True):
            out[token] += chance * accept
            chance *= 1 - accept
        left = leftover[-1][0]
        out += chance * left / left.sum()
    return out


@pytest.mark.parametrize("kinds", MIXES.values(), ids=MIXES)
def test_mixed_tree_preserves_the_target_distribution(
    kinds: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distance(first_token_distribution_of_mixed(kinds, monkeypatch, kinds), P) < 1e-12


@pytest.mark.parametrize(
    ("kinds", "declared"),
    [
        ([(CHOSEN, 1), (0, True)], [(CHOSEN, 1), (0, False)]),
        ([(1, False), (0, False)], [(1, False), (1, False)]),
        ([(CHOSEN, 1), (0, False)], [(0, False), (0, False)]),
    ],
    ids=["not without", "one drafter", "drawn"],
)
def test_mixed_tree_with_wrong_declarations_is_detected(
    kinds: list[tuple[int, int]], declared: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distance(first_token_distribution_of_mixed(kinds, monkeypatch, declared), P) > 0.01


def test_deterministic_node_with_display_probs_is_verified_as_deterministic() -> None:
    tree = dataclasses.replace(siblings((1,), None, FIXED), q=Q[None])
    assert recursive_rejection(tree, P.expand(2, -1), torch.zeros(2, dtype=torch.float64)).accept.tolist() == [0.3]


def test_mixed_tree_reports_each_nodes_draft_probability() -> None:
    tree = DraftTree(
        torch.tensor([1, 3, 0]), torch.tensor([-1, -1, 0]), torch.zeros(3), Sampling.MIXED, 2, 2,
        q=torch.stack([Q, R]), node_q_rows=torch.tensor([CHOSEN, 1, 0]),
    )  # fmt: skip
    ruling = recursive_rejection(tree, P.expand(4, -1), torch.zeros(4, dtype=torch.float64))
    assert ruling.explanation is not None
    assert ruling.explanation.inputs["q"].tolist() == [1.0, 0.4, 0.1]
    assert ruling.accept.tolist() == pytest.approx([0.3, min(1, 0.05 / 0.7 / 0.4), 1.0])


# -- the same evaluation detects wrong rules --------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "tv"), [(2, 0.2369), (3, 0.3917)])
def test_siblings_sorted_by_q_are_detected(n: int, tv: float, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, _ = first_token_distribution(P, Q, n, WITHOUT, monkeypatch, order=lambda token: -float(Q[token]))
    assert distance(probs, P) == pytest.approx(tv, abs=1e-4)


def test_ratio_rule_on_deterministic_drafts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, _ = first_token_distribution(P, Q, 2, FIXED, monkeypatch, declared_as=WITHOUT)
    assert probs.tolist() == pytest.approx([0.25, 0.75, 0.0, 0.0])
    assert distance(probs, P) == pytest.approx(0.45)


def test_sampling_without_replacement_declared_independent_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, _ = first_token_distribution(Q, P, 2, WITHOUT, monkeypatch, declared_as=SAMPLED)
    assert distance(probs, Q) > 0.01


def test_sampling_from_p_instead_of_the_residual_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, _ = first_token_distribution(P, Q, 1, SAMPLED, monkeypatch, rest=P)
    assert probs.tolist() == pytest.approx((torch.minimum(P, Q) + 0.4 * P).tolist())
    assert distance(probs, P) == pytest.approx(0.2)


def test_accepting_always_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(tree: DraftTree, p: Tensor, u: Tensor) -> AcceptanceDecision:
        ruling = recursive_rejection(tree, p, u)
        return AcceptanceDecision(torch.ones_like(ruling.accept), ruling.bonus)

    probs, _ = first_token_distribution(P, Q, 1, SAMPLED, monkeypatch, rule=always)
    assert distance(probs, P) == pytest.approx(0.4)


# -- whole trees ------------------------------------------------------------------------------------------------------


def test_parents_of_one_tree_do_not_affect_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tree of two levels, the rule decides at each parent as in a tree of its children only."""
    p = torch.stack([P, P.flip(0), Q, P.roll(1), P, Q.flip(0)])
    q = torch.stack([Q, P, Q.flip(0)])
    tree = DraftTree(
        tokens=torch.tensor([1, 2, 0, 3, 2]),
        parents=torch.tensor([-1, -1, 0, 0, 1]),
        logq=torch.zeros(5),
        sampling=WITHOUT,
        depth=2,
        fanout=2,
        q=q,
        child_q_rows=torch.tensor([0, 1, 2, -1, -1, -1]),
    )
    whole = recursive_rejection(tree, p, torch.full((6,), 0.5, dtype=torch.float64))
    for place, nodes in ((0, [0, 1]), (1, [2, 3]), (2, [4])):
        tokens = tuple(tree.tokens[nodes].tolist())
        alone = recursive_rejection(
            siblings(tokens, q[place], WITHOUT),
            p[[place] * (len(nodes) + 1)],
            torch.full((len(nodes) + 1,), 0.5).double(),
        )
        assert whole.accept[nodes].tolist() == pytest.approx(alone.accept.tolist())
        assert whole.bonus[place] == alone.bonus[0]


def test_greedy_match_follows_the_most_likely_tokens() -> None:
    tree = DraftTree.from_parents([5, 6, 7, 8], [-1, -1, 1, 2])
    ruling = greedy_match(tree, torch.tensor([6, 0, 7, 9, 4]))
    assert ruling.accept.tolist() == [0, 1, 1, 0]
    verdict = walk([-1, -1, 1, 2], ruling.accept.tolist(), ruling.bonus.tolist(), None)
    assert verdict.path == (1, 2)
    assert verdict.bonus == 9
    assert verdict.corrected
    assert verdict.tested == ((0, False), (1, True), (2, True), (3, False))


def test_rejecting_the_root_emits_one_token() -> None:
    verdict = walk([-1, 0], [0.0, 1.0], [3, 4, 5], [0.5, 0.5])
    assert (verdict.path, verdict.bonus, verdict.corrected) == ((), 3, True)
    assert verdict.uniform == {0: 0.5}


def test_an_empty_tree_and_a_full_path_end_in_a_bonus() -> None:
    assert walk([], [], [9], None).corrected is False
    full = walk([-1, 0], [1.0, 1.0], [3, 4, 5], [0.99, 0.0])
    assert (full.path, full.bonus, full.corrected) == ((0, 1), 5, False)


def test_probability_one_is_always_accepted_and_zero_never() -> None:
    assert walk([-1], [1.0], [0, 1], [1 - 1e-16]).path == (0,)
    assert walk([-1], [0.0], [0, 1], [0.0]).path == ()


def test_tiny_residual_after_siblings_is_normalised_without_cancellation() -> None:
    """As 1 minus the rest, the residual probability of the second sibling would be 20 % off in float32."""
    p = torch.tensor([[1 - 1e-7, 6e-8, 3e-8, 1e-8]], dtype=torch.float64).expand(3, -1)
    tree = siblings((0, 1), None, Sampling.DETERMINISTIC)
    found = recursive_rejection(tree, p.float(), torch.full((3,), 0.5, dtype=torch.float64))
    assert found.accept.tolist() == pytest.approx([1.0, 0.6], rel=1e-3)
    assert found.bonus.tolist() == [2, 0, 0]


def test_repeated_sibling_is_not_accepted_again() -> None:
    tree = siblings((0, 0, 1), None, Sampling.DETERMINISTIC)
    found = recursive_rejection(tree, P.expand(4, -1), torch.zeros(4, dtype=torch.float64))
    assert found.accept.tolist() == pytest.approx([0.5, 0.0, 0.6])
    assert found.bonus.tolist() == [2, 0, 0, 0]


@pytest.mark.parametrize(("a", "taus"), [(0.5, (1.5, 1.875, 1.9688, 1.9961)), (0.7, (1.7, 2.533, 2.9412, 3.1988)),
                                         (0.9, (1.9, 3.439, 4.6856, 6.1258))])  # fmt: skip
def test_expected_length_of_a_walk_is_geometric(a: float, taus: tuple[float, ...]) -> None:
    """(1 − aᵞ⁺¹)/(1 − a), summed over all outcomes of the walk itself."""
    for depth, tau in zip((1, 3, 5, 8), taus, strict=True):
        chain = list(range(-1, depth - 1))
        mean = 0.0
        for kept in range(depth + 1):
            uniform = [0.0] * kept + [1.0] * (depth - kept)
            verdict = walk(chain, [a] * depth, [0] * (depth + 1), uniform)
            assert len(verdict.path) == kept
            mean += (len(verdict.path) + 1) * a**kept * (1 - a if kept < depth else 1)
        assert mean == pytest.approx(tau, abs=1e-4)
        assert mean == pytest.approx((1 - a ** (depth + 1)) / (1 - a))


def test_typical_acceptance_example_figures() -> None:
    rule, sampling = TypicalAcceptance(), SamplingParams(temperature=1.0)

    def is_accepted(p: Tensor) -> list[bool]:
        tree = siblings(tuple(range(len(p))), None, FIXED)
        places = p.expand(len(p) + 1, -1)
        u = torch.zeros(len(p) + 1, dtype=torch.float64)
        return (rule.rule(Verification(tree, places.log(), places, sampling, u)).accept > 0).tolist()

    assert is_accepted(P) == [True, True, True, False]  # H = 1.1421, δ·exp(−H) = 0.0957 > ε = 0.09
    assert float(-(P * P.log()).sum()) == pytest.approx(1.1421, abs=1e-4)
    assert all(is_accepted(torch.full((50,), 0.02, dtype=torch.float64)))  # threshold 0.3 / 50 = 0.006
    sure = torch.tensor([0.93, 0.05, 0.02], dtype=torch.float64)
    assert is_accepted(sure) == [True, False, False]
    assert 0.3 * math.exp(float((sure * sure.log()).sum())) > 0.09


def test_typical_acceptance_uses_the_distribution_at_the_parent() -> None:
    """The distribution is flat at the root (θ = 0.022) and peaked after it (θ = ε = 0.09): 0.04 is accepted."""
    root = torch.tensor([0.5, 0.04] + [0.46 / 48] * 48, dtype=torch.float64)
    sure = torch.tensor([0.95] + [0.05 / 49] * 49, dtype=torch.float64)
    places, u = torch.stack([root, sure, sure]), torch.zeros(3, dtype=torch.float64)
    v = Verification(siblings((0, 1), None, FIXED), places.log(), places, SamplingParams(1.0), u)
    assert TypicalAcceptance().rule(v).accept.tolist() == [1, 1]


def test_typical_acceptance_error_is_the_total_variation_of_the_output() -> None:
    """Every possible draft of one position is tested, sampled and deterministic; the next test uses trees."""

    def decide(tokens: tuple[int, ...], q: Tensor | None, heat: float = 1.0) -> AcceptanceDecision:
        tree, places = siblings(tokens, q, FIXED if q is None else SAMPLED), P.expand(len(tokens) + 1, -1)
        u = torch.zeros(len(places), dtype=torch.float64) if heat else None
        return TypicalAcceptance().rule(Verification(tree, places.log(), places, SamplingParams(heat), u))

    def error(x: int, q: Tensor | None, heat: float = 1.0) -> float:
        found = decide((x,), q, heat).distribution_error
        assert found is not None
        return float(found)

    out = torch.zeros_like(P)
    for x in range(len(P)):
        keeps = float(decide((x,), Q).accept)
        out += Q[x] * (1 - keeps) * P
        out[x] += Q[x] * keeps
    distance_to_p = float((out - P).abs().sum() / 2)
    assert distance_to_p > 0.1
    assert [error(x, Q) for x in range(len(P))] == pytest.approx([distance_to_p] * len(P), abs=1e-12)
    assert error(0, None) == pytest.approx(1 - float(P[0]))
    assert error(3, None) == 0, "it is rejected, and the token is sampled from p"
    assert not decide((0,), Q).is_upper_bound
    assert not decide((0, 1), None).is_upper_bound, "deterministic drafts have no variation"
    assert error(3, Q, heat=0.0) == 0


@pytest.mark.parametrize("sharp", [1.0, 30.0], ids=["drawn", "nearly deterministic"])
@pytest.mark.parametrize("how", [SAMPLED, WITHOUT])
@pytest.mark.parametrize("seed", range(4))
def test_typical_acceptance_error_bounds_the_deviation_on_sampled_trees(seed: int, how: Sampling, sharp: float) -> None:
    """Two drafts for the first token, one for the second after each; the output is summed over every possible tree."""
    generator = torch.Generator().manual_seed(seed)
    heat = torch.tensor([1.5, sharp]).view(2, 1, 1)
    p, q = (heat * torch.randn(2, 4, 3, generator=generator)).double().softmax(2)  # [1 + V, V]: after each token
    rule, parents = TypicalAcceptance(epsilon=0.2, delta=1.0), [-1, -1, 0, 1]
    wanted = p[0].unsqueeze(1) * p[1:]  # [V, V]
    out, bound, whole = torch.zeros_like(wanted), 0.0, 0.0
    for first, chance in draws(q[0], 2, how):
        for second in itertools.product(range(3), repeat=2):
            tokens = [*first, *second]
            q_of = torch.tensor([0, 1, 2, -1, -1])
            tree = dataclasses.replace(
                DraftTree.from_parents(tokens, parents),
                sampling=how,
                q=torch.stack([q[0], *q[[1 + x for x in first]]]),
                child_q_rows=q_of,
            )
            distributions = torch.stack([p[0], *p[[1 + x for x in tokens]]])
            u = torch.zeros(5, dtype=torch.float64)
            found = rule.rule(Verification(tree, distributions.log(), distributions, SamplingParams(1.0), u))
            assert found.is_upper_bound
            assert isinstance(found.bonus, Tensor)
            assert isinstance(found.distribution_error, Tensor)
            assert found.score is not None
            verdict = rule.walk(parents, found.accept.tolist(), found.bonus.tolist(), None, found.score.tolist())
            written = wanted.clone()  # follows p, except for the accepted tokens
            for i, node in enumerate(verdict.path):
                settled = torch.zeros(3, dtype=torch.float64)
                settled[tokens[node]] = 1
                written = settled.unsqueeze(1) * p[1:] if i == 0 else written.sum(1, keepdim=True) * settled
            weight = chance * float(q[1 + first[0], second[0]] * q[1 + first[1], second[1]])
            out, whole = out + weight * written, whole + weight
            bound += weight * sum(float(found.distribution_error[node]) for node, _ in verdict.tested)
    assert whole == pytest.approx(1)
    deviation = float((out - wanted).abs().sum() / 2)
    assert deviation <= bound + 1e-9
    assert deviation > 0.5 * bound or sharp == 1.0, "for nearly deterministic drafts the bound is tight"


@pytest.mark.parametrize("seed", range(8))
def test_typical_acceptance_error_of_deterministic_drafts_sums_along_the_path(seed: int) -> None:
    """It is the target's probability of all other tokens there, since a deterministic position emits nothing else."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, -1, -1, 0, 0, 1, 1, 3, 5, 7]
    tree = DraftTree.from_parents(torch.randint(3, (10,), generator=generator).tolist(), parents)
    distributions = (1.5 * torch.randn(11, 3, generator=generator)).softmax(1).double()
    rule = TypicalAcceptance(epsilon=0.25, delta=1.0)
    found = rule.rule(
        Verification(
            tree, distributions.log(), distributions, SamplingParams(1.0), torch.zeros(11, dtype=torch.float64)
        )
    )
    assert isinstance(found.bonus, Tensor)
    assert isinstance(found.distribution_error, Tensor)
    assert found.score is not None
    verdict = rule.walk(parents, found.accept.tolist(), found.bonus.tolist(), None, found.score.tolist())
    wanted = [
        1 - float(distributions[parents[node] + 1, tree.tokens[node]]) if node in verdict.path else 0.0
        for node in range(10)
    ]
    assert found.distribution_error.tolist() == pytest.approx(wanted)
    assert sum(wanted) > 0.01 or not verdict.path


def test_typical_acceptance_takes_the_longest_path_and_the_more_likely_of_equal_ones() -> None:
    walk_ = TypicalAcceptance().walk
    #         0 ─ 2      1 ─ 3 ─ 4 (rejected)
    parents = [-1, -1, 0, 1, 3]

    def walked(*score: float) -> VerificationResult:
        return walk_(parents, [float(s > 0) for s in score], list(range(6)), None, score)

    assert walked(0.9, 0.1, 0.0, 0.2, 0.0).path == (1, 3)
    assert walked(0.9, 0.1, 0.3, 0.2, 0.0).path == (0, 2)
    verdict = walked(0.0, 0.0, 0.0, 0.0, 0.0)
    assert (verdict.path, verdict.bonus, verdict.corrected) == ((), 0, True)
    assert walked(0.9, 0.1, 0.0, 0.2, 0.5).bonus == 5
    assert walk_(parents, [1.0, 0.0, 1.0, 0.0, 0.0], list(range(6)), None).path == (0, 2)  # greedy: no score
