"""Draw from a law at each place of a tree, and follow the draw if one of the drafts has the token.

It is the whole of verification where drafts were chosen, and the last step of every rule that first finds, for each
place, the law of the token that is emitted *given* the drafts there: keeping a draft is then no decision of its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.places import Fans


def following(
    fans: Fans, p: Float[Tensor, "R V"], spent: bool = False
) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R V"]]:
    """What "draw and follow the draw" makes of some places, in two passes over the law, however many siblings.

    A node's chance is its p by what p gives to all but its elder siblings. That is added up from what no sibling has,
    and the younger ones: positive numbers, so that little is left of nearly 1 without cancelling.

    Args:
        fans: the places; of siblings with one token the eldest has all of the draw.
        p: the law drawn from there.
        spent: whether nobody wants it afterwards, so that it is written to.

    Returns:
        Each child's chance, given that none of its elder siblings was drawn; what the law gives to all but those (1 for
        the eldest); and the weights of what is drawn where no child is, of any sum but 0.
    """
    none, first = ~fans.there, fans.token[:, :1]
    token = torch.where(none, first, fans.token)
    p_x = p.gather(1, token)
    left = p.scatter_(1, token, 0.0) if spent else p.scatter(1, token, 0.0)
    left.scatter_(1, first, torch.where(none[:, :1], p_x[:, :1], 0.0))
    others = left.sum(1, keepdim=True)
    # Where the children have all of p none of them is ever rejected, but `pick` takes no weights of sum 0.
    left.scatter_(1, first, torch.where(others > 0, left.gather(1, first), 1.0))
    return *shares(fans, p_x, others), left


def shares(
    fans: Fans, p_x: Float[Tensor, "R F"], others: Float[Tensor, "R 1"]
) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"]]:
    """What `following` says of the children.

    Args:
        fans: the places.
        p_x: what the law has at each child's token.
        others: what it has at all other tokens.
    """
    none = ~fans.there
    token = torch.where(none, fans.token[:, :1], fans.token)
    twice = (token.unsqueeze(2) == token.unsqueeze(1)).tril(-1).any(2)  # a token offered again has nothing left
    chance = p_x.masked_fill(none | twice, 0.0)
    among = others + chance.flip(1).cumsum(1).flip(1)  # what is left for each child, and for those that follow it
    share = chance / among.clamp_min(torch.finfo(p_x.dtype).tiny)
    accept = torch.cat([chance[:, :1], share[:, 1:]], 1)
    return accept, torch.cat([torch.ones_like(others), among[:, 1:]], 1)
