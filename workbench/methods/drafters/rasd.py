"""RASD: merge retrieved continuations from a datastore into a draft model's tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from workbench.core.grown import Grown
from workbench.core.params import param
from workbench.core.transfer import to_device, to_host
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.draft_plan import Plan
from workbench.decoders.draft_verify.parts import TreeBuilder
from workbench.engine.datastore import Datastore
from workbench.engine.datastore_builder import store_of
from workbench.engine.request import Row
from workbench.methods.drafters.draft_tree import GrowthState, TreeFromModel
from workbench.methods.drafters.rest import (
    RETRIEVED,
    Retrieved,
    StoreInUse,
    longest,
    retrieve,
    shortest,
    stored,
    unmatched,
)
from workbench.methods.tree_builders.best_first import BestFirst
from workbench.models.loading import Models

MODEL, STORE, BOTH = "draft-model", "store", "draft-model + store"
"""Origins of a node, for the trace."""
OWN = BestFirst(ranked=False)
"""Tree builder for the draft model's tree, the only one supported: others draw siblings."""


class FusedState(GrowthState):
    """A slot of the draft model's cache, and the datastore used with it."""

    def __init__(self, held: GrowthState, store: Datastore) -> None:
        super().__init__(held.slot)
        self.store, self.owned = store, StoreInUse(store, (STORE, BOTH))


def prune(found: Retrieved, allowed: Sequence[int]) -> Retrieved:
    """Return only the branches whose first token is one of these."""
    stays, kept = dict[int, int](), list[int]()
    for node, (token, parent) in enumerate(zip(found.tokens, found.parents, strict=True)):
        if parent in stays or (parent < 0 and token in allowed):
            stays[node] = len(kept)
            kept.append(node)
    return replace(
        found,
        tokens=[found.tokens[node] for node in kept],
        parents=[stays.get(found.parents[node], -1) for node in kept],
        counts=[found.counts[node] for node in kept],
    )


def fuse(tokens: Sequence[int], parents: Sequence[int], other: Retrieved, most: int) -> tuple[list[int], list[int]]:
    """Merge a tree into another one by the longest common prefix of each path.

    Args:
        tokens: tokens of the existing tree; its nodes keep their numbers.
        parents: parents in the existing tree.
        other: tree to merge, parents first.
        most: most nodes of `other` to add.

    Returns:
        For each node of `other`, its number in the merged tree; −1 if there was no room. And the added nodes of
        `other`, in their order.
    """
    at = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
    place, added = list[int](), list[int]()
    for node, (token, parent) in enumerate(zip(other.tokens, other.parents, strict=True)):
        above = -1 if parent < 0 else place[parent]
        if parent >= 0 and above < 0:  # there was no room for its parent
            place.append(-1)
            continue
        found = at.get((above, token), -1)
        if found < 0 and len(added) < most:
            found = at[above, token] = len(tokens) + len(added)
            added.append(node)
        place.append(found)
    return place, added


@dataclass(frozen=True)
class Rasd(TreeFromModel):
    """Build a tree with the draft model, look the newest tokens up in a datastore, and verify both as one tree.

    Retrieved branches whose first token is not among the draft model's `top` most likely are dropped. The others are
    merged where they leave the model's tree, and may be deeper than it. Every node records its origin. Both trees
    depend on committed tokens alone, so tokens are deterministic.

    Source: Quan et al. 2025, RASD, arXiv:2503.03434, §3 (pruning, and fusion by the longest prefix).
    """

    superposes: ClassVar[bool] = False  # retrieved tokens do not belong to a superposed draft
    source: ClassVar[str] = MODEL
    usual: ClassVar[TreeBuilder | None] = OWN
    store: str = stored()
    retrieved: int = param(8, ge=0, le=32, doc="maximum number of nodes from the datastore, besides the draft model's")
    levels: int = param(
        4, ge=1, le=16, doc="number of levels in the draft model's tree; retrieved branches may be deeper"
    )
    top: int = param(
        8, ge=1, le=64, doc=("m: retrieved branches must start with one of the draft model's m most likely tokens")
    )
    longest: int = longest()
    shortest: int = shortest()

    def notice(self) -> str:
        """Return a note if two parameters exclude each other."""
        return unmatched(self.longest, self.shortest)

    def siblings(self) -> frozenset[Sampling]:
        """Return the kinds of siblings: chosen by the model's distribution, and retrieved; both deterministic."""
        return frozenset({Sampling.DETERMINISTIC})

    def make_ready(self, models: Models) -> None:
        """Tokenise and sort the bundled texts."""
        store_of(models, self.store == "own")

    def prime(self, row: Row, models: Models) -> FusedState:
        """Open a slot of the draft model's cache, and the datastore."""
        store = store_of(models, self.store == "own")
        return FusedState(super().prime(row, models), store)

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """Draft the model's tree with the datastore's additions."""
        state: FusedState = row.state.drafter
        growth = self.begin(row)
        tree = (plan.grower or OWN).grow(growth, replace(plan, depth=min(plan.depth, self.levels)))
        allowed = growth.root.best(self.top)[1][0]
        tokens, parents, first = to_host([tree.tokens, tree.parents, allowed])
        room, context = plan.within(len(tree) + self.retrieved) - len(tree), row.committed[-self.longest :]
        nodes, known = len(tree) + room, growth.row.models.target.vocab_size
        found = retrieve(state.store, context, self.longest, self.shortest, nodes, plan.depth, known)
        found.tell(row, state.store)
        found = prune(found, first)
        place, added = fuse(tokens, parents, found, room)
        row.report.signals["nodes from the store"] = len(added)
        parents += [-1 if found.parents[node] < 0 else place[found.parents[node]] for node in added]
        whole = DraftTree.of([*tokens, *(found.tokens[node] for node in added)], parents, device=tree.tokens.device)
        both = set(place)
        sources = [*(BOTH if node in both else MODEL for node in range(len(tree))), *[STORE] * len(added)]
        return explained(replace(whole, source=tuple(sources)), tree, found, added)


def explained(whole: DraftTree, tree: DraftTree, found: Retrieved, added: Sequence[int]) -> DraftTree:
    """Return the merged tree with the scores of its nodes, and the reasons for them.

    Args:
        whole: the merged tree: the draft model's nodes, then those of the datastore.
        tree: the draft model's tree.
        found: retrieved and pruned branches.
        added: the nodes of them that were merged.
    """
    device, told = tree.tokens.device, tree.grown
    counts, shares = (
        to_device([values[node] for node in added], device, torch.float32) for values in (found.counts, found.shares)
    )
    if tree.score is not None:
        whole = replace(whole, score=torch.cat([tree.score.float(), shares]))
    if told is not None and isinstance(told.before, Tensor) and isinstance(told.after, Tensor):
        of = to_device([0] * len(tree) + [1] * len(added), device, torch.long)
        before, after = torch.cat([told.before.float(), counts]), torch.cat([told.after.float(), shares])
        whole = replace(whole, grown=Grown((told.rules[0], RETRIEVED), of, before, after))
    return whole
