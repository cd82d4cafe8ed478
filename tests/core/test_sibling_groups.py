"""Verification in chunks on the host, all at once as on an accelerator, and compiled: all give the same decisions."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from workbench.bench.verifier_suite import TEMPERATURE_ONE, Case, cases, sample_draft, verifiers
from workbench.core import relaxed, sampling, sibling_groups, transfer
from workbench.core.lazy import LazySequence, take
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import BLOCK, WIDE, entropy_of, largest, to_probs
from workbench.core.sibling_groups import iter_sibling_groups, normalise_rows, where_rows
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification
from workbench.kernels import compilation, rejection
from workbench.methods.verifiers import exact, optimal_two, sums
from workbench.methods.verifiers.entropy_adaptive import EntropyState, GeneratorState
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.nearest import Nearest, Neighbours

V = WIDE + 3 * BLOCK
NODES = 12


def run_verifier(
    case: Case, tree: DraftTree, logits: Tensor, late: bool = False, p: Tensor | None = None
) -> AcceptanceDecision:
    state = (
        NEAR if isinstance(case.verifier, Nearest) else EntropyState(GeneratorState(is_draft_model=True, n_tokens=0))
    )
    u = torch.rand(len(tree) + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    p = to_probs(logits, TEMPERATURE_ONE) if p is None else p
    return case.verifier.rule(Verification(tree, logits, p, TEMPERATURE_ONE, u, state=state, lazy=late))


NEAR = Neighbours(torch.randn(V, 3, generator=torch.Generator().manual_seed(2)))


def simulate_remote_device(patch: pytest.MonkeyPatch) -> None:
    """Make the code behave as if reading a number from the device were expensive."""
    really = transfer.on_host
    for module in [m for m in sys.modules.values() if vars(m).get("on_host") is really]:
        patch.setattr(module, "on_host", lambda device: False)


def mixed_tree(q: Tensor) -> DraftTree:
    """Return three, one and two children, sampled and deterministic, from two distributions; one without its elder."""
    tree = DraftTree.from_parents([5, 9, 7, 4, 4, 30], [-1, -1, -1, 1, 3, 3])
    probs_of, without = torch.tensor([0, 0, -1, 1, 1, 1]), torch.tensor([False, True, False, False, False, True])
    return replace(tree, sampling=Sampling.MIXED, q=q[:2], node_q_rows=probs_of, without_replacement=without)


CASES = [*cases(verifiers())[0], Case(Nearest(), Sampling.SAMPLED)]
MIXED = [Case(v, Sampling.MIXED) for v in (Lossless(), Nearest())]


@pytest.mark.parametrize("case", [*CASES, *MIXED], ids=lambda case: f"{case.verifier.name}, {case.kind.value}")
@pytest.mark.parametrize("rows", [1, 2])
def test_chunked_and_unchunked_verification_agree(case: Case, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, ahead = 2.5 * torch.randn(2, NODES + 1, V, dtype=torch.float64, generator=generator)
    ahead[:, ::2] = logits[:, ::2]  # drafts that are often accepted
    q = ahead.softmax(1)
    tree = mixed_tree(q) if case.kind is Sampling.MIXED else sample_draft(case.kind, q, NODES)
    logits = logits[: len(tree) + 1]
    with monkeypatch.context() as patch:
        simulate_remote_device(patch)
        wanted = run_verifier(case, tree, logits)
    monkeypatch.setattr(sampling, "CHUNK_ENTRIES", rows * V)
    assert len(list(iter_sibling_groups(tree, logits))) > 1
    found = run_verifier(case, tree, logits)
    assert found.bonus.tolist() == wanted.bonus.tolist()
    torch.testing.assert_close(found.accept, wanted.accept)
    for name in ("score", "distribution_error"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    assert found.explanation is not None
    assert wanted.explanation is not None
    torch.testing.assert_close(dict(found.explanation.inputs), dict(wanted.explanation.inputs))
    kept = float(found.accept.sum())
    assert kept > 0
    assert kept < len(tree) or case.verifier.name == "as-drafted", "this verifier accepts all drafts"


@pytest.mark.parametrize("case", [*CASES, *MIXED], ids=lambda case: f"{case.verifier.name}, {case.kind.value}")
def test_lazy_results_equal_eager_results(case: Case) -> None:
    """One position at a time, all together, and in another order than that of the tree."""
    generator = torch.Generator().manual_seed(6)
    logits, ahead = 2.5 * torch.randn(2, NODES + 1, V, dtype=torch.float64, generator=generator)
    ahead[:, ::2] = logits[:, ::2]
    q = ahead.softmax(1)
    tree = mixed_tree(q) if case.kind is Sampling.MIXED else sample_draft(case.kind, q, NODES)
    logits = logits[: len(tree) + 1]
    wanted = run_verifier(case, tree, logits)
    for order in ([0], list(range(len(tree) + 1)), list(range(len(tree), -1, -3))):
        found = run_verifier(case, tree, logits, late=True)
        assert isinstance(found.bonus, LazySequence)
        assert torch.equal(found.accept, wanted.accept)
        assert found.bonus.take(order) == [wanted.bonus.tolist()[place] for place in order]
        assert [found.bonus[place] for place in order] == found.bonus.take(order)
        assert found.bonus.tolist() == wanted.bonus.tolist()
        assert (found.distribution_error is None) == (wanted.distribution_error is None)
        if isinstance(found.distribution_error, LazySequence):
            assert isinstance(wanted.distribution_error, Tensor)
            nodes = sorted(place - 1 for place in order if place)
            assert take(found.distribution_error, nodes) == pytest.approx(
                [wanted.distribution_error.tolist()[node] for node in nodes]
            )
            assert found.distribution_error.tolist() == pytest.approx(wanted.distribution_error.tolist())


def sampled_tree(kind: Sampling, q: Tensor) -> DraftTree:
    """Return three, one and two children; independent ones may be equal."""
    again = 5 if kind is Sampling.SAMPLED else 7
    tree = DraftTree.from_parents([5, 9, again, 4, 4, 30], [-1, -1, -1, 1, 3, 3])
    return replace(tree, sampling=kind, q=q[:3], child_q_rows=torch.tensor([0, -1, 1, -1, 2, -1, -1]))


DISTRIBUTION_KINDS = ["unlike", "filtered", "equal"]
DRAWN = [(case, world) for case in CASES if case.kind is not Sampling.DETERMINISTIC for world in DISTRIBUTION_KINDS]


@pytest.mark.skipif(not compilation.may_compile(), reason="functions are compiled on Linux on x86-64")
@pytest.mark.parametrize(
    ("case", "world"),
    DRAWN,
    ids=lambda value: f"{value.verifier.name}, {value.kind.value}" if isinstance(value, Case) else value,
)
@pytest.mark.parametrize("shape", ["regular", "uneven"])
def test_compiled_verification_equals_plain_verification(
    case: Case, world: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6, for distributions with and without zeros, and where the residual after a draft is zero."""
    generator = torch.Generator().manual_seed(8)
    logits, ahead = 2.5 * torch.randn(2, NODES + 1, V, generator=generator)
    ahead[:, ::2] = logits[:, ::2]
    if world == "filtered":
        logits[:, 100:] = ahead[:, 90:] = -torch.inf
    if world == "equal":
        ahead[:2] = logits[:2]
    q = ahead.softmax(1)
    uneven = shape == "uneven" and case.kind in (Sampling.SAMPLED, Sampling.FIXED_NUMBER)
    tree = sampled_tree(case.kind, q) if uneven else sample_draft(case.kind, q, NODES)
    logits = logits[: len(tree) + 1]
    assert tree.q is not None
    assert rejection.supports_distributions(logits, tree.q)
    found = run_verifier(case, tree, logits, late=True)
    p = to_probs(logits, TEMPERATURE_ONE).double()
    near = {"rtol": 1e-5, "atol": 3e-6 if case.verifier.name == "k-seq" else 1e-6}  # ρ is accurate to 1.4e-6
    is_double = case.verifier.name == "k-seq" and world == "equal"
    if is_double:  # ρ is a double root there: half of float32's digits count, and the residual of p has even fewer
        near["atol"] = 2e-3
    if case.verifier.name != "optimal-two":
        wanted = run_verifier(case, replace(tree, q=tree.q.double()), logits.double(), p=p)
    else:  # its weights depend on the precision of their search; its output distribution does not
        with monkeypatch.context() as patch:
            for module in (optimal_two, exact):
                patch.setattr(module, "supports_distributions", lambda p, q: False)
            wanted = run_verifier(case, tree, logits)
    assert found.explanation is not None
    assert wanted.explanation is not None
    # Where elders have nearly all of a token's probability, a younger sibling's share is dominated by rounding errors.
    is_significant = wanted.explanation.inputs.get("unclaimed", torch.ones(len(tree))) > 1e-4
    assert is_significant.sum() >= len(tree) / 2
    torch.testing.assert_close(found.accept[is_significant].double(), wanted.accept[is_significant].double(), **near)
    for name, values in wanted.explanation.inputs.items():
        torch.testing.assert_close(found.explanation.inputs[name].double(), values.double(), **near)
    if is_double:
        return
    others = [a != b for a, b in zip(found.bonus.tolist(), wanted.bonus.tolist(), strict=True)]
    # A uniform number so close to a boundary between two tokens may select either token, depending on the machine.
    assert sum(others) <= (case.verifier.name == "k-seq")
    if wanted.distribution_error is not None:
        error = found.distribution_error
        assert error is not None
        torch.testing.assert_close(
            torch.tensor(error.tolist()).double(), torch.tensor(wanted.distribution_error.tolist()).double(), **near
        )
    at_once = run_verifier(case, tree, logits)
    torch.testing.assert_close(at_once.accept[is_significant], found.accept[is_significant])
    assert at_once.bonus.tolist() == found.bonus.tolist()


