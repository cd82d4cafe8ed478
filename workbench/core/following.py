"""Draw from a law at each place of a tree, and follow the draw if one of the drafts has the token.

It is the whole of verification where drafts were chosen, and the last step of every rule that first finds, for each
place, the law of the token that is emitted *given* the drafts there: keeping a draft is then no decision of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.tree import DraftTree


def following(
    tree: DraftTree, p: Float[Tensor, "N_plus_1 V"]
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, "N_plus_1 V"]]:
    """What "draw and follow the draw" makes of a tree, in two passes over the law, however many siblings there are.

    A node's chance is its p by what p gives to all but its elder siblings. That is added up from what no sibling has,
    and the younger ones: positive numbers, so that little is left of nearly 1 without cancelling.

    Args:
        tree: of one node at least; of siblings with one token the eldest has all of the draw.
        p: the law drawn from, at the root (row 0) and after each node (row i+1).

    Returns:
        Each node's chance, given that none of its elder siblings was drawn; what the law gives to all but those (1 for
        the eldest); and the weights of what is drawn where no child is, of any sum but 0.
    """
    tokens, place, n = tree.tokens, tree.parents + 1, len(tree)
    child, rank = children_at(tree)
    none = child == n
    token = torch.where(none, tokens[0], tokens[child.clamp(max=n - 1)])
    twice = (token.unsqueeze(2) == token.unsqueeze(1)).tril(-1).any(2)  # a token offered again has nothing left
    p_x = p.gather(1, token)
    chance = p_x.masked_fill(none | twice, 0.0)
    left = p.scatter(1, torch.where(none, token[:, :1], token), 0.0)
    first = token[:, :1]
    left.scatter_(1, first, torch.where(none[:, :1], p_x[:, :1], 0.0))
    others = left.sum(1, keepdim=True)
    # Where the children have all of p none of them is ever rejected, but `pick` takes no weights of sum 0.
    left.scatter_(1, first, torch.where(others > 0, left.gather(1, first), 1.0))
    among = others + chance.flip(1).cumsum(1).flip(1)  # what is left for each child, and for those that follow it
    share = (chance / among.clamp_min(torch.finfo(p.dtype).tiny))[place, rank]
    eldest = rank == 0
    accept = torch.where(eldest, chance[place, rank], share)
    return accept, torch.where(eldest, torch.ones_like(share), among[place, rank]), left


def ranks(parents: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Elder siblings of each node."""
    return torch.tril(parents.unsqueeze(0) == parents.unsqueeze(1), diagonal=-1).sum(1)


def children_at(tree: DraftTree) -> tuple[Int[Tensor, "N_plus_1 F_plus_1"], Int[Tensor, " N"]]:
    """Children of each place in order, N where there is none and in the last column; and each node's rank among them.

    Nodes beyond the tree's `fanout` share the last column, and are none's children.
    """
    n = len(tree)
    rank = ranks(tree.parents).clamp_(max=tree.fanout)
    child = tree.parents.new_full((n + 1, tree.fanout + 1), n)
    child[tree.parents + 1, rank] = torch.arange(n, device=tree.parents.device)
    child[:, -1] = n
    return child, rank


@dataclass(frozen=True, slots=True)
class Fans:
    """Places that have children, a row each, with the law that these were drawn from.

    Attributes:
        place: int64 [R], 0 is the root, i + 1 node i.
        token: int64 [R, F], tokens of its children in the order of testing.
        there: bool [R, F], whether there is such a child.
        p: float [R, V], the target's law there.
        q: float [R, V], the law that its children were drawn from.
    """

    place: Int[Tensor, " R"]
    token: Int[Tensor, "R F"]
    there: Bool[Tensor, "R F"]
    p: Float[Tensor, "R V"]
    q: Float[Tensor, "R V"]

    @classmethod
    def of(cls, tree: DraftTree, p: Float[Tensor, "N_plus_1 V"]) -> Fans:
        """The places of a tree whose nodes were drawn, some of them at least.

        Where asking the device costs nothing, leaves are left out; else they are rows without children.
        """
        assert tree.q is not None
        child = children_at(tree)[0][:, :-1]
        place = torch.arange(child.shape[0], device=child.device)
        if child.device.type == "cpu":
            place = place[child[:, 0] < len(tree)]
        child = child[place]
        there = child < len(tree)
        row = tree.q_of
        if row is None:
            assert tree.law_of is not None
            row = tree.law_of.new_full((len(tree) + 1,), -1).scatter_reduce(0, tree.parents + 1, tree.law_of, "amax")
        token = torch.where(there, tree.tokens[child.clamp(max=len(tree) - 1)], 0)
        return cls(place, token, there, p[place], tree.q[row[place].clamp_min(0)].to(p.dtype))

    def emitted(
        self,
        p: Float[Tensor, "N_plus_1 V"],
        kept: Float[Tensor, "R F"],
        left: Float[Tensor, "R V"],
    ) -> Float[Tensor, "N_plus_1 V"]:
        """The law of the token emitted at each place, given the drafts there.

        Args:
            p: the target's law, which is that of places without children.
            kept: probability that a rule's tests end with this child; 0 where there is none.
            left: the law of the token if they end with none.
        """
        left = torch.where(self.there[:, :1], left, self.p)
        law = left * (1 - kept.sum(1, keepdim=True)).clamp_min(0)
        return p.index_copy(0, self.place, law.scatter_add(1, self.token, kept))
