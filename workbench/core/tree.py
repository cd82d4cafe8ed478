"""Draft trees: what a drafter hands to the target, and the geometry that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import WorkbenchError
from workbench.core.transfer import to_device

if TYPE_CHECKING:
    from workbench.core.grown import Grown


class Sampling(str, Enum):
    """How the children of a node were chosen; it decides which acceptance rule keeps the target's law."""

    DETERMINISTIC = "deterministic"
    """A function of what is committed: top-k, n-grams. The law is a point mass, `logq` is 0."""
    CHAIN = "chain"
    """Drawn from `q`, one token behind the other: a node has one child at most."""
    SAMPLED = "sampled"
    """Drawn from `q`, siblings independent of each other, as many as was decided before the first was drawn."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Drawn from `q`, siblings in the order drawn, each from what its elder siblings left over. Whether there is a next
    one may depend on them, as in a stochastic beam."""
    FIXED_NUMBER = "fixed-number"
    """The same, as many as was decided before the first was drawn: so the law of all of them together is known."""
    HEAD_AND_ONE = "head-and-one"
    """The likeliest tokens of `q`, chosen, and behind them one that is drawn from what they leave of it."""
    MIXED = "mixed"
    """Some chosen, some drawn, by one law or several: `law_of` and `without` say it node by node."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted tokens below the last committed token. Parents come before children, siblings in verification order.

    Attributes:
        tokens: int64 [N] token ids, on the target's device.
        parents: int64 [N], index of the parent node; −1 is the last committed token.
        logq: float [N], log-probability of the token given its parent under the law it was drawn from; 0 where the
            proposal is deterministic.
        q: float [M, V] full proposal laws, or None when every proposal is deterministic.
        q_of: int64 [N+1], row of `q` from which the children of node i−1 were drawn (entry 0: of the root); −1: none.
        sampling: how children were chosen, one rule for the whole tree; or MIXED.
        law_of: of a mixed tree, int64 [N]: row of `q` each node was drawn from; −1: it was chosen, a point mass, and
            not by what was drawn beside it.
        without: of a mixed tree, bool [N]: the node was drawn from what its elder siblings, drawn or chosen, left of
            its law.
        depth: number of levels (an upper bound, known without asking the device).
        fanout: most children of one node (an upper bound, known without asking the device).
        source: name of the drafter that proposed the nodes (one for all, or one per node).
        score: float [N] or None, a named figure of confidence for display and shape; never used to accept.
        grown: why each node is there, and what it was worth to the grower; None where nobody says.
        states: float [N, D], the draft model's last hidden state after each node, for a verifier that reads it
            (`Verifier.reads_draft_states`); None: the drafter shows none.
    """

    tokens: Int[Tensor, " N"]
    parents: Int[Tensor, " N"]
    logq: Float[Tensor, " N"]
    sampling: Sampling
    depth: int
    fanout: int = 1
    q: Float[Tensor, "M V"] | None = None
    q_of: Int[Tensor, " N_plus_1"] | None = None
    law_of: Int[Tensor, " N"] | None = None
    without: Bool[Tensor, " N"] | None = None
    source: str | tuple[str, ...] = ""
    score: Float[Tensor, " N"] | None = None
    grown: Grown | None = None
    states: Float[Tensor, "N D"] | None = None

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @classmethod
    def empty(cls, source: str = "", device: torch.device | str = "cpu") -> DraftTree:
        """No proposal: the round is plain decoding. Shared, never written to."""
        return _empty(source, torch.device(device))

    @classmethod
    def chain(cls, tokens: Sequence[int], source: str = "", device: torch.device | str = "cpu") -> DraftTree:
        """A deterministic chain of host tokens."""
        n, device = len(tokens), torch.device(device)
        ids = to_device(tokens, device, torch.long)
        certain = _certain(n, device)
        return cls(ids, chain_parents(n, device), certain, Sampling.DETERMINISTIC, n, min(n, 1), source=source)

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        source: str = "",
        device: torch.device | str = "cpu",
        score: Sequence[float] | None = None,
    ) -> DraftTree:
        """A deterministic tree from host lists.

        Raises:
            WorkbenchError: a parent does not come before its child, or the lists differ in length.
        """
        tokens, parents = list(tokens), list(parents)
        depths = depths_of(parents)
        if len(tokens) != len(parents):
            raise WorkbenchError(f"A tree of {len(tokens)} tokens needs as many parents, not {len(parents)}.")
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
    """Parents of a chain of n nodes: −1, 0, 1, … Shared, never written to."""
    return torch.arange(-1, n - 1, device=device)


@lru_cache(maxsize=256)
def _certain(n: int, device: torch.device) -> Float[Tensor, " N"]:
    """Log-probabilities of n deterministic proposals. Shared, never written to."""
    return torch.zeros(n, device=device)


@lru_cache(maxsize=64)
def _empty(source: str, device: torch.device) -> DraftTree:
    return DraftTree.chain([], source, device)


def depths_of(parents: Sequence[int]) -> list[int]:
    """Depth of each node (1 = child of the last committed token).

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
    """Children of each node in order; entry 0 belongs to the root, entry i+1 to node i.

    Example:
        >>> children_of([-1, -1, 0])
        [[0, 1], [2], [], []]
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for i, parent in enumerate(parents):
        children[parent + 1].append(i)
    return children


def ancestors(parents: Int[Tensor, "*B N"], depth: int) -> Bool[Tensor, "*B N N"]:
    """Which nodes each node sees: itself and its ancestors, as a boolean matrix.

    Closure by repeated squaring, so that it needs log₂(depth) tensor operations and no loop over nodes on the host.

    Args:
        parents: −1 for children of the last committed token.
        depth: an upper bound on the number of levels.

    Example:
        >>> ancestors(torch.tensor([-1, 0, 0]), 2).int().tolist()
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
