"""Detection of siblings of the target's likeliest token, for verifiers that relax greedy match."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from workbench.core.tree import DraftTree


def has_target_token_sibling(tree: DraftTree, is_target_token: Float[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Return a mask of the nodes that are not the target's likeliest token but have a sibling that is.

    A relaxed greedy verifier rejects these nodes, so that no round is shorter than with the exact rule.

    Args:
        tree: draft tree of N nodes.
        is_target_token: 1 at each node that is the target's likeliest token at its position, 0 at all other nodes.
    """
    at = tree.parents + 1
    has_target_sibling = is_target_token.new_zeros(len(tree) + 1).index_add_(0, at, is_target_token)[at] > 0
    return has_target_sibling & (is_target_token < 0.5)
