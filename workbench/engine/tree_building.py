"""How a draft tree comes of a drafter's laws: a grower asks for laws, level by level, and decides what is offered.

A *growth* is a tree while it grows, in what one drafter keeps of one row. It knows whom each node hangs on and what it
sees; subclasses know how the law behind a node is computed. So a new way of growing works with every drafter that gives
laws, and a new drafter with every way of growing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.grown import Grown
from workbench.core.late import Once
from workbench.core.sampling import SamplingParams, law
from workbench.core.tree import DraftTree, Sampling
from workbench.kernels.distributions import weigh

if TYPE_CHECKING:
    from workbench.engine.request import Row


STOPPED = "drafting stopped behind depth"
"""Signal of a round whose policy ended its draft before the depth that was planned."""


class Laws:
    """What a drafter says of the token behind each of w nodes.

    Attributes:
        hidden: what its LM head read there; None where that is not shown.
    """

    hidden: Float[Tensor, "w D"] | None = None

    def whole(self) -> Float[Tensor, "w V"]:
        """Its law there, over the target's vocabulary, warped as the target's is."""
        raise NotImplementedError

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Log-probabilities and ids of the k likeliest tokens there, falling; fewer where it knows fewer."""
        p = self.whole()
        found = p.topk(min(k, p.shape[1]), dim=1)
        return found.values.log(), found.indices


@dataclass(frozen=True)
class WholeLaws(Laws):
    """Laws that are computed whole: when they are first asked for, where likeliest tokens are enough for most.

    Attributes:
        law: float [w, V], or what makes them.
        hidden: see `Laws`.
        logits: float [w, V], of laws that are their plain softmax.
    """

    law: Float[Tensor, "w V"] | Callable[[], Tensor]
    hidden: Float[Tensor, "w D"] | None = None
    logits: Float[Tensor, "w V"] | None = None

    @classmethod
    def of(
        cls, logits: Float[Tensor, "w V"], sampling: SamplingParams, hidden: Float[Tensor, "w D"] | None = None
    ) -> WholeLaws:
        """The laws of logits: as text is sampled, or when it is greedy plain."""
        if not sampling.greedy:
            return cls(law(logits, sampling), hidden)
        return cls(Once(lambda: logits.float().softmax(1)), hidden, logits)

    @property
    def p(self) -> Float[Tensor, "w V"]:
        """The laws."""
        return self.law if isinstance(self.law, Tensor) else self.law()

    def whole(self) -> Float[Tensor, "w V"]:
        return self.p

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        found = None if self.logits is None else weigh(self.logits, min(k, self.logits.shape[1]))
        return super().best(k) if found is None else (found.logs, found.top)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a draft stands when its policy is asked whether it goes on.

    Attributes:
        level: levels drafted, from 1.
        p: the drafter's laws of the level that would come next, behind each node that would be gone on from.
        hidden: what a draft model's LM head read for these laws; None where the drafter shows no such states.
    """

    level: int
    p: Float[Tensor, "w V"]
    hidden: Float[Tensor, "w D"] | None = None


def goes_on(
    row: Row, level: int, p: Callable[[], Float[Tensor, "w V"]], hidden: Float[Tensor, "w D"] | None = None
) -> bool:
    """Whether the row's policy lets its draft go on behind so many levels. Waits for the device if the plan `stops`."""
    on = not row.plan.stops or bool(row.policy.go_on(row, row.policy_state, Step(level, p(), hidden)))
    if not on:
        row.signals[STOPPED] = level
    return on


