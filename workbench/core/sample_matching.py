"""Sample a token at each tree position (root or node) and accept the drafted child with that token, if there is one.

For deterministic drafts, this rule is the whole verification. Some other verifiers first compute, at each position, the
distribution of the emitted token *given* the drafts; this rule is then their last step.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from workbench.core.sibling_groups import SiblingGroups


def match_sampled_token(
    fans: SiblingGroups, p: Float[Tensor, "R V"], inplace: bool = False
) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"], Float[Tensor, "R V"]]:
    """Return the acceptance probabilities of "sample from p, accept the child with that token" at R tree positions.

    p is read twice, for any number of siblings. A child's acceptance probability is its p divided by the mass of p
    outside its earlier siblings. That mass is computed as a sum of positive terms: tokens without a child, the child,
    and its later siblings. The difference 1 − (mass of earlier siblings) would suffer from cancellation.

    Args:
        fans: the R positions, each with at most F children. If siblings have the same token, the first one gets all of
            its probability.
        p: distribution to sample from, for each position.
        inplace: whether p may be overwritten.

    Returns:
        Acceptance probability of each child, given that no earlier sibling was sampled [R, F]; mass of p outside the
        earlier siblings [R, F] (1 for the first child); and weights of the token if no child was sampled [R, V], with a
        positive sum.
    """
    absent, first = ~fans.has_child, fans.token[:, :1]
    token = torch.where(absent, first, fans.token)
    p_x = p.gather(1, token)
    weights = p.scatter_(1, token, 0.0) if inplace else p.scatter(1, token, 0.0)
    weights.scatter_(1, first, torch.where(absent[:, :1], p_x[:, :1], 0.0))
    others = weights.sum(1, keepdim=True)
    # If the children have all of p's mass, one is always accepted; `pick` still needs weights with a positive sum.
    weights.scatter_(1, first, torch.where(others > 0, weights.gather(1, first), 1.0))
    return *child_acceptance(fans, p_x, others), weights


def child_acceptance(
    fans: SiblingGroups, p_x: Float[Tensor, "R F"], others: Float[Tensor, "R 1"]
) -> tuple[Float[Tensor, "R F"], Float[Tensor, "R F"]]:
    """Return each drafted child's acceptance probability, and the mass of p outside the child's earlier siblings.

    The acceptance probability is the child's p divided by that mass (see `match_sampled_token`).

    Args:
        fans: the positions and their children.
        p_x: probability of each child's token.
        others: total probability of all tokens that no child has.
    """
    absent = ~fans.has_child
    token = torch.where(absent, fans.token[:, :1], fans.token)
    repeated = (token.unsqueeze(2) == token.unsqueeze(1)).tril(-1).any(2)  # an earlier sibling has the same token
    probs = p_x.masked_fill(absent | repeated, 0.0)
    remaining = others + probs.flip(1).cumsum(1).flip(1)  # mass outside the earlier siblings
    share = probs / remaining.clamp_min(torch.finfo(p_x.dtype).tiny)
    accept = torch.cat([probs[:, :1], share[:, 1:]], 1)
    return accept, torch.cat([torch.ones_like(others), remaining[:, 1:]], 1)
