"""Verify drafts by recursive rejection, exact or relaxed, with compiled kernels for large vocabularies.

`workbench.core.rejection` and `workbench.core.relaxed` define the algorithms and implement them in torch. The compiled
kernels give the same results, but each test reads the distributions only once. On machines without compiled kernels,
for dtypes other than float32 and for mixed trees, the torch implementations are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core import rejection, relaxed
from workbench.core.rejection import AcceptanceDecision
from workbench.core.relaxed import Lift, RelaxedResult
from workbench.core.sampling import WIDE
from workbench.core.sibling_groups import SelectedRows, SiblingGroups
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.kernels.compilation import load_kernels, run_in_parallel

_ONE_DISTRIBUTION = (Sampling.CHAIN, Sampling.SAMPLED, Sampling.WITHOUT_REPLACEMENT, Sampling.FIXED_NUMBER)
"""Sampling methods that draw all siblings at a tree position from one draft distribution."""
NO_LIFT = Lift()


def recursive_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_bonus: Float[Tensor, " N_plus_1"], lazy: bool = False
) -> AcceptanceDecision:
    """Verify a draft by recursive rejection, with compiled kernels if they support the draft.

    `workbench.core.rejection.recursive_rejection` describes the rule, the arguments and the result.
    """

    def tests(fans: SiblingGroups, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Tensor]:
        results = run_sibling_tests(
            fans, fans.has_child, without_replacement=tree.sampling in rejection.WITHOUT_REPLACEMENT, with_residual=ends
        )
        results.residual[:, 0] = results.q_left[:, 0] = 0.0
        return [results.accept, results.residual, results.q_left], results.residual_probs

    return rejection.recursive_rejection(tree, p, u_bonus, lazy, tests if _is_for(tree, p) else None)


def relaxed_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_bonus: Float[Tensor, " N_plus_1"],
    lift: Lift,
    lazy: bool = False,
    with_total_variation: bool = False,
) -> RelaxedResult:
    """Verify a draft by relaxed recursive rejection, with compiled kernels if they support the draft.

    `workbench.core.relaxed.relaxed_rejection` describes the rule, the arguments and the result.
    """

    def tests(fans: SiblingGroups, ends: bool, priced: bool) -> tuple[list[Float[Tensor, "R F"]], Tensor]:
        results = run_sibling_tests(
            fans, fans.has_child, tree.sampling in rejection.WITHOUT_REPLACEMENT, lift, ends, priced
        )
        figures = [results.accept, results.residual, fans.drafter.gather(fans.token), results.q_left, results.lifted]
        if results.total_variation is not None:
            figures.append(torch.nn.functional.pad(results.total_variation.unsqueeze(1), (0, fans.token.shape[1] - 1)))
        return figures, results.residual_probs

    return relaxed.relaxed_rejection(
        tree, p, u_bonus, lift, lazy, with_total_variation, tests if _is_for(tree, p) else None
    )


@dataclass(frozen=True, slots=True)
class TestResults:
    """Results of the acceptance tests at R positions with up to F children each.

    Attributes:
        accept: float [R, F], each child's acceptance probability if it is tested; 0 if it is not.
        residual: float [R, F], probability of the child's token in the residual distribution after its earlier siblings
            were rejected.
        q_left: float [R, F], the token's draft probability; for siblings drawn without replacement, after removal of
            earlier siblings.
        lifted: float [R, F], the raised probability of the token against which it was tested.
        residual_probs: float [R, V], distribution of the next token if no child was accepted; equal to p if not
            requested.
        at_tokens: float [R, F], `residual_probs` at the children's tokens, if requested.
        other_mass: float [R], probability mass of `residual_probs` on all tokens but the children's, if requested.
        total_variation: float [R], total variation distance as in `RelaxedResult`; None if not requested.
    """

    accept: Float[Tensor, "R F"]
    residual: Float[Tensor, "R F"]
    q_left: Float[Tensor, "R F"]
    lifted: Float[Tensor, "R F"]
    residual_probs: Float[Tensor, "R_or_m V"]
    at_tokens: Float[Tensor, "R_or_0 F"]
    other_mass: Float[Tensor, " R_or_0"]
    total_variation: Float[Tensor, " R"] | None


def supports_distributions(p: Tensor, q: Tensor) -> bool:
    """Return whether compiled kernels can verify drafts with p and q: float32, on a CPU, with a large vocabulary."""
    if p.dtype != torch.float32 or q.dtype != torch.float32 or p.shape[1] < WIDE or not on_host(p.device):
        return False
    return p.is_contiguous() and q.is_contiguous() and load_kernels("siblings") is not None


def make_ready(vocabulary: int) -> None:
    """Compile the verification kernels, which takes seconds once, so that no round waits for compilation."""
    probs = torch.full((1, vocabulary), 1 / vocabulary)
    if supports_distributions(probs, probs):
        fans = dummy_sibling_groups(probs)
        run_sibling_tests(fans, fans.has_child, without_replacement=False)


def dummy_sibling_groups(probs: Float[Tensor, "1 V"]) -> SiblingGroups:
    """Return a tree position with one child (`SiblingGroups`), as input for a call that only compiles a kernel."""
    rows = SelectedRows(probs, torch.zeros(1, dtype=torch.long))
    return SiblingGroups(rows.at, rows.at[None], torch.ones(1, 1, dtype=torch.bool), rows.at[None], rows, rows)


def _is_for(tree: DraftTree, p: Tensor) -> bool:
    """Return whether the compiled kernels can verify a draft tree."""
    if (
        tree.q is None
        or tree.child_q_rows is None
        or tree.node_q_rows is not None
        or tree.sampling not in _ONE_DISTRIBUTION
    ):
        return False
    return supports_distributions(p, tree.q) and bool((tree.child_q_rows[tree.parents + 1] >= 0).all())


def run_sibling_tests(
    fans: SiblingGroups,
    is_tested: Bool[Tensor, "R F"],
    without_replacement: bool,
    lift: Lift = NO_LIFT,
    with_residual: bool = False,
    with_total_variation: bool = False,
    tokens: bool = False,
) -> TestResults:
    """Test siblings one after the other with a compiled kernel.

    Args:
        fans: positions with children, with distributions that `supports_distributions` accepts.
        is_tested: whether each child is tested. Untested earlier children have an effect only with
            `without_replacement`: their tokens are removed from q.
        without_replacement: whether siblings were drawn without replacement from q.
        lift: relaxation of the test.
        with_residual: whether `residual_probs` is requested.
        with_total_variation: whether `total_variation` is requested.
        tokens: whether `at_tokens` and `other_mass` are requested.
    """
    siblings = load_kernels("siblings")
    assert siblings is not None
    (n, f), distributions = fans.token.shape, fans.target.distributions
    neighbours = fans.child.new_empty(n, f, 0) if lift.neighbours is None else lift.neighbours[fans.child]
    figures, residuals = torch.empty(n, f, 4), torch.empty(n if with_residual else 0, distributions.shape[1])
    at_tokens, other_mass = torch.empty(n if tokens else 0, f), torch.empty(n if tokens else 0)
    apart = torch.empty(n if with_total_variation else 0)
    inputs = (
        distributions,
        fans.target.at,
        fans.drafter.distributions,
        fans.drafter.at,
        fans.token,
        fans.has_child,
        is_tested,
        neighbours,
    )
    out = (figures, at_tokens, other_mass, residuals, apart)
    arguments = (
        *(tensor.contiguous().numpy() for tensor in inputs),
        np.float32(lift.mass),
        np.float32(lift.ratio),
        lift.lenience,
        without_replacement,
        *(tensor.numpy() for tensor in out),
        np.zeros(2, np.int64),
    )
    run_in_parallel(lambda: siblings.verify_siblings(*arguments))
    accept, residual, q_left, lifted = figures.unbind(2)
    return TestResults(
        accept,
        residual,
        q_left,
        lifted,
        residuals if with_residual else distributions,
        at_tokens,
        other_mass,
        apart if with_total_variation else None,
    )
