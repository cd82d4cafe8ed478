"""Recursive rejection against a law that is lifted for the draft: more is kept, and the target's law is paid for it.

Each sibling is tested as `recursive_rejection` does, but against what `lift` makes of the law that its elders left.
Where `lift` changes nothing it is that rule, for every way in which siblings may have been chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.places import Fans, by_row, normalised, place_by_place
from workbench.core.sampling import pick
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling

Lift = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(law r [R, V] that elders left at some places; node [R] and token x [R, 1] tested against it) → weights [R, V] not
below 0 that x is tested with. Rows of places without such a child are not looked at."""
_ANEW = ("deterministic", "chain", "sampled")
"""Kinds of siblings that are not conditioned on elder ones."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What came of the tests, on the device.

    Attributes:
        accept: [N], min(1, lifted r(x) / q(x)).
        stop: int64 [N+1], token emitted where the walk ends.
        residual: [N], r(x), what the elders left of p.
        q: [N], the token's chance in the law it was drawn from; 1 where it was chosen.
        q_left: [N], the same without the elders, where they were taken out of that law.
        lifted: [N], what x was tested with.
        apart: [N], at the eldest child of each place, the total variation between the target's law and that of the
            token that the place emits, over the draws of its drafts; 0 at its siblings. Exact where `lift` does not
            look at x, given the elders of a draft that was drawn without them.
    """

    accept: Float[Tensor, " N"]
    stop: Int[Tensor, " N_plus_1"]
    residual: Float[Tensor, " N"]
    q: Float[Tensor, " N"]
    q_left: Float[Tensor, " N"]
    lifted: Float[Tensor, " N"]
    apart: Float[Tensor, " N"]


def relaxed_rejection(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], lift: Lift
) -> Relaxed:
    """Test siblings one after the other, each against what `lift` makes of the law r that its elders left.

    x is kept with probability min(1, lift(r)(x) / q(x)); else r ← (lift(r) − q)₊, normalised. A token that was chosen
    has q = 1.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's law at the root (row 0) and after each node (row i+1).
        u_stop: uniforms [N+1] for the token emitted where the walk ends.
        lift: see `Lift`.

    Source: the form is Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1, repeated for siblings as in Jeon et al.
    2024, arXiv:2402.14160, Algorithm 1.
    """
    if not len(tree):
        return Relaxed(none := p.new_zeros(0), pick(p, u_stop), *[none] * 5)
    columns, stop = place_by_place(tree, p, u_stop, lambda fans: _tested(tree, fans, lift))
    accept, r, q_own, q_left, lifted, apart = columns
    return Relaxed(accept, stop, r, q_own, q_left, lifted, apart)


