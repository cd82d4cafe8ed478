"""Draft trees: the drafted tokens that the target verifies, and their depths, children and ancestor masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.transfer import to_device

if TYPE_CHECKING:
    from workbench.core.tree_explanation import TreeExplanation


class Sampling(str, Enum):
    """Sampling method for a node's children. It decides which verifiers preserve the target's distribution."""

    DETERMINISTIC = "deterministic"
    """Drafted tokens are a function of the committed text, e.g. by top-k or n-grams. The draft distribution is a point
    mass; `logq` is 0."""
    CHAIN = "chain"
    """Drafted tokens are sampled from the draft distribution `q`; each node has at most one child."""
    SAMPLED = "sampled"
    """Siblings sampled independently from the draft distribution `q`; their number is fixed before sampling."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Siblings drawn from the draft distribution `q` without replacement, in order. Their number may depend on the
    sampled tokens, as in a stochastic beam."""
    FIXED_NUMBER = "fixed-number"
    """Siblings drawn from the draft distribution `q` without replacement; their number is fixed before sampling, so
    that their joint distribution is known."""
    HEAD_AND_ONE = "head-and-one"
    """Siblings that are the most likely tokens of the draft distribution `q`, chosen deterministically, followed by one
    token sampled from the rest of `q`."""
    MIXED = "mixed"
    """Some siblings chosen deterministically, others sampled from one or several draft distributions. The fields
    `node_q_rows` and `without_replacement` of the tree describe each node."""


class Ranking(NamedTuple):
    """The drafter's most likely tokens at the positions of a tree, for display.

    Attributes:
        tokens: int64 [M, k], ids in descending order of probability.
        probs: float [M, k], their probabilities.
        rows: int64 [N+1], row of the children of node i−1 (entry 0: of the root); −1: not known.
    """

    tokens: Int[Tensor, "M k"]
    probs: Float[Tensor, "M k"]
    rows: Int[Tensor, " N_plus_1"]


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Tree of drafted tokens. Its root is the last committed token, which is not a node.

    Parents come before children, and siblings are in verification order.

    Attributes:
        tokens: int64 [N] token ids, on the target's device.
        parents: int64 [N], index of the parent node; −1 is the last committed token.
        logq: float [N], log-probability of the token, given its parent, under the distribution it was sampled from; 0
            for a deterministic proposal.
        q: float [M, V], draft distributions, or None if every proposal is deterministic.
        child_q_rows: int64 [N+1], row of `q` from which the children of node i−1 were sampled (entry 0: of the root);
            −1: none.
        sampling: sampling method of the whole tree, or MIXED.
        node_q_rows: int64 [N], for a mixed tree: row of `q` from which each node was sampled; −1: deterministic (a
            point mass), independent of the sampled siblings.
        without_replacement: bool [N], for a mixed tree: whether the node was drawn without replacement, that is, after
            removing its earlier siblings from its distribution.
        depth: upper bound of the number of levels, known without a synchronisation.
        fanout: upper bound of the number of children of a node, known without a synchronisation.
        source: name of the drafter that proposed the nodes (one for all, or one per node).
        score: float [N] or None, the drafter's confidence per node, for display and tree shape; not used in acceptance.
        explanation: explanation of the tree's shape; None if the tree builder provides none.
        states: float [N, D], the draft model's last hidden state after each node, for a verifier that reads it
            (`Verifier.reads_draft_states`); None if the drafter does not provide it.
        ranking: function that returns the drafter's most likely tokens at each position, for a tree without `q`. It is
            called only for a recorded round. None if the tree builder does not know them.
    """

    tokens: Int[Tensor, " N"]
    parents: Int[Tensor, " N"]
    logq: Float[Tensor, " N"]
    sampling: Sampling
    depth: int
    fanout: int = 1
    q: Float[Tensor, "M V"] | None = None
    child_q_rows: Int[Tensor, " N_plus_1"] | None = None
    node_q_rows: Int[Tensor, " N"] | None = None
    without_replacement: Bool[Tensor, " N"] | None = None
    source: str | tuple[str, ...] = ""
    score: Float[Tensor, " N"] | None = None
    explanation: TreeExplanation | None = None
    states: Float[Tensor, "N D"] | None = None
    ranking: Callable[[], Ranking] | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @classmethod
    def empty(cls, source: str = "", device: torch.device | str = "cpu") -> DraftTree:
        """Return a draft tree without nodes, for a round of plain decoding. The tree is cached; do not modify it."""
        return _empty(source, torch.device(device))

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str = "", device: torch.device | str = "cpu") -> DraftTree:
        """Return a draft that is a chain of the given tokens, chosen deterministically.

        Args:
            tokens: token ids in order.
            source: name of the drafter that proposed them.
            device: device of the tree.
        """
        n, device = len(tokens), torch.device(device)
        ids = to_device(tokens, device, torch.long)
        certain = _certain(n, device)
        return cls(ids, chain_parents(n, device), certain, Sampling.DETERMINISTIC, n, min(n, 1), source=source)

    @classmethod
    def from_parents(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        source: str = "",
        device: torch.device | str = "cpu",
        score: Sequence[float] | None = None,
    ) -> DraftTree:
        """Return a draft tree of deterministic proposals, from lists of tokens and parents.

        Args:
            tokens: token id of each node.
            parents: index of each node's parent; −1: the last committed token.
            source: name of the drafter that proposed the nodes.
            device: device of the tree.
            score: the drafter's confidence in each node, for display; None: unknown.

        Raises:
            WorkbenchError: a parent does not come before its child, or the lists differ in length.
        """
        tokens, parents = list(tokens), list(parents)
        depths = depths_of(parents)
        if len(tokens) != len(parents):
            raise WorkbenchError(f"A tree of {len(tokens)} tokens needs {len(tokens)} parents, not {len(parents)}.")
        return cls(
            tokens=to_device(tokens, device, torch.long),
            parents=to_device(parents, device, torch.long),
            logq=torch.zeros(len(tokens), device=device),
            sampling=Sampling.DETERMINISTIC,
            depth=max(depths, default=0),
            fanout=max(Counter(parents).values(), default=0),
            source=source,
            score=None if score is None else to_device(list(score), device, torch.float32),
        )


