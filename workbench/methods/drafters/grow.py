"""Growing a tree from a draft model, level by level: the forwards that all draft-tree methods share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbench.core.sampling import law, with_history
from workbench.engine.models import Models
from workbench.engine.parts import Drafter, Outcome
from workbench.engine.request import Row
from workbench.engine.runner import Runner, Segment, Slot
from workbench.methods.drafters.chain import fit_vocabulary
from workbench.methods.drafters.draft_model import read_committed, unread


class Growth:
    """A tree that grows in one row of a draft model's cache. Node i of the tree is the i-th node ever added.

    `read` lists, in the order of the cache's scratch, which nodes have been through the draft model.
    """

    def __init__(self, row: Row) -> None:
        assert row.models is not None
        assert row.models.drafter is not None
        self.row = row
        self.runner: Runner = row.models.drafter
        self.vocabulary = row.models.target.vocab_size
        self.slot: Slot = row.state.slot
        self.device = self.runner.device
        self.tokens: list[Tensor] = []
        self.parents: list[Tensor] = []
        self.sees = torch.zeros(0, 0, dtype=torch.bool, device=self.device)
        self.read = torch.zeros(0, dtype=torch.long, device=self.device)

    @property
    def n(self) -> int:
        """Nodes added so far."""
        return sum(len(t) for t in self.tokens)

    def first(self, unread_tokens: Int[Tensor, " n"]) -> Float[Tensor, "1 V"]:
        """The draft model's law after the last committed token; commits what it had not read."""
        out = self.runner.forward([Segment(self.slot, unread_tokens)])
        self.runner.commit(self.slot, range(len(unread_tokens)))
        return self._law(out.logits[0, -1:], [[]])

    def add(self, tokens: Int[Tensor, " w"], parents: Int[Tensor, " w"]) -> Int[Tensor, " w"]:
        """Add nodes; returns their indices."""
        start = self.n
        own = torch.eye(len(tokens), dtype=torch.bool, device=self.device)
        if start:
            above = torch.where((parents >= 0).unsqueeze(1), self.sees[parents.clamp_min(0)], False)
        else:
            above = torch.zeros(len(tokens), 0, dtype=torch.bool, device=self.device)
        old = torch.cat([self.sees, torch.zeros(start, len(tokens), dtype=torch.bool, device=self.device)], 1)
        self.sees = torch.cat([old, torch.cat([above, own], 1)])
        self.tokens.append(tokens)
        self.parents.append(parents)
        return torch.arange(start, start + len(tokens), device=self.device)

    def expand(self, nodes: Int[Tensor, " w"]) -> Float[Tensor, "w V"]:
        """Run nodes through the draft model; returns its law after each."""
        tokens = torch.cat(self.tokens)
        self.read = torch.cat([self.read, nodes])
        sees: Bool[Tensor, "w s"] = self.sees[nodes][:, self.read]
        depth = self.sees[nodes].sum(1) - 1
        out = self.runner.forward([Segment(self.slot, tokens[nodes], sees, depth)])
        paths = self._paths(nodes) if self.row.sampling.needs_history else []
        return self._law(out.logits[0], paths)

    def _paths(self, nodes: Tensor) -> list[list[int]]:
        tokens = torch.cat(self.tokens).tolist()
        return [[tokens[i] for i, seen in enumerate(row) if seen] for row in self.sees[nodes].tolist()]

    def _law(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        logits = fit_vocabulary(logits, self.vocabulary)
        sampling = self.row.sampling
        if sampling.needs_history:
            histories = [torch.tensor([*self.row.committed, *path], device=self.device) for path in paths]
            logits = with_history(logits, sampling, histories)
        return logits.float().softmax(1) if sampling.greedy else law(logits, sampling)


class GrowthState:
    """A row of the draft model's cache, and where the nodes of the last tree lie in its scratch."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.scratch_of: dict[int, int] = {}


class TreeFromModel(Drafter):
    """What the draft-tree methods share: a cache row of the draft model that keeps accepted nodes it has read."""

    needs: ClassVar[tuple[str, ...]] = ("drafter",)

    def prime(self, row: Row, models: Models) -> GrowthState:
        """Take a row of the draft model's cache and read everything committed but the last token."""
        return GrowthState(read_committed(row, models))

    def begin(self, row: Row) -> tuple[Growth, Float[Tensor, "1 V"]]:
        """Start a tree; returns it with the law of its first level."""
        assert row.models is not None
        growth = Growth(row)
        tokens = unread(row, row.models, row.state.slot)
        return growth, growth.first(tokens)

    def finish(self, row: Row, growth: Growth, order: Sequence[int] | None = None) -> None:
        """Remember where the nodes of the final tree lie. `order[i]` is the growth's index of final node i."""
        place = {node: i for i, node in enumerate(growth.read.tolist())}
        final = range(growth.n) if order is None else order
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