class Growth:
    """A tree that grows below one row's last committed token, a level at a time. Node i is the i-th node ever added.

    A level is added below nodes that were expanded, and some of it is expanded next; so what a new node sees is what
    its parent saw, and no matrix over the whole tree is needed.

    Attributes:
        row: whose text it is.
        root: the laws behind the last committed token, w = 1.
        source: what the trace calls the drafter.
        tokens: of each level, [w].
        parents: of each level, [w]: the number of the node it hangs on; −1 is the root.
        read: numbers of the nodes that were expanded, [w] at a time, in the order in which the drafter read them.
        sees: bool [w, nodes read]: what each node expanded last sees, itself included.
        chances: how often the r-th best token of each level was right on held-out text, where that was measured; the
            last level's serve all deeper ones. For shapes that are decided before the laws are known.
    """

    root: Laws
    chances: Sequence[Sequence[float]] = ()

    def __init__(self, row: Row, source: str, device: torch.device) -> None:
        self.row, self.source, self.device = row, source, device
        self.tokens: list[Int[Tensor, " w"]] = []
        self.parents: list[Int[Tensor, " w"]] = []
        self.read: list[Int[Tensor, " w"]] = []
        self.n = 0
        self.sees: Bool[Tensor, "w n_read"] = torch.zeros(0, 0, dtype=torch.bool, device=device)
        self._below: Int[Tensor, " w"] | None = None

    def add(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None = None) -> None:
        """Add a level.

        Args:
            tokens: of its nodes.
            below: for each, the place of its parent among the nodes expanded last; None for children of the root.
        """
        w = tokens.shape[0]
        self.parents.append(torch.full((w,), -1, device=self.device) if below is None else self.read[-1][below])
        self.tokens.append(tokens)
        self._below = below
        self.n += w

    def expand(self, chosen: Int[Tensor, " w"] | None = None) -> Laws:
        """The laws behind nodes of the last level, by their places in it; all of them by default."""
        return self.laws(*self._next(chosen))

    def superpose(self, weights: Float[Tensor, " w"]) -> Laws:
        """What is said behind all nodes of the last level, read as one token: its embedding is their mean.

        Args:
            weights: of the nodes, ≥ 0 with sum 1.

        Returns:
            One law for all, or one for each where what was written before counts (penalties).

        Raises:
            MethodUnavailableError: the drafter does not read embeddings (`LawDrafter.superposes`).
        """
        tokens, _ = self._next(None)
        return self.laws_as_one(tokens, weights)

    def _next(self, chosen: Int[Tensor, " w"] | None) -> tuple[Int[Tensor, " w"], Int[Tensor, " w"] | None]:
        """Take down that nodes of the last level are read: their tokens, and the places of their parents."""
        tokens, below = self.tokens[-1], self._below
        nodes = torch.arange(self.n - tokens.shape[0], self.n, device=self.device)
        if chosen is not None:
            tokens, nodes = tokens[chosen], nodes[chosen]
            below = None if below is None else below[chosen]
        own = _own(tokens.shape[0], self.device)
        self.sees = own if below is None else torch.cat([self.sees[below], own], 1)
        self.read.append(nodes)
        return tokens, below

    def laws(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> Laws:
        """Read nodes of the newest level, in one forward.

        Args:
            tokens: of the nodes. `sees` says what they see, their level is `len(self.tokens)`, from 1.
            below: for each, the place of its parent among the nodes read before; None: the root.
        """
        raise NotImplementedError

    def laws_as_one(self, tokens: Int[Tensor, " w"], weights: Float[Tensor, " w"]) -> Laws:
        """Read the newest level as one token, in one forward of one position. Arguments: see `superpose`."""
        raise MethodUnavailableError(
            f"{self.source} drafts from tokens, not from embeddings: it cannot read several of them as one.",
            "Choose another tree builder, or a method with a draft model.",
        )

    def goes_on(self, laws: Laws) -> bool:
        """Whether the row's policy lets the tree have another level, by the laws behind the nodes expanded last."""
        return goes_on(self.row, len(self.tokens), laws.whole, laws.hidden)

    def paths(self) -> list[list[int]]:
        """Tokens from the root to each node expanded last (costs a synchronisation)."""
        read = torch.cat(self.tokens)[torch.cat(self.read)].tolist()
        return [[token for token, seen in zip(read, row, strict=True) if seen] for row in self.sees.tolist()]

    def chosen(self, fanout: int, score: Float[Tensor, " N"], grown: Grown) -> DraftTree:
        """The tree of all nodes that were added, at least one, where these were chosen and not drawn.

        Args:
            fanout: most children of one node.
            score: of each node, its probability by the drafter.
            grown: why they are there.
        """
        return DraftTree(
            tokens=torch.cat(self.tokens),
            parents=torch.cat(self.parents),
            logq=torch.zeros(self.n, device=self.device),
            sampling=Sampling.DETERMINISTIC,
            depth=len(self.tokens),
            fanout=fanout,
            source=self.source,
            score=score,
            grown=grown,
        )

    def close(self, kept: Int[Tensor, " kept"] | None = None) -> None:
        """No more is asked for. `kept`: numbers of the nodes that are drafted, in their order there; all by default."""


@lru_cache(maxsize=64)
def _own(w: int, device: torch.device) -> Bool[Tensor, "w w"]:
    """Each of w nodes sees itself. Shared, never written to."""
    return torch.eye(w, dtype=torch.bool, device=device)
