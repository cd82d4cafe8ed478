"""Growing a tree level by level: a draft model's forwards, and the choice of nodes, that draft-tree methods share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbench.core.sampling import law, with_history
from workbench.core.transfer import to_device, to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Outcome
from workbench.engine.request import Row
from workbench.engine.runner import Runner, Segment, Slot
from workbench.methods.drafters.chain import fit_vocabulary
from workbench.methods.drafters.draft_model import reach_of, read_committed, unread


def most_promising(scores: Float[Tensor, " n"], nodes: int) -> Int[Tensor, " kept"]:
    """The nodes of the highest scores (EAGLE-2, Li et al. 2024, §4.2), in the order in which they were added.

    A child is at most as promising as its parent and comes behind it: a stable order never parts them.
    """
    return scores.sort(descending=True, stable=True).indices[:nodes].sort().values


def subtree(
    keep: Int[Tensor, " kept"],
    tokens: Int[Tensor, " n"],
    parents: Int[Tensor, " n"],
    score: Float[Tensor, " n"],
    depth: int,
    fanout: int,
    source: str,
) -> DraftTree:
    """The deterministic draft tree of the kept nodes, whose parents are kept, too.

    Args:
        keep: ascending indices of nodes.
        tokens: of all nodes.
        parents: index of each node's parent; -1 below the root.
        score: the drafter's probability of each node after its parent.
        depth: of the plan.
        fanout: most children of a node.
        source: what the trace calls the drafter.
    """
    above = parents[keep]
    return DraftTree(
        tokens=tokens[keep],
        parents=torch.where(above < 0, above, torch.searchsorted(keep, above)),
        logq=torch.zeros(keep.shape[0], device=keep.device),
        sampling=Sampling.DETERMINISTIC,
        depth=depth,
        fanout=fanout,
        source=source,
        score=score[keep],
    )


class Growth:
    """A tree that grows in one row of a draft model's cache, a level at a time. Node i is the i-th node ever added.

    A level is added below nodes that were expanded, and some of it is expanded next; so what a new node sees is what
    its parent saw, and no matrix over the whole tree is needed.
    """

    def __init__(self, row: Row) -> None:
        assert row.models is not None
        assert row.models.drafter is not None
        self.row = row
        self.runner: Runner = row.models.drafter
        self.vocabulary = row.models.target.vocab_size
        self.slot: Slot = row.state.slot
        self.device = self.runner.device
        self.tokens: list[Int[Tensor, " w"]] = []
        self.parents: list[Int[Tensor, " w"]] = []
        self.read: list[Int[Tensor, " w"]] = []  # nodes that have been through the draft model, in scratch order
        self.n = 0
        self._above = torch.zeros(0, 0, dtype=torch.bool, device=self.device)  # last level added × nodes read
        self._sees = self._above  # last level expanded × nodes read

    def first(self, unread_tokens: Int[Tensor, " n"]) -> Float[Tensor, "1 V"]:
        """The draft model's law after the last committed token; commits what it had not read."""
        out = self.runner.forward([Segment(self.slot, unread_tokens)])
        self.runner.commit(self.slot, range(unread_tokens.shape[0]))
        return self._law(out.logits[0, -1:], [[]])

    def add(self, tokens: Int[Tensor, " w"], below: Int[Tensor, " w"] | None = None) -> None:
        """Add a level.

        Args:
            tokens: of its nodes.
            below: for each, the place of its parent among the nodes expanded last; None for children of the root.
        """
        w = tokens.shape[0]
        if below is None:
            parents = torch.full((w,), -1, device=self.device)
            self._above = torch.zeros(w, 0, dtype=torch.bool, device=self.device)
        else:
            parents, self._above = self.read[-1][below], self._sees[below]
        self.tokens.append(tokens)
        self.parents.append(parents)
        self.n += w

    def expand(self, chosen: Int[Tensor, " w"] | None = None) -> Float[Tensor, "w V"]:
        """Run nodes of the last level through the draft model (by their places in it; all by default).

        Returns:
            Its law after each.
        """
        tokens, above = self.tokens[-1], self._above
        nodes = torch.arange(self.n - tokens.shape[0], self.n, device=self.device)
        if chosen is not None:
            tokens, above, nodes = tokens[chosen], above[chosen], nodes[chosen]
        own = torch.eye(tokens.shape[0], dtype=torch.bool, device=self.device)
        self._sees = torch.cat([above, own], 1)
        self.read.append(nodes)
        depth = torch.full_like(tokens, len(self.tokens) - 1)
        out = self.runner.forward([Segment(self.slot, tokens, self._sees, depth)])
        return self._law(out.logits[0], self._paths() if self.row.sampling.needs_history else [])

    def _paths(self) -> list[list[int]]:
        """Tokens from the root to each node expanded last."""
        read = torch.cat(self.tokens)[torch.cat(self.read)].tolist()
        return [[token for token, seen in zip(read, row, strict=True) if seen] for row in self._sees.tolist()]

    def _law(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        logits = fit_vocabulary(logits, self.vocabulary)
        sampling = self.row.sampling
        if sampling.needs_history:
            histories = [to_device([*self.row.committed, *path], self.device) for path in paths]
            logits = with_history(logits, sampling, histories)
        return logits.float().softmax(1) if sampling.greedy else law(logits, sampling)


class GrowthState:
    """A row of the draft model's cache, and where the nodes of the last tree lie in its scratch."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.scratch_of: dict[int, int] = {}


class TreeFromModel(Drafter):
    """What the draft-tree methods share: a cache row of the draft model that keeps accepted nodes it has read."""

    needs: ClassVar[tuple[str, ...]] = ("drafter", "trees")

    def prime(self, row: Row, models: Models) -> GrowthState:
        """Take a row of the draft model's cache and read everything committed but the last token."""
        return GrowthState(read_committed(row, models))

    def reach(self, row: Row) -> int:
        """As far as the draft model has positions."""
        return reach_of(row, row.state.slot)

    def begin(self, row: Row) -> tuple[Growth, Float[Tensor, "1 V"]]:
        """Start a tree; returns it with the law of its first level."""
        assert row.models is not None
        growth = Growth(row)
        tokens = unread(row, row.models, row.state.slot)
        return growth, growth.first(tokens)

    def finish(self, row: Row, growth: Growth, order: Int[Tensor, " kept"] | None = None) -> None:
        """Remember where the nodes of the final tree lie. `order[i]` is the growth's index of final node i."""
        asked = [*([torch.cat(growth.read)] if growth.read else []), *([] if order is None else [order])]
        found = to_host(asked)
        place = {node: i for i, node in enumerate(found[0])} if growth.read else {}
        final = range(growth.n) if order is None else found[-1]
        row.state.scratch_of = {i: place[node] for i, node in enumerate(final) if node in place}

    def observe(self, row: Row, outcome: Outcome) -> None:
        """Keep the accepted nodes that were read, up to the first that was not."""
        assert row.models is not None
        assert row.models.drafter is not None
        state: GrowthState = row.state
        keep = []
        for node in outcome.verdict.path[: len(outcome.emitted)]:
            if node not in state.scratch_of:
                break
            keep.append(state.scratch_of[node])
        if state.slot.scratch and all(a < b for a, b in itertools.pairwise(keep)):
            row.models.drafter.commit(state.slot, keep)
        state.slot.scratch, state.scratch_of = 0, {}

    def release(self, row: Row, models: Models) -> None:
        """Give the cache row back."""
        if models.drafter is not None and row.state is not None:
            models.drafter.close(row.state.slot)
