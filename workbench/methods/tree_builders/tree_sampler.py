"""Draft trees of sampled nodes, stored with the distributions from which the nodes were drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.random_stream import Purpose
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeExplanation
from workbench.decoders.draft_verify.tree_building import NodeDistributions, PartialTree


class TreeSampler:
    """Builder of a draft tree whose nodes are sampled level by level, each from the distribution after its parent.

    Args:
        growth: partial tree to which nodes are added.
        sampling: how siblings are drawn.
    """

    def __init__(self, growth: PartialTree, sampling: Sampling) -> None:
        self.growth, self.sampling = growth, sampling
        self._distributions: list[Float[Tensor, "w V"]] = []
        self._logq: list[Float[Tensor, " w"]] = []
        self._is_deterministic: list[Bool[Tensor, " w"]] = []

    def probs(self, distributions: NodeDistributions) -> Float[Tensor, "w V"]:
        """Return the drafter's distributions as probabilities, and store them in the tree that is being built.

        If decoding is greedy, each distribution is a point mass at its likeliest token.
        """
        p = distributions.full_probs()
        if self.growth.sequence.sampling.greedy:
            p = torch.zeros_like(p).scatter_(1, p.argmax(1, keepdim=True), 1.0)
        self._distributions.append(p)
        return p

    def levels(self, fan: Sequence[int], most: int) -> Iterator[tuple[int, int, Float[Tensor, "w V"]]]:
        """Yield for each level its index, the number of children per node, and the distributions after w parents.

        The caller must add the nodes of a level before the next iteration. The iteration ends after the last level of
        `fan`, when the tree has `most` nodes, or when the sequence's policy stops drafting.

        Args:
            fan: number of children per node, level by level.
            most: maximum number of nodes.
        """
        growth, distributions = self.growth, self.growth.root
        for level, k in enumerate(fan):
            yield level, k, self.probs(distributions)
            if (
                level + 1 == len(fan)
                or growth.n >= most
                or not growth.should_continue(distributions := growth.expand())
            ):
                return

    def add(
        self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"], is_deterministic: Bool[Tensor, " w"] | None = None
    ) -> None:
        """Add a level of draft nodes that were drawn from the distributions stored last.

        Args:
            tokens: tokens of the w nodes; siblings in the order in which they were drawn.
            below: for each node, the index of its distribution among those stored last.
            is_deterministic: mask of the nodes that were chosen deterministically. Each other node counts as drawn from
                its distribution without its earlier siblings. None: all nodes were drawn in the way that the argument
                `sampling` of the constructor gives.
        """
        self._logq.append(self._distributions[-1][below, tokens].log())
        if is_deterministic is not None:
            self._is_deterministic.append(is_deterministic)
        self.growth.add(tokens, below if self.growth.n else None)

    def uniforms(self, n: int, level: int) -> Float[Tensor, " n"]:
        """Return `n` uniform random numbers in [0, 1) for the draws of one tree level (counted from 0), float64."""
        return self.growth.sequence.uniforms(Purpose.DRAFT, n, self.growth.device, level)

    def draw_siblings(
        self, distributions: NodeDistributions, k: int, level: int, top_k: int = 0
    ) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Draw k sibling tokens without replacement from each distribution.

        Return the log-probabilities of the drawn tokens plus Gumbel noise, descending, and the token ids in the same
        order.

        Args:
            distributions: distributions after the w nodes that were expanded last.
            k: number of draws, at most the number of tokens.
            level: index of the level, from 0.
            top_k: number of likeliest tokens to draw from; 0: draw from all tokens.
        """
        if not top_k:
            top = self.gumbel(p := self.probs(distributions), level).topk(min(k, p.shape[1]), dim=1)
            return top.values, top.indices
        logq, tokens = distributions.best(top_k)
        top_probs = logq.softmax(1)
        self._distributions.append(torch.zeros_like(distributions.full_probs()).scatter_(1, tokens, top_probs))
        top = self.gumbel(top_probs, level).topk(min(k, top_probs.shape[1]), dim=1)
        return top.values, tokens.gather(1, top.indices)

    def gumbel(self, p: Float[Tensor, "w V"], level: int) -> Float[Tensor, "w V"]:
        """Return log p + Gumbel noise, float64; −∞ where p is 0.

        The tokens in descending order of the result are drawn from p without replacement.
        """
        u = self.growth.sequence.uniforms(Purpose.GUMBEL, p.numel(), p.device, level)
        u = u.view(p.shape).clamp(1e-300, 1 - 1e-16)
        return p.double().log() - torch.log(-torch.log(u))

    def finish(self, fanout: int, grown: TreeExplanation, nodes: Sequence[int] | None = None) -> DraftTree:
        """Close the partial tree and return the draft tree.

        Args:
            fanout: maximum number of children of a node.
            grown: explanation of the nodes for the trace. If some nodes are deterministic, its first rule explains
                these, and its second rule the sampled nodes.
            nodes: ascending indices of the nodes to draft, including their parents; by default all nodes.
        """
        growth = self.growth
        is_whole = nodes is None or len(nodes) == growth.n
        selection = torch.arange(growth.n, device=growth.device) if nodes is None else to_device(nodes, growth.device)
        growth.close(None if is_whole else selection)
        parents = torch.cat(growth.parents)[selection]
        q_of = torch.full((growth.n + 1,), -1, device=growth.device)
        q_of[0] = 0
        if growth.expanded:
            # The nodes expanded last may have no distribution here, because they got no children.
            expanded = torch.cat(growth.expanded)[: sum(map(len, self._distributions)) - 1]
            q_of[expanded + 1] = torch.arange(1, len(expanded) + 1, device=growth.device)
        selection_q_of = torch.cat([q_of[:1], q_of[selection + 1]])
        logq, probs_of, is_deterministic = torch.cat(self._logq)[selection], None, None
        if self._is_deterministic:
            is_deterministic = torch.cat(self._is_deterministic)[selection]
            probs_of = q_of[parents + 1].masked_fill(is_deterministic, -1)
            grown = replace(grown, rule_index=(~is_deterministic).long())
        return DraftTree(
            tokens=torch.cat(growth.tokens)[selection],
            parents=parents if is_whole else torch.where(parents < 0, parents, torch.searchsorted(selection, parents)),
            logq=logq if is_deterministic is None else logq.masked_fill(is_deterministic, 0),
            sampling=self.sampling,
            depth=len(growth.tokens),
            fanout=fanout,
            q=torch.cat(self._distributions),
            child_q_rows=selection_q_of,
            node_q_rows=probs_of,
            without_replacement=None if is_deterministic is None else ~is_deterministic,
            source=growth.source,
            score=None if is_deterministic is None else logq.exp(),
            explanation=grown,
        )
