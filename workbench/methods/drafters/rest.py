"""Draft what stands behind the longest match of the newest tokens in a store of text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from workbench.core.grown import Grown, GrowthRule
from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.engine.datastore import ORDERED, Datastore
from workbench.engine.datastore_builder import store_of
from workbench.engine.draft_plan import Plan
from workbench.engine.drafter_state import Look, Owned, Top
from workbench.engine.parts import Drafter
from workbench.engine.request import Row
from workbench.methods.growers.shapes import NODES
from workbench.models.loading import Models

READ = 512
"""Occurrences read at most, spread evenly over all; the released code reads 5,000."""
LONGEST = 16
"""Tokens matched at most."""
DEEPEST = ORDERED - LONGEST
"""Tokens read behind a match at most: so far occurrences are in order."""

RETRIEVED = GrowthRule(
    "rest",
    "Found in the datastore",
    "It follows an occurrence of the newest tokens in the datastore, and is among the most frequent continuations.",
    "occurrences with this continuation",
    "their share",
)


def stored() -> Any:
    """The parameter: which store is read."""
    return param(
        "own",
        choices=("own", "bundled"),
        doc=(
            "own: the datastore that WORKBENCH_DATASTORE names, if any; otherwise, and with bundled, this project's "
            "own texts"
        ),
    )


def longest() -> Any:
    """The parameter: how many tokens are looked up at most."""
    return param(LONGEST, ge=1, le=LONGEST, doc="longest suffix to look up, in tokens")


def shortest() -> Any:
    """The parameter: how many have to match."""
    return param(2, ge=1, le=8, doc="shortest match to draft from, in tokens")


def unmatched(longest: int, shortest: int) -> str:
    """What there is to know where nothing can ever match; "" where something can."""
    if shortest <= longest:
        return ""
    return (
        f"Nothing is drafted from the datastore: matches of {shortest} tokens are required, but only {longest} are "
        "looked up."
    )


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Continuations found in a store, as a tree, those of the most occurrences first.

    Attributes:
        tokens: of its nodes, parents first.
        parents: index of each node's parent; −1 below the root.
        counts: occurrences that go on as the path to each node does, of those read.
        read: occurrences read.
        matched: tokens that matched.
        hits: occurrences in the store.
        entry: place in the store of an occurrence that goes on as the first node does; −1: there is none.
    """

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])
    read: int = 0
    matched: int = 0
    hits: int = 0
    entry: int = -1

    @property
    def shares(self) -> list[float]:
        """Of the occurrences read, of each node: of all of them."""
        return [count / self.read for count in self.counts]

    def tell(self, row: Row, store: Datastore) -> None:
        """Into the row's trace: what was found, and where."""
        row.signals["store tokens"] = len(store)
        row.signals["matched tokens"] = self.matched
        row.signals["hits in the store"] = self.hits
        if self.hits:
            row.signals["entry"] = self.entry


