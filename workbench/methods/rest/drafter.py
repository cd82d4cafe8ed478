"""REST: draft the continuations of the newest tokens in a datastore of texts, by the longest match."""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from workbench.core.params import param
from workbench.core.transfer import to_device
from workbench.core.tree import DraftTree, Sampling
from workbench.core.tree_explanation import TreeBuilderRule, TreeExplanation
from workbench.decoders.draft_verify.inspectable_state import InspectableState, StateEntry, StateSummary
from workbench.decoders.draft_verify.parts import Drafter, Plan
from workbench.engine.datastore import ORDERED, Datastore
from workbench.engine.datastore_builder import store_of
from workbench.engine.request import Sequence
from workbench.methods.tree_builders.shapes import NODES
from workbench.models.loading import Models

READ = 512
"""Maximum number of datastore occurrences read per look-up, spread evenly over all. REST's released code reads
5,000."""
LONGEST = 16
"""Maximum number of context tokens that are looked up in the datastore."""
DEEPEST = ORDERED - LONGEST
"""Maximum number of tokens read after a match in the datastore. The suffix array orders occurrences by up to
`ORDERED` tokens."""

RETRIEVED = TreeBuilderRule(
    "rest",
    "Found in the datastore",
    "In the datastore, this token is one of the most frequent continuations of the text's last tokens.",
    "number of occurrences in the datastore with this continuation",
    "share of the match's occurrences with this continuation",
)


def store_param() -> Any:
    """Return the declaration of the drafter parameter that chooses the datastore."""
    return param(
        "own",
        choices=("own", "bundled"),
        doc="own: the datastore in WORKBENCH_DATASTORE, else the bundled one; bundled: this project's texts",
    )


def longest_param() -> Any:
    """Return the declaration of the drafter parameter that sets the longest suffix of the text to look up."""
    return param(LONGEST, ge=1, le=LONGEST, doc="longest suffix to look up, in tokens")


def shortest_param() -> Any:
    """Return the declaration of the drafter parameter that sets the shortest match to draft from."""
    return param(2, ge=1, le=8, doc="shortest match to draft from, in tokens")


def no_match_notice(longest: int, shortest: int) -> str:
    """Return a note for the user if `longest` is less than `shortest`, so that no match is possible; else ""."""
    if shortest <= longest:
        return ""
    return (
        f"Nothing is drafted from the datastore: matches of {shortest} tokens are required, but only {longest} are "
        "looked up."
    )


@dataclass(frozen=True, slots=True)
class RetrievedTree:
    """Draft tree of continuations retrieved from a datastore, the most frequent first.

    Attributes:
        tokens: token of each node, parents first.
        parents: index of each node's parent; −1 below the root.
        counts: for each node, the number of read occurrences of the match whose continuation begins with its path.
        n_read: number of occurrences of the match whose continuation was read.
        matched: number of context tokens that matched.
        hits: number of occurrences of the matched tokens in the datastore.
        entry: index in the datastore of an occurrence that continues with the tree's first node; −1: no such
            occurrence.
    """

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])
    n_read: int = 0
    matched: int = 0
    hits: int = 0
    entry: int = -1

    @property
    def shares(self) -> list[float]:
        """Return, for each node, the share of the match's occurrences whose continuation begins with its path."""
        return [count / self.n_read for count in self.counts]

    def record_signals(self, sequence: Sequence, store: Datastore) -> None:
        """Record length and position of the match in the datastore as signals of the round in the trace."""
        sequence.report.signals["datastore tokens"] = len(store)
        sequence.report.signals["matched tokens"] = self.matched
        sequence.report.signals["occurrences in the datastore"] = self.hits
        if self.hits:
            sequence.report.signals["entry"] = self.entry


