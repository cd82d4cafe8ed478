"""RASD: merge continuations that were retrieved from a datastore into a draft model's tree."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.params import param
from workbench.core.transfer import to_device, to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeExplanation
from workbench.decoders.draft_verify.parts import Plan, TreeBuilder
from workbench.engine.datastore import Datastore
from workbench.engine.datastore_builder import store_of
from workbench.engine.request import Sequence
from workbench.methods.common.draft_model_tree import DraftModelState, TreeFromModel
from workbench.methods.rest.drafter import (
    RETRIEVED,
    DatastoreState,
    RetrievedTree,
    longest_param,
    no_match_notice,
    retrieve,
    shortest_param,
    store_param,
)
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.models.loading import Models

MODEL, STORE, BOTH = "draft-model", "store", "draft-model + store"
"""Origins of a draft tree's node, as shown in the trace: draft model, datastore, or both."""
TREE_BUILDER = BestFirst(ranked=False)
"""Tree builder of RASD's draft model. Tree builders that draw siblings at random are not supported."""


class FusedState(DraftModelState):
    """Drafting state of RASD: a slot of the draft model's KV cache, and the datastore."""

    def __init__(self, draft_state: DraftModelState, store: Datastore) -> None:
        super().__init__(draft_state.slot)
        self.store, self.inspectable = store, DatastoreState(store, (STORE, BOTH))


def prune(retrieved: RetrievedTree, allowed: abc.Sequence[int]) -> RetrievedTree:
    """Return the branches retrieved from the datastore whose first token is in `allowed`."""
    index_of, nodes = dict[int, int](), list[int]()
    for node, (token, parent) in enumerate(zip(retrieved.tokens, retrieved.parents, strict=True)):
        if parent in index_of or (parent < 0 and token in allowed):
            index_of[node] = len(nodes)
            nodes.append(node)
    return replace(
        retrieved,
        tokens=[retrieved.tokens[node] for node in nodes],
        parents=[index_of.get(retrieved.parents[node], -1) for node in nodes],
        counts=[retrieved.counts[node] for node in nodes],
    )


def fuse(
    tokens: abc.Sequence[int], parents: abc.Sequence[int], other: RetrievedTree, most: int
) -> tuple[list[int], list[int]]:
    """Merge a retrieved tree into an existing draft tree. Paths share nodes as far as their tokens are equal.

    Args:
        tokens: tokens of the existing tree; its nodes keep their indices.
        parents: parent of each node of the existing tree.
        other: tree to merge, parents first.
        most: maximum number of nodes of `other` to add.

    Returns:
        For each node of `other`, its index in the merged tree, −1 if there was no room; and the indices of the nodes of
        `other` that were added, in order.
    """
    at = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
    place, added = list[int](), list[int]()
    for node, (token, parent) in enumerate(zip(other.tokens, other.parents, strict=True)):
        merged_parent = -1 if parent < 0 else place[parent]
        if parent >= 0 and merged_parent < 0:  # there was no room for the parent
            place.append(-1)
            continue
        merged = at.get((merged_parent, token), -1)
        if merged < 0 and len(added) < most:
            merged = at[merged_parent, token] = len(tokens) + len(added)
            added.append(node)
        place.append(merged)
    return place, added