@pytest.mark.skipif(not compilation.may_compile(), reason="functions are compiled on Linux on x86-64")
@pytest.mark.parametrize("siblings", [2, 3, 4, 5, 6])
def test_compiled_error_equals_plain_error_for_any_number_of_siblings(siblings: int) -> None:
    """One pass sums the residuals of up to four rejections; of more they are summed one by one."""
    logits, ahead = 2.5 * torch.randn(2, 13, V, generator=torch.Generator().manual_seed(9))
    tree = sample_draft(Sampling.FIXED_NUMBER, ahead.softmax(1), 12 // siblings * siblings, siblings=siblings)
    assert tree.q is not None
    case, distributions = Case(Lenient(), Sampling.FIXED_NUMBER), logits[: len(tree) + 1]
    found = run_verifier(case, tree, distributions).distribution_error
    wanted = run_verifier(case, replace(tree, q=tree.q.double()), distributions.double()).distribution_error
    assert isinstance(found, Tensor)
    assert isinstance(wanted, Tensor)
    assert float(wanted.max()) > 0.01
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not compilation.may_compile(), reason="functions are compiled on Linux on x86-64")
def test_excess_is_accurate_for_tiny_probabilities() -> None:
    """Products in the subnormal range would lose digits, and take a hundred times as long."""
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(10))
    logits[0, :99] = -5.5  # equal values, so that rounding errors have the same sign
    p, q = logits.softmax(1).split(1)
    q = q.index_fill(1, torch.arange(99), 0.0)
    assert rejection.supports_distributions(p, q)
    for by in (0.5, 1e-20, 3e-39):
        wanted = (by * p.double() - q).clamp(min=0).sum()
        assert float(sums.excess(p, q, torch.tensor([[by]]))) == pytest.approx(float(wanted), rel=0.01, abs=0)