def retrieve(
    store: Datastore,
    context: Sequence[int],
    longest: int,
    shortest: int,
    nodes: int,
    depth: int,
    vocabulary: int | None = None,
) -> Retrieved:
    """The `nodes` most frequent prefixes of what stands behind the longest match.

    Args:
        store: read, never written.
        context: committed tokens.
        longest: most tokens of it that are looked up.
        shortest: a shorter match is none.
        nodes: of the tree, at most.
        depth: levels of it, at most.
        vocabulary: of the target, which may have fewer tokens than the store's tokenizer; None: no fewer.
    """
    hit, depth = store.find(context, longest, shortest), min(depth, DEEPEST)
    if not hit or nodes < 1 or depth < 1:
        return Retrieved(matched=hit.matched, hits=len(hit))
    places, rows = store.following(hit, depth, READ)
    if vocabulary is not None:  # what it cannot say ends a continuation; of all at a place these are the last
        rows = np.where(np.logical_or.accumulate(rows >= vocabulary, axis=1), store.card.vocabulary, rows)
    begins = np.ones(rows.shape, bool)  # [m, depth]: a prefix of so many tokens begins in this row
    begins[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    level, first = np.nonzero(np.transpose(begins))  # of each prefix: its last token's level, its first row
    total = len(rows)
    counts = np.diff(first, append=total)
    counts[np.diff(level, append=depth - 1) > 0] += total  # the last one of a level ends with the rows
    ids = np.reshape(np.cumsum(np.transpose(begins)), (depth, total)) - 1  # of each level and row, its prefix
    parents = np.where(level > 0, ids[level - 1, first], -1)
    tokens = rows[first, level]
    order = np.lexsort((level, -counts))  # a parent has no fewer occurrences than its child, and comes first
    order = order[tokens[order] < store.card.vocabulary][:nodes]
    place = {int(node): i for i, node in enumerate(order)}
    return Retrieved(
        tokens[order].tolist(),
        [place.get(int(parent), -1) for parent in parents[order]],
        counts[order].tolist(),
        total,
        hit.matched,
        len(hit),
        int(places[first[order[0]]]) if len(order) else -1,
    )


class StoreInUse(Owned):
    """A store that a request reads, and what it found there."""

    title = "Datastore of texts"
    unit = "tokens"

    def __init__(self, store: Datastore, sources: Collection[str] = ()) -> None:
        self.store, self.sources = store, sources

    def look(self, n: int) -> Look:
        """Its largest texts."""
        card, n_bytes = self.store.card, self.store.tokens.nbytes + self.store.suffixes.nbytes
        ends = [*(start for _, start in card.texts[1:]), len(self.store)]
        sizes = sorted(((end - start, name) for (name, start), end in zip(card.texts, ends, strict=True)), reverse=True)
        top = [Top((), (), size, name) for size, name in sizes[:n]]
        return Look(len(self.store), len(self.store), n_bytes, n_bytes, "tokens", top)


@dataclass(frozen=True)
class Rest(Drafter):
    """Look the newest tokens up in a store of text, longest match first, and draft what follows there most often.

    The continuations of the longest match are merged into a tree whose nodes count the occurrences that go through
    them; the nodes of the most are verified. The store is read and never written: no request drafts for another.

    Host cost of a round, CPU time on an AMD EPYC with 2 cores, English text: 0.03 ms (median; 95 % within 0.3 ms) with
    the bundled store, 0.23 ms (0.5 ms; 3 ms where the disk is read first) with 29 million tokens; the context's length
    does not matter.

    Source: He et al. 2023, REST, arXiv:2311.08252, §3.2 (retrieval), §3.3 (draft tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    store: str = stored()
    nodes: int = param(16, ge=1, le=64, doc=NODES["doc"])
    longest: int = longest()
    shortest: int = shortest()

    def notice(self) -> str:
        """Two parameters may exclude each other."""
        return unmatched(self.longest, self.shortest)

    def siblings(self) -> frozenset[Sampling]:
        """Looked up."""
        return frozenset({Sampling.DETERMINISTIC})

    def make_ready(self, models: Models) -> None:
        """The bundled texts are tokenised and sorted."""
        store_of(models, self.store == "own")

    def prime(self, row: Row, models: Models) -> StoreInUse:
        """The store; what is committed is not needed."""
        return StoreInUse(store_of(models, self.store == "own"))

    def propose_row(self, row: Row, plan: Plan) -> DraftTree:
        """The most frequent continuations of the longest match."""
        assert row.models is not None
        store, target, device = row.state.store, row.models.target, row.models.target.device
        context, nodes = row.committed[-self.longest :], plan.within(self.nodes)
        found = retrieve(store, context, self.longest, self.shortest, nodes, plan.depth, target.vocab_size)
        found.tell(row, store)
        if not found.tokens:
            return DraftTree.empty("rest", device)
        tree = DraftTree.of(found.tokens, found.parents, source="rest", device=device, score=found.shares)
        counts = to_device(found.counts, device, torch.long)
        return replace(tree, grown=Grown((RETRIEVED,), before=counts, after=tree.score))