@dataclass(frozen=True)
class Rasd(TreeFromModel):
    """Draft a tree with a draft model, look up the newest tokens in a datastore, and verify both as one tree.

    Retrieved branches whose first token is not among the draft model's `top` most likely tokens are dropped. The
    remaining branches share the nodes of the model's tree as far as their tokens are equal, and may be deeper. Every
    node records its origin. Both trees are functions of the committed tokens, so their tokens are deterministic.

    Source: Quan et al. 2025, RASD, arXiv:2503.03434, §3 (pruning, and fusion by the longest prefix).
    """

    superposes: ClassVar[bool] = False  # retrieved tokens do not belong to a superposed draft
    source: ClassVar[str] = MODEL
    default_tree_builder: ClassVar[TreeBuilder | None] = TREE_BUILDER
    store: str = store_param()
    retrieved: int = param(
        8, ge=0, le=32, doc="maximum number of nodes from the datastore, in addition to the draft model's"
    )
    levels: int = param(
        4, ge=1, le=16, doc="number of levels in the draft model's tree; retrieved branches may be deeper"
    )
    top: int = param(
        8, ge=1, le=64, doc=("m: retrieved branches must start with one of the draft model's m most likely tokens")
    )
    longest: int = longest_param()
    shortest: int = shortest_param()

    def notice(self) -> str:
        """Return a note for the user if `longest` and `shortest` allow no match in the datastore, else ""."""
        return no_match_notice(self.longest, self.shortest)

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, as likeliest tokens or by retrieval."""
        return frozenset({Sampling.DETERMINISTIC})

    def make_ready(self, models: Models) -> None:
        """Load the datastore before the first run; the bundled texts are tokenised and sorted for this target."""
        store_of(models, self.store == "own")

    def init_state(self, sequence: Sequence, models: Models) -> FusedState:
        """Return a drafting state with a slot of the draft model's KV cache and with the datastore."""
        store = store_of(models, self.store == "own")
        return FusedState(super().init_state(sequence, models), store)

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Build the draft model's tree, and merge the branches retrieved from the datastore into it."""
        state: FusedState = sequence.state.drafter
        growth = self.begin(sequence)
        tree = (plan.tree_builder or TREE_BUILDER).build(growth, replace(plan, depth=min(plan.depth, self.levels)))
        allowed = growth.root.best(self.top)[1][0]
        tokens, parents, first = to_host([tree.tokens, tree.parents, allowed])
        room, context = plan.limit_nodes(len(tree) + self.retrieved) - len(tree), sequence.committed[-self.longest :]
        nodes, vocabulary = len(tree) + room, growth.sequence.models.target.vocab_size
        retrieved = retrieve(state.store, context, self.longest, self.shortest, nodes, plan.depth, vocabulary)
        retrieved.record_signals(sequence, state.store)
        retrieved = prune(retrieved, first)
        place, added = fuse(tokens, parents, retrieved, room)
        sequence.report.signals["nodes from the datastore"] = len(added)
        parents += [-1 if retrieved.parents[node] < 0 else place[retrieved.parents[node]] for node in added]
        merged = DraftTree.from_parents(
            [*tokens, *(retrieved.tokens[node] for node in added)], parents, device=tree.tokens.device
        )
        shared = set(place)
        sources = [*(BOTH if node in shared else MODEL for node in range(len(tree))), *[STORE] * len(added)]
        return merge_explanations(replace(merged, source=tuple(sources)), tree, retrieved, added)


def merge_explanations(
    whole: DraftTree, tree: DraftTree, retrieved: RetrievedTree, added: abc.Sequence[int]
) -> DraftTree:
    """Return the merged draft tree with the scores of its nodes, and with explanations of the nodes for the trace.

    Args:
        whole: merged tree: first the draft model's nodes, then the nodes from the datastore.
        tree: the draft model's tree.
        retrieved: retrieved and pruned branches.
        added: indices of the retrieved nodes that were added.
    """
    device, grown = tree.tokens.device, tree.explanation
    counts, shares = (
        to_device([values[node] for node in added], device, torch.float32)
        for values in (retrieved.counts, retrieved.shares)
    )
    if tree.score is not None:
        whole = replace(whole, score=torch.cat([tree.score.float(), shares]))
    if grown is not None and isinstance(grown.before, Tensor) and isinstance(grown.after, Tensor):
        rule_index = to_device([0] * len(tree) + [1] * len(added), device, torch.long)
        before, after = torch.cat([grown.before.float(), counts]), torch.cat([grown.after.float(), shares])
        whole = replace(whole, explanation=TreeExplanation((grown.rules[0], RETRIEVED), rule_index, before, after))
    return whole
