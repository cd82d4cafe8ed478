"""Build draft trees: a tree builder requests a drafter's distributions, level by level, and chooses nodes.

A `PartialTree` is a draft tree under construction, for one sequence and one drafter. It stores the parent and the
attention mask of each node; subclasses compute the distribution after a node. So each tree builder can be used with
every drafter that gives distributions.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.lazy import LazyValue
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.tree import DraftTree, Ranking, Sampling
from workbench.core.tree_explanation import TreeExplanation
from workbench.kernels.distributions import TOP, summarise_softmax

if TYPE_CHECKING:
    from workbench.engine.request import Sequence


STOPPED = "drafting stopped after depth"
"""Name of a signal in a round's trace: the policy ended drafting before the planned depth."""


class NodeDistributions:
    """A drafter's distributions of the next token after each of w nodes of a draft tree.

    Attributes:
        hidden: LM head input at each node; None if the drafter does not provide it.
    """

    hidden: Float[Tensor, "w D"] | None = None

    def full_probs(self) -> Float[Tensor, "w V"]:
        """Return the draft distributions over the target's vocabulary, with the target's temperature and filters."""
        raise NotImplementedError

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the k most probable tokens (or all known ones), in descending order."""
        p = self.full_probs()
        top = p.topk(min(k, p.shape[1]), dim=1)
        return top.values.log(), top.indices


@dataclass(frozen=True)
class FullDistributions(NodeDistributions):
    """Draft distributions over the whole vocabulary, computed at first access.

    Most tree builders need only the most likely tokens.

    Attributes:
        probs: distributions after w nodes, float [w, V], or a function that returns it.
        hidden: LM head input at each node; None if the drafter does not provide it.
        logits: float [w, V], if the distributions are their plain softmax.
    """

    probs: Float[Tensor, "w V"] | Callable[[], Tensor]
    hidden: Float[Tensor, "w D"] | None = None
    logits: Float[Tensor, "w V"] | None = None

    @classmethod
    def of(
        cls, logits: Float[Tensor, "w V"], sampling: SamplingParams, hidden: Float[Tensor, "w D"] | None = None
    ) -> FullDistributions:
        """Create draft distributions from logits, with the sampling parameters; if greedy, as plain softmax."""
        if not sampling.greedy:
            return cls(to_probs(logits, sampling), hidden)
        return cls(LazyValue(lambda: logits.float().softmax(1)), hidden, logits)

    @property
    def p(self) -> Float[Tensor, "w V"]:
        """Return the drafter's distributions of the next token after w nodes, float [w, V]."""
        return self.probs if isinstance(self.probs, Tensor) else self.probs()

    def full_probs(self) -> Float[Tensor, "w V"]:
        return self.p

    def best(self, k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        top = None if self.logits is None else summarise_softmax(self.logits, min(k, self.logits.shape[1]))
        return super().best(k) if top is None else (top.logs, top.top)


@dataclass(frozen=True, slots=True)
class Step:
    """State of a draft when the policy decides whether to draft another level.

    Attributes:
        level: number of drafted levels, from 1.
        p: the drafter's distributions for the next level, after each node that would be expanded.
        hidden: input of the draft model's LM head for these distributions; None if the drafter does not provide it.
    """

    level: int
    p: Float[Tensor, "w V"]
    hidden: Float[Tensor, "w D"] | None = None


def should_continue(
    sequence: Sequence, level: int, p: Callable[[], Float[Tensor, "w V"]], hidden: Float[Tensor, "w D"] | None = None
) -> bool:
    """Return whether the policy continues a draft after `level` levels. Synchronises if `Plan.can_stop_early`."""
    continues = not sequence.state.plan.can_stop_early or bool(
        sequence.policy.should_continue(sequence, sequence.state.policy, Step(level, p(), hidden))
    )
    if not continues:
        sequence.report.signals[STOPPED] = level
    return continues


class PartialTree:
    """Draft tree under construction after a sequence's last committed token. Node i is the i-th node added.

    A new level is added below expanded nodes, and some of its nodes are expanded next. So the attention mask of a new
    node is its parent's mask plus the node itself, and no matrix over the whole tree is needed.

    In shapes, w is the number of nodes concerned: all nodes of a level, or those of its nodes that are expanded.

    Attributes:
        sequence: sequence for which the tree is drafted.
        root: distribution after the last committed token, w = 1.
        source: name of the drafter in the trace.
        tokens: token ids of each level's nodes, [w].
        parents: parents of each level's nodes, [w], as indices of nodes; −1 is the root.
        expanded: indices of the expanded nodes, one tensor [w] per level, in the order in which the drafter processed
            them.
        attention_mask: bool [w, expanded nodes]: attention mask of the nodes expanded last, themselves included.
        rank_probs: how often the r-th best token of each level was correct on held-out text, if measured; the last
            level also applies to all deeper levels. With them a tree builder can choose a shape before the
            distributions are known.
    """

    root: NodeDistributions
    rank_probs: abc.Sequence[abc.Sequence[float]] = ()

    def __init__(self, sequence: Sequence, source: str, device: torch.device) -> None:
        self.sequence, self.source, self.device = sequence, source, device
        self.tokens: list[Int[Tensor, " w"]] = []
        self.parents: list[Int[Tensor, " w"]] = []
        self.expanded: list[Int[Tensor, " w"]] = []
        self.n = 0
        self.attention_mask: Bool[Tensor, "w n_read"] = torch.zeros(0, 0, dtype=torch.bool, device=device)
        self._below: Int[Tensor, " w"] | None = None

    def add(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None = None) -> None:
        """Add a level of nodes to the draft tree.

        Args:
            tokens: tokens of the level's nodes.
            below: for each node, the index of its parent among the nodes expanded last; None for children of the root.
        """
        w = tokens.shape[0]
        self.parents.append(torch.full((w,), -1, device=self.device) if below is None else self.expanded[-1][below])
        self.tokens.append(tokens)
        self._below = below
        self.n += w

    def expand(self, chosen: Int[Tensor, " w"] | None = None) -> NodeDistributions:
        """Return draft distributions after nodes of the tree's last level. `chosen`: their indices; by default, all."""
        return self.distributions(*self._next(chosen))

    def superpose(self, weights: Float[Tensor, " w"]) -> NodeDistributions:
        """Return the draft distribution after a single input: the mean embedding of all nodes of the tree's last level.

        Args:
            weights: weights of the nodes in the mean, ≥ 0 with sum 1.

        Returns:
            One distribution for all nodes, or one for each node if earlier tokens matter (penalties).

        Raises:
            MethodUnavailableError: the drafter does not read embeddings (`DistributionDrafter.superposes`).
        """
        tokens, _ = self._next(None)
        return self.distributions_as_one(tokens, weights)

    def _next(self, chosen: Int[Tensor, " w"] | None) -> tuple[Int[Tensor, " w"], Int[Tensor, " w"] | None]:
        """Record that nodes of the last level are expanded; return their token ids and their parents' indices."""
        tokens, below = self.tokens[-1], self._below
        nodes = torch.arange(self.n - tokens.shape[0], self.n, device=self.device)
        if chosen is not None:
            tokens, nodes = tokens[chosen], nodes[chosen]
            below = None if below is None else below[chosen]
        self_mask = _own(tokens.shape[0], self.device)
        self.attention_mask = self_mask if below is None else torch.cat([self.attention_mask[below], self_mask], 1)
        self.expanded.append(nodes)
        return tokens, below

    def distributions(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None) -> NodeDistributions:
        """Process nodes of the newest level in one forward pass, and return the draft distributions after them.

        Args:
            tokens: token ids of the nodes. Their attention mask is `attention_mask`, their level is `len(self.tokens)`,
                counted from 1.
            below: for each node, the index of its parent among the nodes processed before; None: the root.
        """
        raise NotImplementedError

    def distributions_as_one(self, tokens: Int[Tensor, " w"], weights: Float[Tensor, " w"]) -> NodeDistributions:
        """Return the distributions after the weighted mean embedding of the tree's last level, from one forward pass.

        The arguments are those of `superpose`.
        """
        raise MethodUnavailableError(
            f"The drafter {self.source} drafts from tokens, not from embeddings, so it cannot process a "
            f"superposition of several tokens.",
            "Choose another tree builder, or a method with a draft model.",
        )

    def should_continue(self, distributions: NodeDistributions) -> bool:
        """Return whether the policy allows another draft level, given distributions after the last expanded nodes."""
        return should_continue(self.sequence, len(self.tokens), distributions.full_probs, distributions.hidden)

    def paths(self) -> list[list[int]]:
        """Return the tokens from the root to each of the last expanded nodes. Synchronises the device."""
        tokens = torch.cat(self.tokens)[torch.cat(self.expanded)].tolist()
        return [
            [token for token, is_ancestor in zip(tokens, row, strict=True) if is_ancestor]
            for row in self.attention_mask.tolist()
        ]

    def to_tree(self, fanout: int, score: Float[Tensor, " N"], grown: TreeExplanation) -> DraftTree:
        """Return the draft tree of all added nodes, as deterministic proposals. There must be at least one node.

        Args:
            fanout: maximum number of children of a node.
            score: draft probability of each node.
            grown: explanation of the nodes, for the trace.
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
            explanation=grown,
        )

    def close(self, nodes: Int[Tensor, " kept"] | None = None) -> None:
        """End the construction of the tree.

        `nodes` has the indices of the nodes in the finished draft tree, in their order there; by default all nodes.
        """


@lru_cache(maxsize=64)
def _own(w: int, device: torch.device) -> Bool[Tensor, "w w"]:
    """Return the attention mask in which each of w nodes attends only to itself. It is cached; do not modify it."""
    return torch.eye(w, dtype=torch.bool, device=device)


def drafter_ranking(
    candidates: abc.Sequence[tuple[Tensor, Tensor]], expanded: abc.Sequence[Tensor], selection: Int[Tensor, " kept"]
) -> Ranking:
    """Return the drafter's most likely tokens at the positions of the selected nodes of a draft tree.

    Args:
        candidates: log-probabilities and tokens of the k best candidates, both [w, k]: at the root (w = 1), then at the
            w expanded nodes of each level.
        expanded: indices of the w expanded nodes of each level, [w].
        selection: indices of the selected nodes.
    """
    k = min(TOP, *(tokens.shape[1] for _, tokens in candidates))
    logq, tokens = (torch.cat([each[i][:, :k] for each in candidates]) for i in (0, 1))
    nodes = torch.cat([selection.new_full((1,), -1), *expanded[: len(candidates) - 1]])  # −1: the root
    same = torch.cat([nodes[:1], selection]).unsqueeze(1) == nodes
    return Ranking(tokens, logq.exp(), torch.where(same.any(1), same.long().argmax(1), -1))