@pytest.mark.skipif(not compilation.may_compile(), reason="functions are compiled on Linux on x86-64")
def test_compiled_sums_over_two_distributions_equal_plain_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with tokens that a processor forbids, and for distributions without zeros, for which logits are not read."""
    logits, ahead = 2.5 * torch.randn(2, 5, V + 3, generator=torch.Generator().manual_seed(8))
    logits[3:, 5:900] = -torch.inf
    p, q = logits.softmax(1), ahead.softmax(1)
    by, of = torch.tensor([[0.0], [0.3], [1.0], [2.5], [9.0]]), torch.tensor([4, 2, 0, 1, 3])
    tree = replace(DraftTree.chain([7, 8, 9, 10, 11]), q=q, child_q_rows=torch.cat([of, torch.tensor([-1])]))
    least = torch.tensor([0.0, 1e-4, 0.9, 1e-3, 1e-2, 0.5])

    def figures(p: Tensor, q: Tensor, logits: Tensor) -> list[Tensor]:
        five = torch.cat([p, p[:1]])
        kept = [
            sums.price_of_keeping(replace(tree, q=q), five, least.to(p.dtype), at) for at in (of, torch.tensor([3]))
        ]
        return [
            sums.excess(p, q, by.to(p.dtype)),
            *(sums.unverified_excess(p, q, logits, sure) for sure in (0.0, 1e-4)),
            *(price for price in kept if price is not None),
        ]

    assert rejection.supports_distributions(p, q)
    wide = figures(p.double(), q.double(), logits.double())
    assert len(wide) == 5
    for mine, wanted in zip(figures(p, q, logits), wide, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(relaxed, "threshold_rule_error", None)
    assert figures(p, q, logits), "the compiled functions were called"
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    assert not rejection.supports_distributions(p, q)
    with pytest.raises(TypeError):
        figures(p, q, logits)


def test_lazy_values_are_computed_once_and_in_batches() -> None:
    asked = list[list[int]]()
    late = LazySequence[int](5, lambda at: (asked.append(at.tolist()), at * at)[1])
    assert (late[3], late.take([1, 3, 1]), late[-1], len(late)) == (9, [1, 9, 1], 16, 5)
    assert asked == [[3], [1], [4]]
    assert list(late) == [0, 1, 4, 9, 16]
    with pytest.raises(IndexError):
        late[5]


def test_chunked_probs_and_entropy_equal_those_of_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 4 * torch.randn(5, V, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    logits[:, 3] = -torch.inf
    monkeypatch.setattr(sampling, "CHUNK_ENTRIES", 2 * V)
    for warm in (TEMPERATURE_ONE, replace(TEMPERATURE_ONE, temperature=0.7, top_k=9, min_p=0.05, top_p=0.9)):
        p = to_probs(logits, warm)
        assert p.tolist() == [to_probs(row[None], warm)[0].tolist() for row in logits]
        p_best, best = largest(p, 1)
        entropy = entropy_of(logits, p, best, p_best[:, 0], warm)
        torch.testing.assert_close(entropy, torch.special.entr(p).sum(1))
    torch.testing.assert_close(to_probs(logits, TEMPERATURE_ONE), logits.softmax(1))
    half = to_probs(logits.bfloat16(), TEMPERATURE_ONE)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, logits.bfloat16().float().softmax(1))


@pytest.mark.parametrize("host", [True, False])
def test_rows_are_selected_independently(host: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_groups, "on_host", lambda device: host)
    one, other = torch.arange(6.0).view(3, 2), -torch.ones(3, 2)
    assert where_rows(torch.tensor([True, False, True]), one.clone(), other).tolist() == [[0, 1], [-1, -1], [4, 5]]
    assert where_rows(torch.ones(3, dtype=torch.bool), one.clone(), other).tolist() == one.tolist()
    assert normalise_rows(torch.tensor([[1.0, 3.0], [0.0, 0.0]]), other[:2]).tolist() == [[0.25, 0.75], [-1, -1]]