def retrieve(
    store: Datastore,
    context: abc.Sequence[int],
    longest: int,
    shortest: int,
    nodes: int,
    depth: int,
    vocabulary: int | None = None,
) -> RetrievedTree:
    """Look up the context's last tokens in a datastore, and return their most frequent continuations as a tree.

    The longest match is used.

    Args:
        store: datastore, read only.
        context: committed tokens.
        longest: maximum number of context tokens that are looked up.
        shortest: minimum number of tokens of a match.
        nodes: maximum number of nodes of the tree.
        depth: maximum number of levels of the tree.
        vocabulary: size of the target's vocabulary, if it may be smaller than the vocabulary of the datastore's
            tokenizer; None: it is not smaller.
    """
    hit, depth = store.find(context, longest, shortest), min(depth, DEEPEST)
    if not hit or nodes < 1 or depth < 1:
        return RetrievedTree(matched=hit.matched, hits=len(hit))
    places, rows = store.following(hit, depth, READ)
    if vocabulary is not None:  # tokens outside the vocabulary end a continuation; they sort last
        rows = np.where(np.logical_or.accumulate(rows >= vocabulary, axis=1), store.card.vocabulary, rows)
    begins = np.ones(rows.shape, bool)  # [m, depth]: whether a prefix of that length begins in this row
    begins[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    level, first = np.nonzero(np.transpose(begins))  # per prefix: level of its last token, and its first row
    total = len(rows)
    counts = np.diff(first, append=total)
    counts[np.diff(level, append=depth - 1) > 0] += total  # a level's last prefix extends to the last row
    ids = np.reshape(np.cumsum(np.transpose(begins)), (depth, total)) - 1  # per level and row: index of the prefix
    parents = np.where(level > 0, ids[level - 1, first], -1)
    tokens = rows[first, level]
    order = np.lexsort((level, -counts))  # a parent is at least as frequent as its child, and comes first
    order = order[tokens[order] < store.card.vocabulary][:nodes]
    place = {int(node): i for i, node in enumerate(order)}
    return RetrievedTree(
        tokens[order].tolist(),
        [place.get(int(parent), -1) for parent in parents[order]],
        counts[order].tolist(),
        total,
        hit.matched,
        len(hit),
        int(places[first[order[0]]]) if len(order) else -1,
    )


class DatastoreState(InspectableState):
    """Datastore that a request reads, in a form that users can inspect."""

    title = "Datastore of texts"
    unit = "tokens"

    def __init__(self, store: Datastore, sources: Collection[str] = ()) -> None:
        self.store, self.sources = store, sources

    def summarise(self, n: int) -> StateSummary:
        """Return the size of the datastore and its `n` largest texts."""
        card, n_bytes = self.store.card, self.store.tokens.nbytes + self.store.suffixes.nbytes
        ends = [*(start for _, start in card.texts[1:]), len(self.store)]
        sizes = sorted(((end - start, name) for (name, start), end in zip(card.texts, ends, strict=True)), reverse=True)
        top = [StateEntry((), (), size, name) for size, name in sizes[:n]]
        return StateSummary(len(self.store), len(self.store), n_bytes, n_bytes, "tokens", top)


@dataclass(frozen=True)
class Rest(Drafter):
    """Look up the newest tokens in a datastore, longest match first, and draft the most frequent continuations.

    The continuations of the longest match are merged into a tree whose nodes count their occurrences; the most frequent
    nodes are verified. The datastore is read only, so requests do not influence each other.

    Host cost per round, CPU time on an AMD EPYC with 2 cores, English text: 0.03 ms (median; 95 % within 0.3 ms) with
    the bundled datastore, 0.23 ms (0.5 ms; 3 ms if the disk is read first) with 29 million tokens; independent of the
    context length.

    Source: He et al. 2023, REST, arXiv:2311.08252, §3.2 (retrieval), §3.3 (draft tree).
    """

    needs: ClassVar[tuple[str, ...]] = ("trees",)
    store: str = store_param()
    nodes: int = param(16, ge=1, le=64, doc=NODES["doc"])
    longest: int = longest_param()
    shortest: int = shortest_param()

    def notice(self) -> str:
        """Return a note for the user if `longest` and `shortest` allow no match in the datastore, else ""."""
        return no_match_notice(self.longest, self.shortest)

    def siblings(self) -> frozenset[Sampling]:
        """Return how sibling nodes are chosen: deterministically, because tokens are retrieved from the datastore."""
        return frozenset({Sampling.DETERMINISTIC})

    def make_ready(self, models: Models) -> None:
        """Load the datastore before the first run; the bundled texts are tokenised and sorted for this target."""
        store_of(models, self.store == "own")

    def init_state(self, sequence: Sequence, models: Models) -> DatastoreState:
        """Return the drafter's state of a sequence: the datastore."""
        return DatastoreState(store_of(models, self.store == "own"))

    def propose_one(self, sequence: Sequence, plan: Plan) -> DraftTree:
        """Draft the most frequent continuations of the longest match in the datastore."""
        store, target, device = sequence.state.drafter.store, sequence.models.target, sequence.models.target.device
        context, nodes = sequence.committed[-self.longest :], plan.limit_nodes(self.nodes)
        retrieved = retrieve(store, context, self.longest, self.shortest, nodes, plan.depth, target.vocab_size)
        retrieved.record_signals(sequence, store)
        if not retrieved.tokens:
            return DraftTree.empty("rest", device)
        tree = DraftTree.from_parents(
            retrieved.tokens, retrieved.parents, source="rest", device=device, score=retrieved.shares
        )
        counts = to_device(retrieved.counts, device, torch.long)
        return replace(tree, explanation=TreeExplanation((RETRIEVED,), before=counts, after=tree.score))
