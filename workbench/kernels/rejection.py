"""Recursive rejection, exact or relaxed, compiled where functions are: what rules of acceptance ask of wide laws.

What it is stands in `workbench.core.rejection` and `workbench.core.relaxed`; here are the same numbers from one pass
over the vocabulary a test. Machines without compiled functions, other kinds of numbers and mixed trees take the forms
that stand there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core import rejection, relaxed
from workbench.core.places import Fans, RowsOf
from workbench.core.rejection import Ruling, greedy_match
from workbench.core.relaxed import Lift, Relaxed
from workbench.core.sampling import WIDE
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling
from workbench.kernels.compilation import compiled, together

if TYPE_CHECKING:
    from workbench.engine.feedback import Verification

_ONE_LAW = (Sampling.CHAIN, Sampling.SAMPLED, Sampling.WITHOUT_REPLACEMENT, Sampling.FIXED_NUMBER)
"""Kinds of siblings that were all drawn from one law."""
NOTHING = Lift()


def lossless(v: Verification) -> Ruling:
    """The exact rule for every draft: greedy match where nothing is drawn, else recursive rejection."""
    if v.u_stop is None:
        return greedy_match(v.tree, v.likeliest())
    return recursive_rejection(v.tree, v.p, v.u_stop, v.late)


def recursive_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
) -> Ruling:
    """See `workbench.core.rejection.recursive_rejection`."""

    def tests(fans: Fans, ends: bool) -> tuple[list[Float[Tensor, "R F"]], Tensor]:
        found = tried(fans, fans.there, without=tree.sampling in rejection.WITHOUT, ends=ends)
        found.residual[:, 0] = found.q_left[:, 0] = 0.0
        return [found.accept, found.residual, found.q_left], found.left

    return rejection.recursive_rejection(tree, p, u_stop, late, tests if _is_for(tree, p) else None)


def relaxed_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_stop: Float[Tensor, " N_plus_1"],
    lift: Lift,
    late: bool = False,
    priced: bool = False,
) -> Relaxed:
    """See `workbench.core.relaxed.relaxed_rejection`."""

    def tests(fans: Fans, ends: bool, priced: bool) -> tuple[list[Float[Tensor, "R F"]], Tensor]:
        found = tried(fans, fans.there, tree.sampling in rejection.WITHOUT, lift, ends, priced)
        figures = [found.accept, found.residual, fans.drafter.of(fans.token), found.q_left, found.lifted]
        if found.apart is not None:
            figures.append(torch.nn.functional.pad(found.apart.unsqueeze(1), (0, fans.token.shape[1] - 1)))
        return figures, found.left

    return relaxed.relaxed_rejection(tree, p, u_stop, lift, late, priced, tests if _is_for(tree, p) else None)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the tests at some places.

    Attributes:
        accept: float [R, F], each child's chance of being kept if it is tested; 0 where it is not.
        residual: float [R, F], what its elders left of p at its token.
        q_left: float [R, F], its chance in the drafter's law, elders taken out where they were when it was drawn.
        lifted: float [R, F], what it was tested with.
        left: float [R, V], the law of the token if none was kept; p where nobody asked for it.
        at_tokens: float [R, F], the same at the children's tokens, if that was asked for.
        beside: float [R], what it has at all others.
        apart: float [R], see `Relaxed.apart`; None where nobody asked for it.
    """

    accept: Float[Tensor, "R F"]
    residual: Float[Tensor, "R F"]
    q_left: Float[Tensor, "R F"]
    lifted: Float[Tensor, "R F"]
    left: Float[Tensor, "R_or_m V"]
    at_tokens: Float[Tensor, "R_or_0 F"]
    beside: Float[Tensor, " R_or_0"]
    apart: Float[Tensor, " R"] | None


def passes(p: Tensor, q: Tensor) -> bool:
    """Whether laws [·, V] are for compiled passes: wide ones of float32 on a host where functions are compiled."""
    if p.dtype != torch.float32 or q.dtype != torch.float32 or p.shape[1] < WIDE or not on_host(p.device):
        return False
    return p.is_contiguous() and q.is_contiguous() and compiled("siblings") is not None


def make_ready(vocabulary: int) -> None:
    """Have it compiled, which takes seconds once: no round shall stand still for it."""
    law = torch.full((1, vocabulary), 1 / vocabulary)
    if passes(law, law):
        fans = one_place(law)
        tried(fans, fans.there, without=False)


def one_place(law: Float[Tensor, "1 V"]) -> Fans:
    """A place with one child, to have something compiled with."""
    rows = RowsOf(law, torch.zeros(1, dtype=torch.long))
    return Fans(rows.at, rows.at[None], torch.ones(1, 1, dtype=torch.bool), rows.at[None], rows, rows)


def _is_for(tree: DraftTree, p: Tensor) -> bool:
    """Whether compiled passes are for this draft."""
    if tree.q is None or tree.q_of is None or tree.law_of is not None or tree.sampling not in _ONE_LAW:
        return False
    return passes(p, tree.q) and bool((tree.q_of[tree.parents + 1] >= 0).all())


def tried(
    fans: Fans,
    which: Bool[Tensor, "R F"],
    without: bool,
    lift: Lift = NOTHING,
    ends: bool = False,
    priced: bool = False,
    tokens: bool = False,
) -> Tried:
    """Test siblings one after the other, compiled.

    Args:
        fans: places with children; laws of which `passes` said that they may be.
        which: children that are tested; others come before them and are taken out of q if `without`.
        without: whether siblings were drawn from what their elders left of q.
        lift: what they are tested with.
        ends: whether `left` is wanted.
        priced: whether `apart` is.
        tokens: whether `at_tokens` and `beside` are.
    """
    siblings = compiled("siblings")
    assert siblings is not None
    (n, f), laws = fans.token.shape, fans.target.laws
    near = fans.child.new_empty(n, f, 0) if lift.near is None else lift.near[fans.child]
    figures, left = torch.empty(n, f, 4), torch.empty(n if ends else 0, laws.shape[1])
    at_tokens, beside = torch.empty(n if tokens else 0, f), torch.empty(n if tokens else 0)
    apart = torch.empty(n if priced else 0)
    given = (laws, fans.target.at, fans.drafter.laws, fans.drafter.at, fans.token, fans.there, which, near)
    out = (figures, at_tokens, beside, left, apart)
    arguments = (
        *(tensor.contiguous().numpy() for tensor in given), np.float32(lift.mass), np.float32(lift.ratio), lift.share,
        without, *(tensor.numpy() for tensor in out), np.zeros(2, np.int64),
    )  # fmt: skip
    together(lambda: siblings.judge(*arguments))
    accept, residual, q_left, lifted = figures.unbind(2)
    return Tried(accept, residual, q_left, lifted, left if ends else laws, at_tokens, beside, apart if priced else None)
