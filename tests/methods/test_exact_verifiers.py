"""Exact verifiers beside `Lossless`: the golden numbers of several drafts for one place, and the law of whole rounds.

Everything is enumerated: all draws of siblings, and all ways through the tree. p = (.5, .3, .15, .05) and
q = (.1, .4, .3, .2) are the laws of the verification cards.
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
from workbench.decoders.draft_verify.feedback import Verification
from workbench.decoders.draft_verify.parts import Verifier
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


# -- one place --------------------------------------------------------------------------------------------------------


def sibling_draws(q: Tensor, n: int, how: Sampling) -> Iterator[tuple[tuple[int, ...], float]]:
    """All ways n siblings can come out, with their probabilities."""
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
    """Siblings below the root."""
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
    """(law of the first token, chance that it is one of the n siblings)."""
    out, kept = torch.zeros_like(p), 0.0
    distributions = p.expand(n + 1, -1)
    with record_draws(patch) as said:
        for tokens, chance in sibling_draws(q, n, how):
            u = torch.full((n + 1,), 0.5, dtype=torch.float64)
            ruling, last = said.rule(
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
def test_golden_acceptance(
    verifier: Verifier, how: Sampling, n: int, acceptance: float, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    probs, kept = first_token_distribution(verifier, P, Q, n, how, monkeypatch)
    assert kept == pytest.approx(acceptance, abs=near)
    assert distance(probs, P) < EXACTLY


def test_k_seqs_divisor_is_the_cards() -> None:
    found = discount(P.expand(3, -1), Q.expand(3, -1), torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64))
    assert found[:, 0].tolist() == pytest.approx([1, 1.584429, 2.100031], abs=1e-6)


def pair(seed: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, dtype=torch.float64, generator=generator) ** 3 + 1e-3
    if seed % 2:
        p[seed % size], q[(seed // 2) % size] = 0, 0
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("seed", range(4))
def test_rules_stand_in_the_order_of_the_theory_and_under_the_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SpecInfer ≤ K-SEQ ≤ the best of two = the optimum, for independent drafts; and each keeps the law."""
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
def test_the_best_of_two_is_exact_for_every_choice_of_weights(
    how: Sampling, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are free, however far they are improved, and whatever follows the pair."""
    for n in (1, 2, 3):
        probs, _ = first_token_distribution(OptimalTwo(**options), *pair(3, 5), n, how, monkeypatch)
        assert distance(probs, pair(3, 5)[0]) < EXACTLY, n


@pytest.mark.parametrize(("flat", "free"), [(0.1, 64), (3.0, 4)])
def test_weights_of_few_tokens_and_of_groups_come_near_the_bound_in_a_large_vocabulary(flat: float, free: int) -> None:
    """By the closed form of the law of the choice, checked against its definition; flat laws have a long tail."""
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
        probs = (both * w).sum(1) + (both * (1 - w)).sum(0)  # the first of the pair chosen, or the second
        torch.testing.assert_close(r[0], probs)
        bound = theory.optimal_acceptance(p[0].numpy(), q[0].numpy(), 2, not without)
        assert bound - 1e-2 < float(torch.minimum(p[0], r[0]).sum()) <= bound + 1e-9


@pytest.mark.parametrize("without", [False, True])
def test_improved_weights_are_those_of_the_law_of_the_pair(without: bool) -> None:
    """They accept no less than weights that are all alike, and what the bound lets them.

    Improved for another law they would keep the text exact, and accept less: up to 0.24 where two different drafts are
    taken for two that may be alike.
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
def test_weights_that_are_found_by_a_compiled_function_are_as_good(
    without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two may leave the search at different steps, where acceptance is flat: what they let through is the same."""
    p, q = 2.5 * torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(5))
    p, q = p.softmax(1), q.softmax(1)
    among = q[4] >= q[4].topk(40).values[-1]  # nothing but free tokens: the others have no weight
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
    assert torch.equal(*(torch.maximum(p, q)[4, some[4]] for some in (at, again)))  # of those without a chance any are
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
def test_where_a_rule_is_not_declared_exact_it_is_not(
    way: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beam decides by the first draft whether there is a second: then the pair has another law than two draws."""
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables("other", size, depth)
    tree, _ = next(drafts(w))
    assert why_unsound("", {tree.sampling}, "", verifier.exact_for)

    def without_own_laws() -> Iterator[tuple[DraftTree, float]]:
        for tree, chance in drafts(w):  # what the rule takes the draft for
            if tree.child_q_rows is None and isinstance(verifier, Independent):
                inner = [i for i in range(len(tree) + 1) if i - 1 in tree.parents.tolist()]
                q_of = torch.full((len(tree) + 1,), -1)
                q_of[inner] = torch.arange(len(inner))
                distributions = torch.stack([w.q[texts_of(tree)[i]] for i in inner])
                tree = replace(tree, q=distributions, child_q_rows=q_of, node_q_rows=None, without_replacement=None)
            yield tree, chance

    assert distance(output_distribution(w, without_own_laws(), verifier, monkeypatch), w.joint()[()]) > 1e-3


def test_a_rule_for_independent_draws_is_not_exact_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The younger sibling's chance is larger than the rule takes it for."""
    p, q = pair(2, 5)
    for verifier in (Independent(), KSeq()):
        assert distance(first_token_distribution(verifier, p, q, 2, FIXED, monkeypatch)[0], p) > 1e-3


def kept_drafts(verifier: Verifier, kind: str) -> float:
    """Expected accepted drafts of a chain."""
    drafts, size, depth = DRAFT_SCHEMES["chain of 3"]
    w, total = random_tables(kind, size, depth), 0.0
    for tree, chance in drafts(w):
        p = torch.stack([w.p[text] for text in texts_of(tree)])
        u = torch.full((len(p),), 0.5, dtype=torch.float64)
        accept = verifier.rule(Verification(tree, p.log(), p, WARM, u)).accept
        total += chance * float(accept.cumprod(0).sum())
    return total


def test_a_block_keeps_more_than_its_tokens_one_by_one() -> None:
    """Sun et al. 2025, §5: never fewer; and on a law that is not flat, more."""
    for kind in ("any", "other", "zeros"):
        assert kept_drafts(Block(), kind) > kept_drafts(Lossless(), kind) + 1e-4
    assert kept_drafts(Block(), "equal") == pytest.approx(3)


def test_a_block_of_two_by_hand() -> None:
    """Sun et al. 2025, Figure 2's setting: q is fair, p (2/3, 1/3) at every place; 1.11 tokens one by one, 1.22."""
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


def test_a_block_judges_a_tree_as_lossless_does() -> None:
    tree = sibling_level((0, 1), Q, SAMPLED)
    distributions = P.expand(3, -1)
    u = torch.full((3,), 0.5, dtype=torch.float64)
    ours, theirs = (
        v.rule(Verification(tree, distributions.log(), distributions, WARM, u)) for v in (Block(), Lossless())
    )
    assert ours.accept.tolist() == theirs.accept.tolist()
    assert ours.bonus.tolist() == theirs.bonus.tolist()


# -- greedy text, drafts without laws, what is offered ----------------------------------------------------------------


@pytest.mark.parametrize("verifier", EXACT_VERIFIERS, ids=lambda v: v.name)
def test_greedy_text_and_chosen_drafts_are_judged_as_ever(verifier: Verifier) -> None:
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
    """On a device that should not be asked, they are rows like others."""
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


def test_what_is_offered_follows_from_the_declarations() -> None:
    assert [v.name for v in verifiers_for_kinds(Sampling.CHAIN)] == ["block", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(SAMPLED)] == ["independent", "k-seq", "optimal-two", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(FIXED)] == ["optimal-two", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(HEAD)] == ["greedy-draft", "deterministic"]
    assert [v.name for v in verifiers_for_kinds(Sampling.WITHOUT_REPLACEMENT)] == ["deterministic"]
    assert not verifiers_for_kinds(Sampling.DETERMINISTIC)
    assert all(v.useful_for <= v.exact_for for v in EXACT_VERIFIERS)

    reasons = unsound_reasons("rsd", FIXED)
    assert set(reasons) == {"independent", "k-seq"}
    assert reasons["k-seq"].startswith("k-seq is not exact for rsd: its siblings may be drawn without replacement")
    assert unsound_reasons("draft-model", Sampling.CHAIN) == {}


def test_where_only_the_number_of_drafts_is_wrong_that_is_the_reason_and_the_example() -> None:
    """The verifier bench offers these rules for two drafts without replacement: what the draws change is how many."""
    method = registry.get("draft-tree-sampled")
    for name, number in (("optimal-two", True), ("k-seq", False)):
        verifier = next(v for v in method.other_verifiers if v.name == name)
        grower = next(g for g in method.tree_builders if g.name == "rsd-s")
        said = explain_unsound(method, verifier, grower)
        assert ("their number may depend on the sampled tokens" in said) is number
        assert ("at most two such drafts, the second only if the first has at most half of q" in said) is number
        assert "differs from p by TV 0." in said
    for name, grower in (("optimal-two", "head-and-one"), ("greedy-draft", "specinfer")):
        verifier = next(v for v in method.other_verifiers if v.name == name)
        said = explain_unsound(method, verifier, next(g for g in method.tree_builders if g.name == grower))
        assert "With two such drafts, p =" in said, "always two of them"


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled"])
def test_a_choice_is_exact_just_where_its_rule_suits_how_siblings_are_drawn(name: str) -> None:
    """By name of the grower, whatever the default one is; what is not exact says why."""
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