@lru_cache(maxsize=256)
def chain_parents(n: int, device: torch.device) -> Int[Tensor, " N"]:
    """Return the parents of a chain of n nodes: −1, 0, 1, …. The tensor is cached; do not modify it."""
    return torch.arange(-1, n - 1, device=device)


@lru_cache(maxsize=256)
def _certain(n: int, device: torch.device) -> Float[Tensor, " N"]:
    """Return the log-probabilities of n deterministic proposals: zeros. The tensor is cached; do not modify it."""
    return torch.zeros(n, device=device)


@lru_cache(maxsize=64)
def _empty(source: str, device: torch.device) -> DraftTree:
    return DraftTree.chain([], source, device)


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node (1 = child of the last committed token).

    Raises:
        WorkbenchError: a parent does not come before its child.

    Example:
        >>> depths_of([-1, 0, 0, 2])
        [1, 2, 2, 3]
    """
    depths: list[int] = []
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise WorkbenchError(f"Node {i} has parent {parent}: a parent must come before its child.")
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of each node in order; entry 0 is for the root, entry i+1 for node i.

    Example:
        >>> children_of([-1, -1, 0])
        [[0, 1], [2], [], []]
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for i, parent in enumerate(parents):
        children[parent + 1].append(i)
    return children


def tree_attention_mask(parents: Int[Tensor, "*B N"], depth: int) -> Bool[Tensor, "*B N N"]:
    """Return the attention mask of a tree: each node attends to itself and its ancestors.

    The transitive closure is computed by repeated squaring, with log₂(depth) tensor operations and no loop over nodes.

    Args:
        parents: parent of each node, −1 for children of the last committed token.
        depth: upper bound of the number of levels.

    Example:
        >>> tree_attention_mask(torch.tensor([-1, 0, 0]), 2).int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    n = parents.shape[-1]
    index = torch.arange(n, device=parents.device)
    walks = (parents.unsqueeze(-1) == index).float() + torch.eye(n, device=parents.device)
    reach = 1
    while reach < depth - 1:
        walks = walks @ walks
        reach *= 2
    return walks > 0
