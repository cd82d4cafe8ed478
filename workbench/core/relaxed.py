"""Recursive rejection against a law that is lifted for the draft: more is kept, and the target's law is paid for it.

Each sibling is tested as `recursive_rejection` does, but against what `lift` makes of the law that its elders left.
Where `lift` changes nothing it is that rule, for every way in which siblings may have been chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.late import Late
from workbench.core.places import Fans, by_row, fans_of, normalised, place_by_place, ranks
from workbench.core.sampling import pick
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree, Sampling

_ANEW = ("deterministic", "chain", "sampled")
"""Kinds of siblings that are not conditioned on elder ones."""


class Lift(NamedTuple):
    """What a draft is tested with: more than its elders left of the target's law. By default no more than that.

    Attributes:
        share: λ in (0, 1], by which what is left is divided.
        near: int64 [N, K], tokens that lend node i's what is left of them, the nearest first; None: none does.
        mass: δ, most that they lend: as many do as keep to it.
        ratio: λ′, by which that bound grows with what is left of x itself: δ + λ′ · r(x).
    """

    share: float = 1.0
    near: Int[Tensor, "N K"] | None = None
    mass: float = 0.0
    ratio: float = 0.0

    def __call__(
        self, left: Float[Tensor, "R V"], node: Int[Tensor, " R"], x: Int[Tensor, "R 1"]
    ) -> Float[Tensor, "R V"]:
        """Weights that x is tested with.

        Args:
            left: the law that elders left at some places.
            node: tested against it, one of each; rows of places without such a child are not looked at.
            x: its token.
        """
        if self.near is not None:
            near = self.near[node]
            lent = left.gather(1, near)  # [R, K]
            bound = self.mass + self.ratio * left.gather(1, x) if self.ratio else self.mass
            within = lent.cumsum(1) <= bound
            left = left.scatter(1, near, torch.where(within, 0.0, lent))
            left = left.scatter_add_(1, x, (lent * within).sum(1, keepdim=True))
        return left if self.share == 1.0 else left / self.share


Tests = Callable[[Fans, bool, bool], tuple[Sequence[Tensor], Tensor]]
"""Sibling after sibling at some places, as `place_by_place` asks of a judge: acceptance, r, q, q′ and what they were
tested with; and `apart`, if it is wanted (the third argument)."""


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
            look at x, given the elders of a draft that was drawn without them. None where nobody asked for it.
    """

    accept: Float[Tensor, " N"]
    stop: Int[Tensor, " N_plus_1"] | Late[int]
    residual: Float[Tensor, " N"]
    q: Float[Tensor, " N"]
    q_left: Float[Tensor, " N"]
    lifted: Float[Tensor, " N"]
    apart: Float[Tensor, " N"] | Late[float] | None = None


