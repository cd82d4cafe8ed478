"""A tree's places with children, one row each: a rule's decision at one needs no other.

So wide laws are gone through in pieces that stay in the processor's caches, and nothing as large as all laws together
is ever made: on a CPU memory that is new costs more than what is computed in it (1 µs for 4 KiB of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.late import Late
from workbench.core.sampling import WIDE, pick, pieces
from workbench.core.transfer import on_host
from workbench.core.tree import DraftTree


def ranks(parents: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Elder siblings of each node."""
    return torch.tril(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=-1).sum(1)


def by_row(which: Bool[Tensor, " n"], one: Float[Tensor, "n V"], other: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """Rows of `one` where it holds, else of `other`. `one` was made for this: on the host it is written to."""
    if not on_host(one.device):
        return torch.where(which.unsqueeze(1), one, other)
    if which.all():
        return one
    rows = (~which).nonzero().squeeze(1)
    return one.index_copy_(0, rows, other[rows])


def normalised(weights: Float[Tensor, "n V"], otherwise: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """Weights, made for this, divided by their sum; rows without are taken from `otherwise` (reached with chance 0)."""
    total = weights.sum(1, keepdim=True)
    weights.div_(total.clamp_min(torch.finfo(weights.dtype).tiny))
    return by_row(total.squeeze(1) > 0, weights, otherwise)


@dataclass(frozen=True)
class RowsOf:
    """Some rows of laws, taken out of them only if somebody wants that: it may be a copy.

    Attributes:
        laws: float [m, V].
        at: int64 [R], which.
    """

    laws: Float[Tensor, "m V"]
    at: Int[Tensor, " R"]

    @cached_property
    def taken(self) -> Float[Tensor, "R V"]:
        """The rows, maybe as a view."""
        return rows(self.laws, self.at)

    def of(self, token: Int[Tensor, "R F"]) -> Float[Tensor, "R F"]:
        """What each row has at some tokens."""
        return self.laws[self.at.unsqueeze(1), token]


@dataclass(frozen=True)
class Fans:
    """Places, a row each, with their children. Laws may be views of those that they came from.

    Attributes:
        place: int64 [R], 0 is the root, i + 1 node i.
        child: int64 [R, F], nodes in the order of testing; any where there is none.
        there: bool [R, F], whether there is such a child.
        token: int64 [R, F], its token.
        target: whose rows are `p`.
        drafter: whose rows are `q`.
    """

    place: Int[Tensor, " R"]
    child: Int[Tensor, "R F"]
    there: Bool[Tensor, "R F"]
    token: Int[Tensor, "R F"]
    target: RowsOf
    drafter: RowsOf

    @property
    def p(self) -> Float[Tensor, "R V"]:
        """The target's law there."""
        return self.target.taken

    @cached_property
    def q(self) -> Float[Tensor, "R V"]:
        """The law that its children were drawn from (of a mixed tree, one of theirs); p where they were chosen."""
        return self.drafter.taken.to(self.target.laws.dtype)

    def emitted(self, kept: Float[Tensor, "R F"], left: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """The law of the token emitted at each of these places, given the drafts there.

        Args:
            kept: probability that a rule's tests end with this child; 0 where there is none.
            left: the law of the token if they end with none; made for this, and written to.
        """
        law = by_row(self.there[:, 0], left, self.p)
        return law.mul_((1 - kept.sum(1, keepdim=True)).clamp_min(0)).scatter_add_(1, self.token, kept)


class Layout(NamedTuple):
    """Where a tree's places and children stand.

    Attributes:
        child: int64 [N+1, F], the children of each place in the order of testing; N where there is none.
        row: int64 [N+1], row of `q` for each place, −1 where none is; None: the tree has no laws.
    """

    child: Int[Tensor, "N_plus_1 F"]
    row: Int[Tensor, " N_plus_1"] | None

    @classmethod
    def of(cls, tree: DraftTree) -> Layout:
        """Of a tree of one node at least. Nodes beyond its `fanout` are nobody's children."""
        n = len(tree)
        child = tree.parents.new_full((n + 1, tree.fanout + 1), n)
        nodes = torch.arange(n, device=tree.tokens.device)
        child[tree.parents + 1, ranks(tree.parents).clamp_(max=tree.fanout)] = nodes
        return cls(child[:, :-1], _rows_of_q(tree))

    def is_inner(self, place: Int[Tensor, " R"]) -> Bool[Tensor, " R"]:
        """Which of these places have children."""
        return self.child[place, 0] < len(self.child) - 1


def fans_of(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    layout: Layout | None = None,
    place: Int[Tensor, " R"] | None = None,
    whole: bool = False,
) -> Iterator[Fans]:
    """Places of a tree of one node at least, in pieces.

    Where asking the device costs nothing, leaves are left out; else they are rows without children, and all in one.

    Args:
        tree: siblings in the order of testing. Nodes beyond its `fanout` are nobody's children.
        p: the target's law at the root (row 0) and after each node (row i+1).
        layout: of the tree, where it is known.
        place: only these, in this order; by default all.
        whole: whether all are wanted in one piece.
    """
    n, device = len(tree), tree.tokens.device
    layout = layout or Layout.of(tree)
    if place is None:
        place = torch.arange(n + 1, device=device)
    if on_host(device):
        place = place[layout.is_inner(place)]
    child = layout.child[place]
    there, child = child < n, child.clamp(max=n - 1)
    token = torch.where(there, tree.tokens[child], 0)
    for some in (slice(0, len(place)),) if whole else pieces(len(place), p.shape[1], device):
        at = place[some]
        target = drafter = RowsOf(p, at)
        if layout.row is not None and tree.q is not None:
            drafter = RowsOf(tree.q, layout.row[at].clamp_min(0))
        yield Fans(at, child[some], there[some], token[some], target, drafter)


def _rows_of_q(tree: DraftTree) -> Int[Tensor, " N_plus_1"] | None:
    """Row of `q` for each place, −1 where none is; of a mixed tree, of one of its children."""
    if tree.q is None or tree.q_of is not None or tree.law_of is None:
        return tree.q_of
    return tree.law_of.new_full((len(tree) + 1,), -1).scatter_reduce(0, tree.parents + 1, tree.law_of, "amax")


def rows(laws: Float[Tensor, "m V"], at: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
    """Some rows of laws, one at least; on the host neighbours in their order are not copied."""
    if on_host(laws.device):
        first, n = int(at[0]), len(at)
        if torch.equal(at, torch.arange(first, first + n)):
            return laws[first : first + n]
    return laws[at]


Judge = Callable[[Fans, bool], tuple[Sequence[Float[Tensor, "R F"]], Float[Tensor, "R V"]]]
"""(places, whether it is wanted what they emit) → figures of their children [R, F], as many as the rule likes, and the
weights [R, V] of the token that is emitted where the walk ends there, of any sum but 0; where those are not wanted,
what comes in their place is not read."""


def place_by_place(
    tree: DraftTree,
    p: Float[Tensor, "N_plus_1 V"],
    u_stop: Float[Tensor, " N_plus_1"],
    judge: Judge,
    late: bool = False,
    whole: bool = False,
) -> tuple[list[Float[Tensor, " N"]], Int[Tensor, " N_plus_1"] | Late[int]]:
    """Judge a tree of one node at least: the figures of each node, and the token to emit at each place.

    Args:
        tree: the draft.
        p: the target's law at the root (row 0) and after each node (row i+1); a place without children emits by it.
        u_stop: uniforms [N+1] for the token emitted where the walk ends.
        judge: see `Judge`.
        late: whether tokens to emit may be drawn when they are asked for.
        whole: whether `judge` makes nothing wide, and takes all places in one piece.
    """
    layout = Layout.of(tree)
    found: list[Tensor] = []
    places: list[Tensor] = []
    wide = on_host(p.device) and p.shape[1] >= WIDE
    late = may_wait(p, late)
    stop = _stops_of_leaves(tree, p, u_stop) if wide and not late else None
    for fans in fans_of(tree, p, layout, whole=whole and late):
        figures, left = judge(fans, not late)
        found.append(torch.stack(list(figures)))
        places.append(fans.place)
        if stop is not None:
            stop[fans.place] = pick(left, u_stop[fans.place])
        elif not late:
            stop = pick(left if len(left) == len(p) else p.index_copy(0, fans.place, left), u_stop)
    place, rank = torch.cat(places), ranks(tree.parents).clamp_(max=tree.fanout)
    row_of = torch.empty(len(p), dtype=torch.long, device=p.device).index_copy_(
        0, place, torch.arange(len(place), device=p.device)
    )
    table = torch.nn.functional.pad(torch.cat(found, 1), (0, 1))  # [figures, R, F + 1]
    columns = list(table[:, row_of[tree.parents + 1], rank])
    if stop is not None:
        return columns, stop

    def emitted(at: Int[Tensor, " k"]) -> Int[Tensor, " k"]:
        tokens, inner = torch.empty_like(at), layout.is_inner(at)
        if not inner.all():
            tokens[~inner] = pick(rows(p, at[~inner]), u_stop[at[~inner]])
        if inner.any():
            ends = [pick(judge(fans, True)[1], u_stop[fans.place]) for fans in fans_of(tree, p, layout, at)]
            tokens[inner] = torch.cat(ends)
        return tokens

    return columns, Late[int](len(p), emitted)


def may_wait(p: Float[Tensor, "n V"], late: bool) -> bool:
    """Whether what may be late is worth it: one wide law on the host costs more than to ask for it once more."""
    return late and on_host(p.device) and p.shape[1] >= WIDE


def later(
    n: int, paid: Callable[[Int[Tensor, " k"]], Float[Tensor, " k"]], p: Float[Tensor, "m V"], late: bool
) -> Float[Tensor, " N"] | Late[float]:
    """What each of n nodes pays; found when it is asked for, if it may be.

    Args:
        n: nodes.
        paid: int64 [k], nodes in rising order → what each of them pays.
        p: a law that it takes to find it.
        late: whether it may be.
    """
    return Late[float](n, paid) if may_wait(p, late) else paid(torch.arange(n, device=p.device))


def drawn(
    p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"], late: bool = False
) -> Int[Tensor, " N_plus_1"] | Late[int]:
    """What p itself emits at each place; drawn when it is asked for, if it may be."""
    if may_wait(p, late):
        return Late[int](len(p), lambda at: pick(rows(p, at), u_stop[at]))
    return pick(p, u_stop)


def _stops_of_leaves(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"], u_stop: Float[Tensor, " N_plus_1"]
) -> Int[Tensor, " N_plus_1"]:
    """What p itself emits where no child is, and anything elsewhere. To copy many rows costs more than to read all."""
    is_leaf = torch.ones(len(p), dtype=torch.bool).index_fill_(0, tree.parents + 1, False)
    leaf = is_leaf.nonzero().squeeze(1)
    if 4 * len(leaf) > len(p):
        return pick(p, u_stop)
    return torch.zeros(len(p), dtype=torch.long).index_copy_(0, leaf, pick(rows(p, leaf), u_stop[leaf]))