def _tested(tree: DraftTree, fans: Fans, lift: Lift) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
    """Sibling after sibling at some places: the figures of `Relaxed`, and weights of what is left at the end.

    What is dear is each pass over a law. So min(q, lifted), the part that is kept, is never made: it is lifted − rest.
    """
    left, tiny = fans.p, torch.finfo(fans.p.dtype).tiny
    free = torch.ones_like(left) if tree.fanout > 1 and tree.sampling.value not in _ANEW else None
    reach, excess = torch.ones_like(left[:, :1]), left  # excess: the law that comes out, less p
    found: list[tuple[Tensor, ...]] = []
    for k in range(tree.fanout):
        has, node, x = fans.there[:, k : k + 1], fans.child[:, k], fans.token[:, k : k + 1]
        whole = q = _law_of(tree, fans, node, x)
        if free is not None and k:
            q = by_row(_without(tree, node), normalised(whole * free, whole), whole)
        asked = lift(left, node, x)
        ratio = (asked.gather(1, x) / q.gather(1, x).clamp_min(tiny)).clamp(max=1)
        found.append((ratio, *(law.gather(1, x) for law in (left, whole, q, asked))))
        rest = (asked - q).clamp_(min=0)
        over = rest.sum(1, keepdim=True)
        goes_on = has & (over > 0)
        after = reach * torch.where(has, 1 - asked.sum(1, keepdim=True) + over, 1.0).clamp(0, 1)
        if k:
            excess.addcmul_(asked, reach * has)
        else:
            excess = torch.zeros_like(left) if asked is left else asked.sub_(left)
            if not on_host(left.device):  # where there are places without children, which emit by p
                excess = torch.where(has, excess, -left)
        if k + 1 < tree.fanout:
            excess.addcmul_(rest, -reach * has)
            left = by_row(goes_on.squeeze(1), rest.div_(over.clamp_min(tiny)), left)
        else:  # what is left needs no sum of 1: `pick` takes any weights
            excess.addcmul_(rest, torch.where(goes_on, after / over.clamp_min(tiny), 0.0) - reach * has)
            if not on_host(left.device) or not goes_on.all():
                excess.addcmul_(left, torch.where(goes_on, 0.0, after))
            left = by_row(goes_on.squeeze(1), rest, left)
        if free is not None:
            free.scatter_(1, x, torch.where(has, 0.0, free.gather(1, x)))
        reach = after
    tv = excess.abs_().sum(1, keepdim=True) / 2
    apart = torch.nn.functional.pad(tv, (0, tree.fanout - 1))
    return [*(torch.cat(column, 1) for column in zip(*found, strict=True)), apart], left


def _law_of(tree: DraftTree, fans: Fans, node: Int[Tensor, " R"], x: Int[Tensor, "R 1"]) -> Float[Tensor, "R V"]:
    """The law that each place's child x was drawn from, its elders still in it; a point mass where it was chosen."""
    of, law = None, fans.q
    if tree.q is not None and tree.law_of is not None:
        of = tree.law_of[node]
        law = tree.q[of.clamp_min(0)].to(law.dtype)
    elif tree.q is not None and tree.q_of is not None:
        of = tree.q_of[fans.place]
    if of is not None and on_host(of.device) and bool((of >= 0).all()):
        return law
    point = torch.zeros_like(law).scatter_(1, x, 1.0)
    return point if of is None else by_row(of < 0, point, law)


def _without(tree: DraftTree, node: Int[Tensor, " R"]) -> Bool[Tensor, " R"]:
    """Whether a node was drawn from what its elders left of its law."""
    if tree.sampling is Sampling.MIXED and tree.without is not None:
        return tree.without[node]
    is_so = tree.sampling.value not in (*_ANEW, Sampling.MIXED.value)
    return torch.full((len(node),), is_so, device=node.device)


def price_of_keeping(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], keeps: Bool[Tensor, "N_plus_1 V"]
) -> Float[Tensor, " N"] | None:
    """What a rule pays that keeps some tokens untested, and draws from p where it keeps none: TV(out, p) by place.

    Of a chain, out = q on the tokens that are kept, and p for the rest of the time; a draft that was chosen, not drawn,
    comes out whenever it is kept. None for a tree: which of its siblings comes out depends on what hangs on them, and
    no place has a law of its own.

    Args:
        tree: the draft.
        p: the target's laws, by place.
        keeps: which tokens would be kept, by place.

    Returns:
        What `Ruling.paid` tells.

    Example:
        >>> import dataclasses
        >>> p, q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
        >>> tree = dataclasses.replace(DraftTree.chain([0]), q=q)
        >>> price_of_keeping(tree, p, torch.tensor([[True, True], [True, True]]))
        tensor([0.4000])
    """
    if tree.fanout > 1:
        return None
    if tree.q is None:
        own = tree.tokens.unsqueeze(1)
        return (keeps[:-1].gather(1, own) * (1 - p[:-1].gather(1, own))).squeeze(1)
    kept = tree.q.to(p.dtype) * keeps[:-1]
    return (kept - kept.sum(1, keepdim=True) * p[:-1]).abs().sum(1) / 2