def relaxed_rejection(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_stop: Float[Tensor, " N_plus_1"],
    lift: Lift,
    late: bool = False,
    priced: bool = False,
    tests: Tests | None = None,
) -> Relaxed:
    """Test siblings one after the other, each against what `lift` makes of the law r that its elders left.

    x is kept with probability min(1, lift(r)(x) / q(x)); else r ← (lift(r) − q)₊, normalised. A token that was chosen
    has q = 1.

    Args:
        tree: siblings in the order they were drawn.
        p: the target's law at the root (row 0) and after each node (row i+1).
        u_stop: uniforms [N+1] for the token emitted where the walk ends.
        lift: see `Lift`.
        late: whether tokens to emit, and what is paid, may be found when they are asked for.
        priced: whether `apart` is wanted.
        tests: the same tests, made in another way, that takes all places in one piece.

    Source: the form is Leviathan et al. 2023, arXiv:2211.17192, Algorithm 1, repeated for siblings as in Jeon et al.
    2024, arXiv:2402.14160, Algorithm 1.
    """
    if not len(tree):
        none = p.new_zeros(0)
        return Relaxed(none, pick(p, u_stop), none, none, none, none, none if priced else None)

    judge, whole = tests or partial(_tested, tree, lift), tests is not None

    def at(fans: Fans, ends: bool) -> tuple[Sequence[Tensor], Tensor]:
        return judge(fans, ends, priced and ends)

    def prices(node: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        paid, eldest = p.new_zeros(len(node)), ranks(tree.parents)[node] == 0
        if eldest.any():
            places = fans_of(tree, p, place=tree.parents[node[eldest]] + 1, whole=whole)
            paid[eldest] = torch.cat([judge(fans, False, True)[0][-1][:, 0] for fans in places])
        return paid

    columns, stop = place_by_place(tree, p, u_stop, at, late, whole)
    apart = None if not priced else Late[float](len(tree), prices) if isinstance(stop, Late) else columns.pop()
    accept, r, q_own, q_left, lifted = columns
    return Relaxed(accept, stop, r, q_own, q_left, lifted, apart)


def _tested(
    tree: DraftTree, lift: Lift, fans: Fans, ends: bool, priced: bool
) -> tuple[list[Float[Tensor, "R F"]], Float[Tensor, "R V"]]:
    """Sibling after sibling at some places: the figures of `Relaxed`, `apart` the last of them if it is priced.

    And weights of what is left at the end, if that is wanted. What is dear is each pass over a law.
    """
    left, tiny = fans.p, torch.finfo(fans.p.dtype).tiny
    free = torch.ones_like(left) if tree.fanout > 1 and tree.sampling.value not in _ANEW else None
    found, excess = list[tuple[Tensor, ...]](), _Excess(left) if priced else None
    for k in range(tree.fanout):
        has, node, x = fans.there[:, k : k + 1], fans.child[:, k], fans.token[:, k : k + 1]
        whole = q = _law_of(tree, fans, node, x)
        if free is not None and k:
            q = by_row(_without(tree, node), normalised(whole * free, whole), whole)
        asked = lift(left, node, x)
        ratio = (asked.gather(1, x) / q.gather(1, x).clamp_min(tiny)).clamp(max=1)
        found.append((ratio, *(law.gather(1, x) for law in (left, whole, q, asked))))
        is_last = k + 1 == tree.fanout
        if is_last and not (ends or priced):
            break
        rest = (asked - q).clamp_(min=0)
        over = rest.sum(1, keepdim=True)
        goes_on = has & (over > 0)
        if excess is not None:
            excess.tested(has, asked, rest, over)
            if is_last:
                excess.ended(goes_on, rest, over, left)
        # What is left in the end needs no sum of 1: `pick` takes any weights.
        left = by_row(goes_on.squeeze(1), rest if is_last else rest.div_(over.clamp_min(tiny)), left)
        if free is not None:
            free.scatter_(1, x, torch.where(has, 0.0, free.gather(1, x)))
    columns = [torch.cat(column, 1) for column in zip(*found, strict=True)]
    if excess is not None:
        columns.append(torch.nn.functional.pad(excess.apart(), (0, tree.fanout - 1)))
    return columns, left


class _Excess:
    """The law that comes out of some places, less p, added up draft by draft.

    min(q, lifted), the part of a test that is kept, is never made: it is lifted − rest.
    """

    def __init__(self, p: Float[Tensor, "R V"]) -> None:
        self._p, self._reach = p, torch.ones_like(p[:, :1])
        self._sum: Tensor | None = None

    def tested(
        self,
        has: Bool[Tensor, "R 1"],
        asked: Float[Tensor, "R V"],
        rest: Float[Tensor, "R V"],
        over: Float[Tensor, "R 1"],
    ) -> None:
        """One more child of each place, where it has one.

        Args:
            has: where.
            asked: the lifted law; the first one is written to, unless it is p itself.
            rest: (asked − q)₊.
            over: its sum.
        """
        p, reach = self._p, self._reach
        self._reach = reach * torch.where(has, 1 - asked.sum(1, keepdim=True) + over, 1.0).clamp(0, 1)
        if self._sum is not None:
            self._sum.addcmul_(asked, reach * has)
        else:
            self._sum = torch.zeros_like(p) if asked is p else asked.sub_(p)
            if not on_host(p.device):  # where there are places without children, which emit by p
                self._sum = torch.where(has, self._sum, -p)
        self._sum.addcmul_(rest, -reach * has)

    def ended(
        self,
        goes_on: Bool[Tensor, "R 1"],
        rest: Float[Tensor, "R V"],
        over: Float[Tensor, "R 1"],
        left: Float[Tensor, "R V"],
    ) -> None:
        """If none was kept, `rest` is drawn from where the last test left anything, else `left`, what was before it."""
        assert self._sum is not None
        tiny = torch.finfo(over.dtype).tiny
        self._sum.addcmul_(rest, torch.where(goes_on, self._reach / over.clamp_min(tiny), 0.0))
        if not on_host(rest.device) or not goes_on.all():
            self._sum.addcmul_(left, torch.where(goes_on, 0.0, self._reach))

    def apart(self) -> Float[Tensor, "R 1"]:
        """The total variation; what was added up is written to."""
        assert self._sum is not None
        return self._sum.abs_().sum(1, keepdim=True) / 2


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
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    least: Float[Tensor, " N_plus_1"],
    node: Int[Tensor, " k"] | None = None,
) -> Float[Tensor, " k"] | None:
    """What a rule pays that keeps what p gives more than some chance, and draws from p where it keeps none, by place.

    Of a chain, out = q on the tokens that are kept, and p for the rest of the time; a draft that was chosen, not drawn,
    comes out whenever it is kept. None for a tree: which of its siblings comes out depends on what hangs on them, and
    no place has a law of its own.

    Args:
        tree: the draft.
        p: the target's laws, by place.
        least: the chance that a token has to have more of to be kept, by place.
        node: of which nodes; None: of all.

    Returns:
        What `Ruling.paid` tells.

    Example:
        >>> import dataclasses
        >>> p, q = torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
        >>> tree = dataclasses.replace(DraftTree.chain([0]), q=q)
        >>> price_of_keeping(tree, p, torch.tensor([0.1, 0.1]))
        tensor([0.4000])
    """
    if tree.fanout > 1:
        return None
    at = torch.arange(len(tree), device=p.device) if node is None else node  # of a chain, node i hangs on place i
    p = p[at]
    keeps = p > least[at].unsqueeze(1)
    own = tree.tokens[at].unsqueeze(1)
    chosen = (keeps.gather(1, own) * (1 - p.gather(1, own))).squeeze(1)
    if tree.q is None:
        return chosen
    row = at if tree.q_of is None else tree.q_of[at]
    kept = tree.q[row.clamp_min(0)].to(p.dtype) * keeps
    return torch.where(row < 0, chosen, (kept - kept.sum(1, keepdim=True) * p).abs().sum(1) / 2)
